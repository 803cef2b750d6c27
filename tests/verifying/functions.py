"""Functions with one operation in a line, for faults whose line is one operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program_cases.record import normal


@dataclass(frozen=True)
class Case:
    """A function with its weights.

    Attributes:
      function: the function of the weights and an array.
      params: the weights.
      example: the array.
      polymorphic_shapes: its open sizes.
    """

    function: Callable[..., Any]
    params: Any
    example: np.ndarray[Any, Any]
    polymorphic_shapes: str

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", ""))


def perceptron(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    hidden = hidden + params["b"]
    hidden = jax.nn.relu(hidden)
    hidden = hidden @ params["v"]
    hidden = jnp.tanh(hidden)
    hidden = hidden * params["scale"]
    hidden = jax.nn.relu(hidden)
    hidden = jnp.sqrt(hidden)
    total = jnp.sum(hidden, axis=-1, keepdims=True)
    total = total + 1.5
    return hidden / total


def attention(params: Any, x: Any) -> Any:
    queries = x @ params["q"]
    keys = x @ params["k"]
    values = x @ params["v"]
    keys = jnp.transpose(keys, (0, 2, 1))
    scores = queries @ keys
    scores = scores / 2.0
    weights = jax.nn.softmax(scores)
    mixed = weights @ values
    mixed = mixed + x
    mean = jnp.mean(mixed, axis=-1, keepdims=True)
    centred = mixed - mean
    squares = centred * centred
    variance = jnp.mean(squares, axis=-1, keepdims=True)
    variance = variance + 1e-3
    inverse = lax.rsqrt(variance)
    return centred * inverse


def image_net(params: Any, x: Any) -> Any:
    x = lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = x + params["bias"]
    x = jax.nn.relu(x)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jnp.exp(-x)
    x = jnp.transpose(x, (0, 3, 1, 2))
    x = x.reshape(x.shape[0], -1)
    x = x @ params["dense"]
    x = jnp.maximum(x, -0.5)
    x = jnp.minimum(x, 0.7)
    return jax.nn.log_softmax(x)


def piecewise(params: Any, x: Any) -> Any:
    is_large = x > params["limit"]
    large = jnp.log(jnp.abs(x) + 2.0)
    small = jnp.sin(x)
    chosen = jnp.where(is_large, large, small)
    flipped = jnp.flip(chosen, 0)
    moved = flipped - x
    powers = moved**3
    sorted_rows = jnp.sort(powers, axis=-1)
    sums = jnp.cumsum(sorted_rows, axis=-1)
    return jnp.concatenate([sums, chosen], axis=-1)


def recurrent(params: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> tuple[Any, Any]:
        mixed = state @ params["w"]
        mixed = mixed + row
        state = jnp.tanh(mixed)
        return state, state * 2.0

    start = jnp.zeros(x.shape[-1:])
    start = start + params["b"]
    _, rows = lax.scan(step, start, x)
    return rows - 1.0


CASES = (
    Case(
        perceptron,
        {"w": normal(3, 8), "b": normal(8), "v": normal(8, 5), "scale": normal(5)},
        normal(4, 3),
        "(b, 3)",
    ),
    Case(
        attention,
        {"q": normal(4, 4), "k": normal(4, 4, seed=1), "v": normal(4, 4, seed=2)},
        normal(2, 3, 4),
        "(b, n, 4)",
    ),
    Case(
        image_net,
        {"kernel": normal(3, 3, 2, 3) / 3, "bias": normal(3), "dense": normal(48, 5) / 6},
        normal(2, 8, 8, 2),
        "(b, 8, 8, 2)",
    ),
    Case(piecewise, {"limit": normal(6)}, normal(3, 6), "(b, 6)"),
    Case(recurrent, {"w": normal(4, 4), "b": normal(4)}, normal(5, 4), "(n, 4)"),
)
"""The functions."""
