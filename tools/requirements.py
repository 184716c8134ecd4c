"""Print what pyproject.toml asks for, one a line: `requirements.py [EXTRA …]`."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
sys.stdout.write("\n".join(wanted) + "\n")
