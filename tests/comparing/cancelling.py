"""A function whose results are 0 but for rounding errors, and that has no such result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

X = np.random.default_rng(0).normal(10, 1, (4, 8)).astype(np.float32)
IDS = np.arange(1, 9, dtype=np.int32)


def cancel(x: Any, ids: Any) -> dict[str, Any]:
    """Computes results that cancel, in ways that users meet, and one that does not."""
    angles = ids.astype(x.dtype)
    square = x @ x.T / 100
    rows = jax.lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], jnp.zeros(x.shape[1]))
    return {
        "centred": (x - x.mean(-1, keepdims=True)).sum(-1),
        "residual": (square @ square) @ square - square @ (square @ square),
        "log_of_sum": jnp.log(jax.nn.softmax(x).sum(-1)),
        "gradient": jax.grad(lambda t: jax.nn.softmax(t).sum())(x),
        "from_ids": jnp.sin(angles) ** 2 + jnp.cos(angles) ** 2 - 1,
        "loop": rows - x.sum(0),
        "norm": jnp.linalg.norm(x / jnp.linalg.norm(x, axis=-1, keepdims=True), axis=-1) - 1,
        "sum": x.sum(-1),
    }


def take_imaginary_part(x: Any) -> Any:
    """Computes imaginary parts that are exactly 0 in JAX."""
    return jnp.imag(jnp.fft.ifft(jnp.fft.fft(x)))
