"""Takes the module that JAX has lowered, where JAX writes it as bytes that had to be read again.

As in the other seams, private names are looked up when they are needed, and a release without one
works as `SEAM` says. Each is replaced, until the process ends, by one that does the same unless a
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
    """The ir.Module of a trace that is exported while it waits for it.

    Attributes:
      traced: what is exported.
      module: None until JAX has made it, and where it is not to be had.
    """

    traced: jax.stages.Traced
    module: Any = None
    _write: Callable[[], bytes] | None = None

    def written(self) -> bytes:
        """Returns the portable artifact that JAX would have written of it, if it is there."""
        assert self._write is not None
        return self._write()


@dataclass(frozen=True)
class _Lowered:
    """A lowered trace that JAX makes an Exported of, for `taken`."""

    taken: TakenModule
    context: Any


_WAITING: ContextVar[TakenModule | None] = ContextVar("jax2tf_bridge_waiting", default=None)
_LOWERED: ContextVar[_Lowered | None] = ContextVar("jax2tf_bridge_lowered", default=None)


@contextmanager
def module_taken(traced: jax.stages.Traced) -> Iterator[TakenModule]:
    """Takes the module of `traced`, if it is exported within: the Exported then has no bytes."""
    taken = TakenModule(traced)
    installed = [_EXPORT.wrap(_Export), _WRITE.wrap(_Write), _CONTEXT.wrap(_MakeContext)]
    token = _WAITING.set(taken if all(installed) else None)
    try:
        yield taken
    finally:
        _WAITING.reset(token)


@dataclass(frozen=True)
class _Export:
    """JAX's function that makes an Exported of what it has lowered."""

    name: str
    plain: Callable[..., Any]

    def __call__(self, lowered: Any, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        taken = _WAITING.get()
        # Another export may be made by a lowering rule of the user's.
        if taken is None or jaxpr is not taken.traced.jaxpr:
            return self.plain(lowered, jaxpr, *args, **kwargs)
        context = lowered.compiler_ir("stablehlo").context
        token = _LOWERED.set(_Lowered(taken, context))
        try:
            return self.plain(lowered, jaxpr, *args, **kwargs)
        finally:
            _LOWERED.reset(token)


@dataclass(frozen=True)
class _Write:
    """JAX's function that writes a module as bytes, the last thing that it does with it."""

    name: str
    plain: Callable[..., bytes]

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> bytes:
        lowered = _LOWERED.get()
        if lowered is None:
            return self.plain(module, *args, **kwargs)
        lowered.taken.module = module
        lowered.taken._write = lambda: self.plain(module, *args, **kwargs)
        return b""


@dataclass(frozen=True)
class _MakeContext:
    """JAX's function that makes a context, here for the copy of the module that it exports."""

    name: str
    plain: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        lowered = _LOWERED.get()
        return self.plain(*args, **kwargs) if lowered is None else lowered.context
