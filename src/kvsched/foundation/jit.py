"""Compilation: one source, run by Numba or as plain Python, cached by what the code says.

`bind` copies a function, and every plain function that it calls, with some global names bound
to others (a policy's hooks), and compiles the copies with the GIL released. Compiled code is
kept on disk in a folder named by a digest of the bytecode of all of them, the constants they
read and the versions of Python, NumPy and Numba, so that an edit anywhere is noticed. With
``compiled=False`` the copies stay plain Python: the same source, to read and to step through.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

Function = types.FunctionType
_SCALARS = (bool, int, float, str, type(None))
CACHE_FORMAT = "3"
"""Changes with the form of the files in the cache, or with how code is compiled."""
_DEEPEST = 3
"""Dots that are followed from a module to a constant: ``package.module.Class.NAME``."""


def compilation_enabled() -> bool:
    """Whether hot loops run compiled: yes, unless KVSCHED_COMPILED=0 is set."""
    return os.environ.get("KVSCHED_COMPILED", "1") != "0"


def cache_folder() -> Path:
    """Where compiled code is kept: KVSCHED_CACHE_DIR, else the user's cache folder."""
    named = os.environ.get("KVSCHED_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvsched" / "compiled"


def is_kept(function: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> bool:
    """Whether the cache has compiled code of what `bind` would return, for some arguments.

    It says nothing about the code's soundness: what is damaged is compiled again when it is used.
    """
    folder = cache_folder() / digest(function, bound or {})
    return any(folder.glob("*.nbc"))


def _names(code: types.CodeType) -> dict[str, None]:
    """Return the global and attribute names in ``code`` and the code nested in it, in order."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _called(function: Function, bound: Mapping[str, Any]) -> dict[str, Any]:
    """What the global names in ``function``'s code stand for, with ``bound`` put over them."""
    found: dict[str, Any] = {}
    for name in _names(function.__code__):
        if name in bound:
            found[name] = bound[name]
        elif name in function.__globals__:
            found[name] = function.__globals__[name]
    return found


def _is_own(value: object) -> bool:
    """Whether a global is a plain Python function, to be copied and compiled as well."""
    return isinstance(value, Function) and not value.__module__.startswith(("numpy", "numba"))


def _unwrap(value: Any) -> Any:
    while isinstance(value, staticmethod):
        # A class body that names one of its own hooks again wraps it once more.
        value = value.__func__
    return value.function if isinstance(value, _Lazy) else value


def _describe_code(code: types.CodeType, out: list[str]) -> None:
    out.append(code.co_code.hex())
    out.append(repr((code.co_names, code.co_varnames, code.co_argcount)))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _describe_code(constant, out)
        else:
            out.append(repr(constant))


def _constant(value: Any) -> str:
    """Return what a global or a closed-over value adds to compiled code: constants are frozen."""
    import numpy as np

    if isinstance(value, (*_SCALARS, tuple)):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return type(value).__name__


def _describe(function: Function, bound: Mapping[str, Any], seen: set[int], out: list[str]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    # Cached code refers to the module of each function: it cannot serve another module's.
    out.append(function.__module__)
    _describe_code(function.__code__, out)
    out.append(repr(function.__defaults__))
    names = sorted(_names(function.__code__))
    for name, value in sorted(_called(function, bound).items()):
        _describe_value(name, value, names, bound, seen, out)
    for cell in function.__closure__ or ():
        out.append(_constant(cell.cell_contents))


def _describe_value(
    name: str, raw: Any, names: list[str], bound: Mapping[str, Any], seen: set[int], out: list[str]
) -> None:
    """Describe what ``name`` stands for; of a module or class, the attributes among ``names``."""
    value = _unwrap(raw)
    value = getattr(value, "py_func", value)  # what a user compiled with Numba on their own
    if _is_own(value):
        out.append(name)
        _describe(value, bound, seen, out)
        return
    out.append(f"{name}={_constant(value)}")
    if isinstance(value, types.ModuleType | type) and name.count(".") < _DEEPEST:
        for attribute in names:
            if hasattr(value, attribute):
                found = getattr(value, attribute)
                _describe_value(f"{name}.{attribute}", found, names, bound, seen, out)


def digest(function: Callable[..., Any], bound: Mapping[str, Any]) -> str:
    """Hex digest of the bytecode and constants of ``function`` and all that it calls."""
    import numba
    import numpy as np

    out = [CACHE_FORMAT, sys.version, np.__version__, numba.__version__]
    _describe(cast(Function, _unwrap(function)), bound, set(), out)
    return hashlib.sha256("\n".join(out).encode()).hexdigest()[:32]


def _copy(function: Function, bound: Mapping[str, Any], done: dict[int, Any], wrap: Any) -> Any:
    """Copy ``function`` and all that it calls, names bound, each passed through ``wrap``."""
    if id(function) in done:
        return done[id(function)]
    scope = dict(function.__globals__)
    for name, raw in _called(function, bound).items():
        value = _unwrap(raw)
        scope[name] = _copy(value, bound, done, wrap) if _is_own(value) else value
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    done[id(function)] = wrap(copy)
    return done[id(function)]


def bind(
    function: Callable[P, R],
    bound: Mapping[str, Any] | None = None,
    compiled: bool | None = None,
    *,
    allocates: bool = False,
) -> Callable[P, R]:
    """Return ``function`` with the global names in ``bound`` standing for its values.

    The names are bound in everything that ``function`` calls as well. ``compiled=None`` follows
    `compilation_enabled`. Compiling costs 1 to 4 s a policy, loading from disk about 0.05 s.
    Without ``allocates`` nothing compiled may make an array, and no array is reference counted:
    with a heap in the state, counting took five times as long as the work.
    """
    names = {} if bound is None else {name: _unwrap(value) for name, value in bound.items()}
    plain = cast(Function, _unwrap(function))
    if compiled is None:
        compiled = compilation_enabled()
    if not compiled:
        return cast(Callable[P, R], _copy(plain, names, {}, lambda copy: copy))
    import numba

    from kvsched.foundation.jit_parts import PartCompiler, make_part

    settings: Any = {
        "nogil": True, "error_model": "numpy", "_nrt": allocates, "no_cfunc_wrapper": True,
    }  # fmt: skip
    whole: Any = numba.njit(**settings)
    # Inlining hooks into the kernel halves the time of the heap's policies.
    settings |= {"forceinline": True, "no_cpython_wrapper": True, "pipeline_class": PartCompiler}
    part: Any = numba.njit(**settings)

    def compile_one(copy: Function) -> Any:
        return whole(copy) if copy.__code__ is plain.__code__ else make_part(part(copy))

    dispatcher = _copy(plain, names, {}, compile_one)
    _keep_on_disk(dispatcher, digest(plain, names))
    return cast(Callable[P, R], dispatcher)


def _keep_on_disk(dispatcher: Any, name: str) -> None:
    """Give ``dispatcher`` a disk cache in a folder of its own, if that folder can be written."""
    from kvsched.foundation.jit_cache import compile_once, folder_cache

    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        dispatcher._cache = folder_cache(dispatcher.py_func, folder)
        compile_once(dispatcher, folder)


class _Lazy:
    """A function that is compiled when first called; importing it costs nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._bound: dict[bool, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        compiled = compilation_enabled()
        if compiled not in self._bound:
            self._bound[compiled] = bind(self.function, None, compiled, allocates=True)
        return self._bound[compiled](*arguments)


def hot(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a loop as hot: compiled on its first call, plain where compilation is off."""
    return cast(Callable[P, R], _Lazy(function))


def entry_point(bound: Callable[P, R], arguments: tuple[Any, ...]) -> Callable[P, R]:
    """Return what `bind` made, compiled for arguments like these, without a look at their types.

    A call then costs 0.1 µs and 6 ns an array, instead of 3 µs with 35 of them. It must get
    arguments of exactly these types, arrays contiguous: nothing checks them.
    """
    dispatcher: Any = bound
    if not hasattr(dispatcher, "signatures"):
        return bound
    import numba

    typed: Any = numba.typeof
    signature = tuple(typed(argument) for argument in arguments)
    dispatcher.compile(signature)
    found: Callable[P, R] = dispatcher.overloads[signature].entry_point
    return found
