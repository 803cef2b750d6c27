"""Shardings of arrays over devices, represented without JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AxisType: TypeAlias = Literal["auto", "explicit", "manual"]
"""How a mesh axis is sharded: by the compiler, by the values' types, or by the function."""


CALLS_OF_PARTS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
"""Custom calls of jax.shard_map that convert between whole arrays and per-device parts."""


@dataclass(frozen=True)
class AbstractDevice:
    """The kind of device in a mesh.

    Attributes:
      kind: the hardware's name ("TPU v5 lite").
      platform: JAX's name of the platform ("tpu"); "" if unknown.
      num_cores: the number of cores per device, if relevant.
    """

    kind: str
    platform: str = ""
    num_cores: int | None = None


@dataclass(frozen=True)
class AbstractMesh:
    """A mesh of named axes, without concrete devices.

    Attributes:
      axis_names, axis_sizes, axis_types: one entry per axis.
      device: the kind of device, if known.

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
    """The sharding of an array over a mesh, or a serialized XLA sharding.

    Attributes:
      mesh: the mesh; None if only `hlo` is known.
      partitions: for each dimension the mesh axes that shard it; () for none.
      unreduced, reduced: axes over which a sum is pending, or has been done.
      memory_kind: the memory on the device; None for the default.
      hlo: a serialized xla.OpSharding, which JAX exported until March 2026; else b"".

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
        dimensions = [_format_partition(axes) for axes in self.partitions]
        for name in ("unreduced", "reduced"):
            axes = getattr(self, name)
            dimensions += [f"{name}={{{', '.join(map(repr, axes))}}}"] * bool(axes)
        return f"P({', '.join(dimensions)}) over {self.mesh}"


def _format_partition(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    return repr(axes[0]) if len(axes) == 1 else repr(axes)
