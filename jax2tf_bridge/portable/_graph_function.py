"""GraphFunction: a TensorFlow graph that a portable function carries along, without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CUSTOM_CALL = "tf.call_tf_function"
"""The custom call by which a module calls one; TensorFlow compiles it together with the module."""


@dataclass(frozen=True)
class GraphFunction:
    """A function of flat tensors as a TensorFlow graph.

    Attributes:
      name: of the TensorFlow function, for people.
      graph: a serialized GraphDef, complete in itself: it takes the placeholders x0, x1, ... and
        gives y0, y1, ...; the functions that it calls have names that follow from what they hold.
    """

    name: str
    graph: bytes = field(repr=False)
    _made: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    def made(self, make: Callable[[GraphFunction], Any]) -> Any:
        """Returns what `make` makes of it: kept as long as it lives, and not pickled."""
        found = self._made.get("made")
        # Without a lock: of two threads that make it, the first counts.
        return self._made.setdefault("made", make(self)) if found is None else found

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphFunction, (self.name, self.graph)
