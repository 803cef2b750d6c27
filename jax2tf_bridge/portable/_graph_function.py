"""GraphFunction: a serialized TensorFlow graph that a portable function calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
