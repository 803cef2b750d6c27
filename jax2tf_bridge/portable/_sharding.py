"""Shardings of arrays over devices, in a form that needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AxisType: TypeAlias = Literal["auto", "explicit", "manual"]
"""Who decides about a mesh axis: the compiler, the types of the values, or the function."""


CALLS_OF_PARTS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
"""Custom calls between a whole array and the part of it on a device, as jax.shard_map has them."""


@dataclass(frozen=True)
class AbstractDevice:
    """A kind of device that a mesh is of.

    Attributes:
      kind: as the hardware calls itself ("TPU v5 lite").
      platform: by JAX's name ("tpu"); "" where it is not known.
      num_cores: of one device, where that matters.
    """

    kind: str
    platform: str = ""
    num_cores: int | None = None


@dataclass(frozen=True)
class AbstractMesh:
    """Devices in a grid whose axes have names, without the devices themselves.

    Attributes:
      axis_names, axis_sizes, axis_types: one each an axis.
      device: the kind of device, where it is known.

    >>> print(AbstractMesh(("x", "y"), (2, 4), ("auto", "auto")))
    (x=2, y=4)
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    device: AbstractDevice | None = None

    def __str__(self) -> str:
        pairs = zip(self.axis_names, self.axis_sizes, strict=True)
        return f"({', '.join(f'{name}={size}' for name, size in pairs)})"


@dataclass(frozen=True)
class Sharding:
    """A way to spread one array over the devices of a mesh, or XLA's own words for it.

    Attributes:
      mesh: None where only `hlo` is known.
      partitions: for each dimension the mesh axes over which it is spread, () for none.
      unreduced, reduced: axes over which a sum is still to be done, or was done.
      memory_kind: where on the device, None for the default.
      hlo: a serialized xla.OpSharding, as JAX exported until March 2026; else b"".

    >>> print(Sharding(AbstractMesh(("x",), (2,), ("auto",)), (("x",), ())))
    P('x', None) over (x=2)
    """

    mesh: AbstractMesh | None = None
    partitions: tuple[tuple[str, ...], ...] = ()
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    memory_kind: str | None = None
    hlo: bytes = b""

    def __str__(self) -> str:
        if self.mesh is None:
            return f"an XLA sharding of {len(self.hlo)} bytes"
        dimensions = [_partition(axes) for axes in self.partitions]
        for name in ("unreduced", "reduced"):
            axes = getattr(self, name)
            dimensions += [f"{name}={{{', '.join(map(repr, axes))}}}"] * bool(axes)
        return f"P({', '.join(dimensions)}) over {self.mesh}"


def _partition(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    return repr(axes[0]) if len(axes) == 1 else repr(axes)
