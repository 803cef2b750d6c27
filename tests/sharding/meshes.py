"""Meshes that need no devices, and a function over one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

X: npt.NDArray[np.float32] = (np.arange(64) / 50).reshape(8, 8).astype(np.float32)


def mesh(sizes: Sequence[int] = (2, 4), names: Sequence[str] = ("x", "y")) -> AbstractMesh:
    """A mesh without devices, over which the compiler decides."""
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=(AxisType.Auto,) * len(sizes))


def over(*spec: Any) -> NamedSharding:
    """Spreads an array over the mesh of eight."""
    return NamedSharding(mesh(), PartitionSpec(*spec))


def product(a: Any, w: Any) -> Any:
    """A function of two matrices."""
    return jnp.sin(a @ w)


def spread_product() -> Any:
    """It over eight devices: rows, columns, and blocks of the result."""
    return jax.jit(product, in_shardings=(over("x"), over(None, "y")), out_shardings=over("x", "y"))


def by_parts() -> Any:
    """A function that computes on the part of each of eight devices."""

    def centered(a: Any) -> Any:
        return a - jax.lax.pmean(a, "y")

    spec = PartitionSpec("x", "y")
    mapped = jax.shard_map(centered, mesh=mesh(), in_specs=spec, out_specs=spec)
    return jax.jit(mapped, in_shardings=over("x", "y"), out_shardings=over("x", "y"))
