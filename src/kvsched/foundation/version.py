"""The version of the package, as installed."""

from __future__ import annotations

import importlib.metadata

try:
    VERSION = importlib.metadata.version("kvsched")
except importlib.metadata.PackageNotFoundError:
    VERSION = "0+unknown"
"""Version string; ``0+unknown`` where the package runs uninstalled."""
