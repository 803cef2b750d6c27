"""Takes JAX's lowered module before JAX serializes it, which saves reading it again.

Each private name is looked up on use, and a release without one works as described in `SEAM`. Each
function is replaced until the process ends. The replacement behaves like the original unless a
module is taken in its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax

from jax2tf_bridge._utils import SeamName

_READ = "modules are written as portable artifacts by JAX and read again by the bridge"
_EXPORT = SeamName("jax._src.export._export", "_export_lowered", "0.8 to 0.12", _READ)
_WRITE = SeamName("jax._src.export._export", "_module_to_bytecode", "0.8 to 0.12", _READ)
_CONTEXT = SeamName("jax._src.interpreters.mlir", "make_ir_context", "0.8 to 0.12", _READ)

SEAM: Sequence[SeamName] = (_EXPORT, _WRITE, _CONTEXT)


@dataclass
class TakenModule:
    """Slot for the ir.Module of a trace that is being exported.

    Attributes:
      traced: the trace.
      module: the module; None until JAX has made it, or if it is not available.
      context: the MLIR context of the module, which JAX would otherwise leave.
    """

    traced: jax.stages.Traced
    module: Any = None
    context: Any = None
    _write: Callable[[], bytes] | None = None

    def artifact(self) -> bytes:
        """Returns the portable artifact that JAX would have written, if the module is available."""
        assert self._write is not None
        return self._write()


_WAITING: ContextVar[TakenModule | None] = ContextVar("jax2tf_bridge_waiting", default=None)
_LOWERED: ContextVar[TakenModule | None] = ContextVar("jax2tf_bridge_lowered", default=None)


@contextmanager
def take_module(traced: jax.stages.Traced) -> Iterator[TakenModule]:
    """Takes the module of `traced` if the block exports it; the Exported then has no bytes."""
    taken = TakenModule(traced)
    installed = [_EXPORT.wrap(_Export), _WRITE.wrap(_Write), _CONTEXT.wrap(_MakeContext)]
    token = _WAITING.set(taken if all(installed) else None)
    try:
        yield taken
    finally:
        _WAITING.reset(token)


@dataclass(frozen=True)
class _Export:
    """Replacement of JAX's function that makes an Exported of a lowered trace."""

    name: str
    original: Callable[..., Any]

    def __call__(self, lowered: Any, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        taken = _WAITING.get()
        # A lowering rule of the user may start another export.
        if taken is None or jaxpr is not taken.traced.jaxpr:
            return self.original(lowered, jaxpr, *args, **kwargs)
        taken.context = lowered.compiler_ir("stablehlo").context
        token = _LOWERED.set(taken)
        try:
            return self.original(lowered, jaxpr, *args, **kwargs)
        finally:
            _LOWERED.reset(token)


@dataclass(frozen=True)
class _Write:
    """Replacement of JAX's function that serializes a module, which is its last step."""

    name: str
    original: Callable[..., bytes]

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> bytes:
        taken = _LOWERED.get()
        if taken is None:
            return self.original(module, *args, **kwargs)
        taken.module = module
        taken._write = lambda: self.original(module, *args, **kwargs)
        return b""


@dataclass(frozen=True)
class _MakeContext:
    """Replacement of JAX's function that makes an MLIR context; JAX then copies the module there.

    Returns the context of the module itself if the module is taken.
    """

    name: str
    original: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        taken = _LOWERED.get()
        return self.original(*args, **kwargs) if taken is None else taken.context
