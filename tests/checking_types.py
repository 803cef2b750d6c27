"""Pytree types whose constructors check their children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf_bridge import register_pytree_node_serialization


class Shaped:
    """Wants children of a shape."""

    def __init__(self, x: Any) -> None:
        if len(x.shape) != 1:
            raise TypeError(f"Shaped wants a vector, got {x!r}")
        self.x = x


class Strict:
    """Wants arrays with values; from_children does not."""

    x: Any

    def __init__(self, x: Any) -> None:
        if not isinstance(x, (jax.Array, np.ndarray)):
            raise TypeError(f"Strict wants an array, got {type(x).__name__}")
        self.x = x


class Stricter(Strict):
    """Registered with JAX, and not for files."""


def _register_with_jax(kind: Callable[[Any], Any]) -> None:
    jax.tree_util.register_pytree_node(
        kind,  # type: ignore[arg-type]
        lambda node: ((node.x,), None),
        lambda _, children: kind(*children),
    )


def _unchecked(_: None, children: Sequence[Any]) -> Strict:
    made = object.__new__(Strict)
    (made.x,) = children
    return made


for _kind in (Shaped, Strict, Stricter):
    _register_with_jax(_kind)
register_pytree_node_serialization(Shaped, serialized_name="checking_types.Shaped")
register_pytree_node_serialization(
    Strict, serialized_name="checking_types.Strict", from_children=_unchecked
)
