"""Module: serialized StableHLO, how to call it, and the TensorFlow graphs that it calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck


@dataclass(frozen=True)
class Module:
    """A StableHLO module as a portable artifact, and how to call it.

    Attributes:
      data: the portable artifact.
      stablehlo_version: the StableHLO version of the artifact.
      calling_convention_version: the calling convention of XlaCallModule
        (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
      kept_arguments: sorted indices of the function's flat arguments that main takes.
      platforms: the platforms that it was lowered for, by JAX's names; the platform index refers
        to this order.
      uses_shape_polymorphism: whether its shapes must be refined before compilation.
      disabled_checks: the disabled safety checks.
      nr_devices: the number of devices that it was lowered for.
    """

    data: bytes = field(repr=False)
    stablehlo_version: Version
    calling_convention_version: int
    kept_arguments: tuple[int, ...]
    platforms: tuple[str, ...]
    uses_shape_polymorphism: bool = False
    disabled_checks: tuple[DisabledSafetyCheck, ...] = ()
    nr_devices: int = 1

    def __hash__(self) -> int:
        # Only the length of the data is hashed, because hashing megabytes takes long.
        return hash((len(self.data), self.stablehlo_version, self.kept_arguments, self.platforms))


CUSTOM_CALL = "tf.call_tf_function"
"""Target of the custom call of a graph; TensorFlow compiles the graph with the module."""


@dataclass(frozen=True)
class GraphFunction:
    """A function of flat tensors as a TensorFlow graph.

    Attributes:
      name: the name of the TensorFlow function, for people.
      graph: a serialized, self-contained GraphDef. Its placeholders are x0, x1, ... and its results
        y0, y1, ...; the names of the functions that it calls are derived from their contents.
    """

    name: str
    graph: bytes = field(repr=False)
    _made: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    def made(self, make: Callable[[GraphFunction], Any]) -> Any:
        """Returns `make(self)`, cached for the lifetime of this object; pickles drop the cache."""
        cached = self._made.get("made")
        # No lock is needed: if two threads call `make`, setdefault keeps the first result.
        return self._made.setdefault("made", make(self)) if cached is None else cached

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphFunction, (self.name, self.graph)
