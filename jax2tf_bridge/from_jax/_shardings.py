"""Converts between JAX's shardings and those of a portable function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.source_lines import iter_equations
from jax2tf_bridge.portable import AbstractDevice, AbstractMesh, AxisType, Sharding
from jax2tf_bridge.serialization.jax_exported import REPLICATED, to_named_sharding

_AXIS_TYPES: dict[str, AxisType] = {"Auto": "auto", "Explicit": "explicit", "Manual": "manual"}


def read_shardings(
    exported: Any,
) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
    """Converts the shardings of the arguments and results of a jax.export.Exported."""
    if exported.nr_devices == 1:
        return (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
    if _has_xla_shardings(exported):
        ins, outs = exported.in_shardings_hlo, exported.out_shardings_hlo
        return tuple(map(_convert_xla, ins)), tuple(map(_convert_xla, outs))
    ins, outs = _read_jax_shardings(exported)
    return tuple(map(_convert_jax, ins)), tuple(map(_convert_jax, outs))


def _has_xla_shardings(exported: Any) -> bool:
    # Until March 2026 JAX stored XLA's shardings.
    return any(exported.in_shardings_hlo) or any(exported.out_shardings_hlo)


def _read_jax_shardings(exported: Any, mesh: Any = None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(exported.in_shardings_jax(mesh)), tuple(exported.out_shardings_jax(mesh))


def make_vjp_shardings(
    traced: jax.stages.Traced, exported: Any, name: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Returns the shardings of a VJP's arguments and results, for jax.jit.

    The VJP takes the function's arguments and the cotangents of its results, and returns cotangents
    of the arguments. Each cotangent has the sharding of its value. If that has none, the compiler
    chooses one, as in JAX. Returns None if nothing has a sharding.

    Raises:
      ShardingError: no mesh expresses a sharding.
    """
    if exported.nr_devices == 1:
        return None
    if _has_xla_shardings(exported):
        ins, outs = _convert_to_mesh(traced, exported, name)
    else:
        ins, outs = _read_jax_shardings(exported)
    shardings = [s for s in (*ins, *outs) if s is not None]
    if not shardings:
        return None
    # Replicated values move to the mesh of the others, because their own mesh may be made up.
    reference = next((s for s in shardings if not s.is_fully_replicated), shardings[0])
    replicated = NamedSharding(reference.mesh, PartitionSpec())
    ins, outs = (
        tuple(replicated if s is not None and s.is_fully_replicated else s for s in shardings)
        for shardings in (ins, outs)
    )
    return (*ins, *outs), ins


def _convert_to_mesh(
    traced: jax.stages.Traced, exported: Any, name: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Converts XLA's shardings to the function's mesh, or to one with made-up names."""
    count = exported.nr_devices
    meshes = [mesh for mesh in _iter_meshes(traced) if mesh.size == count]
    for mesh in meshes:
        try:
            return _read_jax_shardings(exported, mesh)
        except (KeyError, ValueError):
            continue  # the function has several meshes, and these shardings belong to another one
    concrete = next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)
    devices = jax.devices()[:count] if concrete is None else list(concrete.devices.flat)

    def convert(shardings: Sequence[Any], avals: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(shardings, avals, strict=True)
        return tuple(_convert_to_devices(s, a.ndim, devices, count, name) for s, a in pairs)

    ins = convert(exported.in_shardings_hlo, exported.in_avals)
    return ins, convert(exported.out_shardings_hlo, exported.out_avals)


def _convert_to_devices(
    sharding: Any, rank: int, devices: Sequence[Any], count: int, name: str
) -> NamedSharding | None:
    """Converts XLA's sharding to a mesh of these devices; an abstract mesh if they are too few."""
    known = _convert_xla(sharding)
    if known is None:
        return None
    named = to_named_sharding(known.hlo, rank, count)
    if named is None or named.mesh is None:
        raise ShardingError(
            f"{name} has an argument or a result with the sharding {sharding}, which no mesh "
            "expresses, so its gradient cannot be exported. Use shardings over a jax.sharding.Mesh "
            "(NamedSharding), or convert it with with_gradient=False."
        )
    sizes, names = named.mesh.axis_sizes, named.mesh.axis_names
    mesh: Any = jax.sharding.AbstractMesh(sizes, names)
    if len(devices) == count:
        mesh = Mesh(np.array(devices).reshape(sizes), names)
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in named.partitions)))


def _iter_meshes(traced: jax.stages.Traced) -> Iterator[Any]:
    params = [_jax_compat.read_jit_shardings(traced)]
    params += [equation.params for equation in iter_equations(traced.jaxpr.jaxpr)]
    for parameters in params:
        for value in parameters.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                mesh = getattr(inner, "mesh", inner)
                if isinstance(mesh, (Mesh, jax.sharding.AbstractMesh)):
                    yield mesh


def _convert_xla(sharding: Any) -> Sharding | None:
    if sharding is None:
        return None
    # "Replicated" has default values in all fields, so it serializes to no bytes.
    return Sharding(hlo=sharding.to_proto().SerializeToString() or REPLICATED)


def _convert_jax(sharding: Any) -> Sharding | None:
    if sharding is None:
        return None
    spec = sharding.spec
    # PartitionSpec has no `partitions` in JAX 0.8, and is not iterable in later releases.
    return Sharding(
        mesh=_convert_mesh(sharding.mesh),
        partitions=tuple(map(_convert_axes, getattr(spec, "partitions", spec))),
        unreduced=tuple(sorted(getattr(spec, "unreduced", ()))),
        reduced=tuple(sorted(getattr(spec, "reduced", ()))),
        memory_kind=sharding.memory_kind,
    )


def _convert_mesh(mesh: Any) -> AbstractMesh:
    device = getattr(mesh, "abstract_device", None)
    if device is not None:
        # Devices have no platform before JAX 0.10.
        platform = getattr(device, "platform", "")
        device = AbstractDevice(device.device_kind, platform, device.num_cores)
    return AbstractMesh(
        axis_names=tuple(map(str, mesh.axis_names)),
        axis_sizes=tuple(mesh.axis_sizes),
        axis_types=tuple(_AXIS_TYPES[kind.name] for kind in mesh.axis_types),
        device=device,
    )


def _convert_axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
