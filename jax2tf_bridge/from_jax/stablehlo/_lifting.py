"""Arrays that a function captured: taken out of its module, and kept once."""

from __future__ import annotations

import hashlib
import threading

from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.portable._aval import Aval, LiftedConstant


class ConstantPool:
    """The arrays that were lifted, each once: a function and its VJPs share them.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Aval, str], LiftedConstant] = {}
        self._data: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def intern(self, shape: tuple[int, ...], dtype: str, data: memoryview) -> LiftedConstant:
        """The constant of this type and content; `data` is copied if it is new."""
        aval = Aval(shape, dtype)
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            known = self._known.get((aval, digest))
            if known is None:
                name = f"constant_{len(self._known)}"
                if digest not in self._data:
                    self._data[digest] = bytes(data)
                known = LiftedConstant(aval, digest, name, self._data[digest])
                self._known[aval, digest] = known
        return known


def lift_constants(module: StableHloModule, pool: ConstantPool) -> tuple[LiftedConstant, ...]:
    """Makes the large constants of a module arguments of its main, after all others.

    Equal ones are one argument.

    Args:
      module: of a function or VJP, as it was lowered; it is changed.
      pool: of the function and its VJPs; what is lifted is added.

    Returns:
      The constants, in the order of the arguments.
    """
    return tuple(module.lift_constants(pool.intern))
