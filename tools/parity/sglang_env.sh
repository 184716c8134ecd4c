#!/bin/sh
# Make an environment that runs SGLang's cache on a CPU: sglang_env.sh FOLDER
# About 0.3 GB down and 1 GB on disk. What SGLang imports beyond this, sglang_stand_ins.py stands
# in for: GPU kernels, models, servers.
set -eu
folder=$1
${PYTHON:-python3} -m venv "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check --quiet install torch==2.13.0
"$folder/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps sglang==0.5.23
"$folder/bin/python" -m pip --disable-pip-version-check --quiet install \
    aiohttp ipython msgspec numba numpy orjson packaging pillow psutil pybase64 pydantic pyyaml \
    pyzmq requests starlette tqdm zstandard
