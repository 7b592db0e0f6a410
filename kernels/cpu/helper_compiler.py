"""Compiling functions that kernels call, and nobody else: they become part of each kernel, never code of their own.

numba optimises every function and makes machine code of it, then does so again with each that calls it. Of ours kernels
alone are run, each is optimised with all that it calls, and so what is below a kernel is left as it was written.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

__all__ = ["HelperCompiler"]


class _PartOfKernels(JITCodeLibrary):
    """A function's code for others to link in."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """numba's own, without machine code at its end."""

    _name = "lowering_of_helpers"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartOfKernels(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags = state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        described = lowered.fndesc
        # By this object calls find the code to link in; as a function it has no address.
        name = described.qualname.rpartition(".")[2]
        key = _dynfunc.make_function(described.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(key, described, [state.library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class HelperCompiler(CompilerBase):
    """numba's passes but for that one."""

    def define_pipelines(self) -> list[Any]:
        """As numba asks for them."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        own = [(_Lowering, said) if made is NativeLowering else (made, said) for made, said in passes.passes]
        passes.passes[:] = own
        passes._finalized = False
        passes.finalize()
        return [passes]
