"""Stand-ins for what SGLang imports and a sequential replay on a CPU never runs.

Importing this module first lets `sglang.srt.mem_cache` be imported without GPU kernels, model
configurations and web servers. Nothing of the cache, its allocators or the scheduler is replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

ABSENT = (
    "compressed_tensors",
    "dill",
    "openai",
    "sgl_kernel",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.entrypoints",
    "sglang.srt.layers.quantization",
    "sglang.srt.parser",
    "sglang.srt.utils.hf_transformers_patches",
    "torchvision",
    "transformers",
    "triton",
    "tvm_ffi",
)


def _private(name: str) -> bool:
    return name.startswith("__")


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if _private(name):
            raise AttributeError(name)
        return _AnyClass(name, (_Anything,), {})


class _Anything(metaclass=_AnyClass):
    """Can be subclassed, called, subscripted and asked for any attribute; does nothing."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return _Anything()

    def __getattr__(self, name: str) -> Any:
        if _private(name):
            raise AttributeError(name)
        return _Anything()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0.0.0"
        if _private(name):
            raise AttributeError(name)
        return _AnyClass(name, (_Anything,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> Any:
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder())


def check() -> None:
    """Raise RuntimeError if a part of the cache itself is a stand-in."""
    for name, module in sys.modules.items():
        if isinstance(module, _Module) and ".mem_cache" in name:
            raise RuntimeError(f"{name} is a stand-in")
