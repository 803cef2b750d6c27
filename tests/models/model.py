"""Models of the table, and random weights for them; needs neither Flax nor TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Arguments = tuple[Any, ...]
_SEEDS = 1 << 31


@dataclass(frozen=True)
class Built:
    """A model with its weights.

    Attributes:
      function: of the weights and the arguments.
      params: the weights, a pytree of NumPy arrays.
      example: the arguments that it is exported with.
      calls: arguments of other sizes, which it is served with.
    """

    function: Callable[..., Any]
    params: Any
    example: Arguments
    calls: Sequence[Arguments]


@dataclass(frozen=True)
class Model:
    """One model of the table.

    Attributes:
      name: in lower case.
      library: what it is written with.
      build: makes it; nothing is computed before.
      polymorphic_shapes: as `save` takes them, for its arguments.
      tolerance: of values, relative to the largest one of an array.
      gradient_tolerance: the same of gradients; looser where relu has kinks.
      trainable: as `save` takes it.
      quick: whether it is among the fast tests.
    """

    name: str
    library: str
    build: Callable[[], Built]
    polymorphic_shapes: Sequence[Any]
    tolerance: float
    gradient_tolerance: float
    trainable: bool | Sequence[str]
    quick: bool

    def __str__(self) -> str:
        return self.name


def model(
    library: str,
    *polymorphic_shapes: Any,
    tolerance: float = 1e-4,
    gradient_tolerance: float = 1e-3,
    trainable: bool | Sequence[str] = True,
    quick: bool = False,
) -> Callable[[Callable[[], Built]], Model]:
    """Makes a Model of the function that builds it."""

    def made(build: Callable[[], Built]) -> Model:
        return Model(
            build.__name__,
            library,
            build,
            polymorphic_shapes,
            tolerance,
            gradient_tolerance,
            trainable,
            quick,
        )

    return made


def random_weights(shapes: Any, seed: int = 0) -> Any:
    """Arrays for a tree of shapes, of the size that initializers would give them.

    Drawn by NumPy, since compiling the initializers of a real model takes longer than its export.
    What is a variance or a scale is positive, and no bias and no mean is zero: a mistake in any of
    them changes the result.

    Args:
      shapes: whatever has a shape and a dtype at its leaves; names are taken from the last word
        of a path.
      seed: with another, other numbers.
    """

    def drawn(path: Any, leaf: Any) -> Any:
        text = jax.tree_util.keystr(path)
        random = np.random.default_rng([seed, _number(text)])
        return _array(_name(text), tuple(leaf.shape), random).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(drawn, shapes)


def _name(path: str) -> str:
    return path.split("['")[-1].partition("'")[0]


def _number(text: str) -> int:
    """A number for a text, the same in every process."""
    number = 0
    for byte in text.encode():
        number = (number * 131 + byte) % _SEEDS
    return number


def _array(name: str, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    if name in {"var", "moving_variance"}:
        return random.uniform(0.5, 1.5, shape)
    if name in {"scale", "gamma"}:
        return random.uniform(0.8, 1.2, shape)
    if name == "embedding":
        return random.normal(0, 0.05, shape)
    if len(shape) < 2 or name in {"bias", "mean"}:
        return random.normal(0, 0.1, shape)
    return random.normal(0, 1, shape) / math.sqrt(max(1, math.prod(shape[:-1])))


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Random numbers of mean 0 and variance 1, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def integers(*shape: int, below: int, seed: int = 0, dtype: Any = np.int32) -> Any:
    """Random integers from 0, the same each time."""
    return np.random.default_rng([seed, *shape]).integers(0, below, shape).astype(dtype)
