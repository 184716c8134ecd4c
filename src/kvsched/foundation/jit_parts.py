"""Functions that are compiled only to be inlined. Imported only when something compiles.

Numba makes every function that another calls a library of its own: optimised, turned into machine
code, with wrappers for callers from Python and C, all of which is thrown away when the function is
inlined. A part stops before: its LLVM code is linked into its caller's as it is, and optimised once
there. And it is compiled once for all signed integers, where Numba would compile it for each width
and each constant: the functions of the heap three to five times.
"""

# Numba ships no types for its compiler.
# mypy: disable-error-code="no-untyped-call,misc"

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.errors import TypingError
from numba.core.typed_passes import NativeLowering


class _PartLibrary(CPUCodeLibrary):
    """LLVM code to link into a caller's: neither optimised nor handed to the engine."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lowers a function to LLVM code and stops there."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        codegen = state.targetctx.codegen()
        state.library = _PartLibrary(codegen, state.func_id.func_qualname)
        state.flags.no_compile = True
        changed: bool = super().run_pass(state)
        # Numba finds the callee by its entry point, which must be a builtin and one of a kind.
        lowered = state["cr"]._replace(cfunc=[].append)
        state.targetctx.insert_user_function(lowered.cfunc, lowered.fndesc, [state.library])
        state["cr"] = lowered
        return changed


class PartCompiler(CompilerBase):
    """The pipeline of a part: Numba's own up to the lowering."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes, in a list of the one pipeline."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager._finalized = False
        manager.passes = [
            (_PartLowering if each is NativeLowering else each, why) for each, why in manager.passes
        ]
        manager.finalize()
        return [manager]


def _widened(given: Any) -> Any:
    """Return int64 for the type of a shorter signed integer, or of a constant one."""
    kind = given.literal_type if isinstance(given, types.IntegerLiteral) else given
    return types.int64 if kind in types.signed_domain else given


def make_part(dispatcher: Any) -> Any:
    """Have ``dispatcher``, whose pipeline is a `PartCompiler`, take every integer as int64."""
    exact = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        wide = tuple(_widened(each) for each in args)
        try:
            return exact(wide, {name: _widened(each) for name, each in kws.items()})
        except TypingError:
            # Some code needs the constant itself: an index into a tuple of unlike values.
            return exact(args, kws)

    dispatcher.get_call_template = get_call_template
    return dispatcher
