"""The fake engine behind the options of vLLM's server that the tests use.

``FAKE_SCRIPT`` in the environment is the fake engine's script; ``FAKE_PIDS`` a file to which it
adds its process id.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
import fake_engine_server


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--model", "--host", "--served-model-name"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=1000)
    parser.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True
    )
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    told = parser.parse_args()
    fake_engine_server.MODEL = told.served_model_name or told.model
    script = json.loads(os.environ.get("FAKE_SCRIPT", "{}"))
    script |= {
        "prefix_caching": told.enable_prefix_caching,
        "cached_details": told.enable_prompt_tokens_details,
        "max_num_seqs": told.max_num_seqs,
    }
    if "FAKE_PIDS" in os.environ:
        with Path(os.environ["FAKE_PIDS"]).open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    asyncio.run(fake_engine_server.serve(script, told.port))


if __name__ == "__main__":
    main()
