"""Programs over eight devices as users of jax.export write them, and a way to run them all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.jax_export.documented import as_json, copy_of, refuses, struct


def _over_eight(names: str = "a", *, backwards: bool = False) -> Any:
    devices = np.array(jax.devices()[::-1] if backwards else jax.devices())
    shape = (8,) if len(names) == 1 else (4, 2)
    return Mesh(devices.reshape(shape), tuple(names))


x84 = np.arange(32, dtype=np.float32).reshape(8, 4) / 9


def another_mesh_of_as_many_devices(export: Any) -> Any:
    sharding = NamedSharding(_over_eight(), PartitionSpec("a"))
    f = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=sharding, out_shardings=sharding)
    exported = export.export(f)(x84)
    results = []
    for e in (exported, copy_of(export, exported)):
        mesh = _over_eight(backwards=True)
        (placed,) = e.in_shardings_jax(mesh)
        result = e.call(jax.device_put(x84, placed))
        shards = {s.device.id: np.asarray(s.data) for s in result.addressable_shards}
        compiled = jax.jit(e.call, in_shardings=placed)(x84)
        (out,) = e.out_shardings_jax(mesh)
        specs = [str(tuple(s.spec)) for s in (placed, out)]
        results.append((e.nr_devices, specs, result, shards, compiled))
    fewer = NamedSharding(Mesh(jax.devices()[:4], "a"), PartitionSpec("a"))
    one = refuses(lambda: exported.call(x84), ValueError)
    return results, one, refuses(lambda: exported.call(jax.device_put(x84, fewer)), ValueError)


def two_axes_and_a_constraint_within(export: Any) -> Any:
    mesh = _over_eight("xy")
    over_x = NamedSharding(mesh, PartitionSpec("x"))
    over_y = NamedSharding(mesh, PartitionSpec(None, "y"))

    def f(a: Any, b: Any) -> Any:
        return jax.lax.with_sharding_constraint(a @ b, over_y).sum(axis=0)

    exported = export.export(jax.jit(f, in_shardings=(over_x, over_y)))(x84, x84.T)
    results = []
    for e in (exported, copy_of(export, exported)):
        placed = e.in_shardings_jax(_over_eight("xy", backwards=True))
        args = [jax.device_put(x, s) for x, s in zip((x84, x84.T), placed, strict=True)]
        results.append(([str(tuple(s.spec)) for s in placed], e.call(*args)))
    return results


def one_device_in_a_program_of_eight(export: Any) -> Any:
    exported = export.export(jax.jit(lambda x: jnp.cumsum(x, axis=1)))(struct((8, 4)))
    sharding = NamedSharding(_over_eight(), PartitionSpec("a"))
    x = jax.device_put(x84, sharding)
    results = [exported.call(x), jax.jit(exported.call)(x)]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(exported.call(x) ** 2)), in_shardings=sharding)
    over = [len(r.sharding.device_set) for r in results]
    return exported.nr_devices, results, over, gradient(x)


def arguments_that_are_spread_already(export: Any) -> Any:
    sharding = NamedSharding(_over_eight(), PartitionSpec("a"))
    open_array = jax.ShapeDtypeStruct(x84.shape, x84.dtype, sharding=sharding)
    found = []
    for argument in (jax.device_put(x84, sharding), open_array):
        exported = export.export(jax.jit(jnp.sin))(argument)
        (placed,) = exported.in_shardings_jax(_over_eight())
        result = exported.call(jax.device_put(x84, placed))
        found.append((exported.nr_devices, str(tuple(placed.spec)), result))
    return found


def gradients_over_eight_devices(export: Any) -> Any:
    mesh = _over_eight("xy")
    over_x = NamedSharding(mesh, PartitionSpec("x"))
    over_y = NamedSharding(mesh, PartitionSpec(None, "y"))

    def f(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.tanh(a @ b) ** 2, axis=0)

    exported = export.export(jax.jit(f, in_shardings=(over_x, over_y)))(x84, x84.T)
    results = []
    for e in (exported, copy_of(export, exported, vjp_order=2)):
        placed = e.in_shardings_jax(_over_eight("xy", backwards=True))

        def slope(a: Any, b: Any) -> Any:
            return jax.grad(lambda a: jnp.sum(e.call(a, b)))(a)  # noqa: B023

        second = jax.grad(lambda a, b: jnp.sum(slope(a, b) ** 2))
        results += [jax.jit(g, in_shardings=placed)(x84, x84.T) for g in (slope, second)]
    return results


def collectives_over_eight_devices(export: Any) -> Any:
    mesh = _over_eight()

    def mean(x: Any) -> Any:
        return x - jax.lax.pmean(x, "a")

    f = jax.jit(
        jax.shard_map(mean, mesh=mesh, in_specs=PartitionSpec("a"), out_specs=PartitionSpec("a")),
        in_shardings=NamedSharding(mesh, PartitionSpec("a")),
    )
    exported = export.export(f)(x84)
    results = []
    for e in (exported, copy_of(export, exported)):
        (placed,) = e.in_shardings_jax(_over_eight(backwards=True))
        results.append(e.call(jax.device_put(x84, placed)))
    return results


OVER_EIGHT_DEVICES: tuple[Callable[[Any], Any], ...] = (
    another_mesh_of_as_many_devices,
    two_axes_and_a_constraint_within,
    one_device_in_a_program_of_eight,
    arguments_that_are_spread_already,
    gradients_over_eight_devices,
    collectives_over_eight_devices,
)


def gradients_of_what_was_lowered() -> Any:
    """Second derivatives, on another mesh, of the bridge's functions of what JAX has exported."""
    import jax2tf_bridge as bridge
    from jax2tf_bridge import jax_export as of_the_bridge

    mesh, other = _over_eight(), _over_eight(backwards=True)
    f = jax.jit(lambda x: jnp.sin(x), in_shardings=NamedSharding(mesh, PartitionSpec("a")))
    exported = jax.export.export(f)(x84)
    results = []
    for portable in (
        bridge.from_exported(exported),
        bridge.deserialize(exported.serialize(vjp_order=2)),
    ):
        again: Any = of_the_bridge.Exported(portable)
        (placed,) = again.in_shardings_jax(other)

        def slope(x: Any) -> Any:
            return jnp.sum(jax.grad(lambda x: again.call(x).sum())(x))  # noqa: B023

        got = jax.jit(jax.grad(slope), in_shardings=placed)(x84)
        results.append([str(placed.spec[0]), np.asarray(got).tolist()])
    return results


def main(names: Sequence[str]) -> None:
    """Prints what the named programs give with each module, and the gradients."""
    from jax import export as jax_export

    from jax2tf_bridge import jax_export as of_the_bridge

    modules = (jax_export, of_the_bridge)
    functions = [f for f in OVER_EIGHT_DEVICES if f.__name__ in names]
    found = {f.__name__: [as_json(f(module)) for module in modules] for f in functions}
    json.dump({"programs": found, "gradients": gradients_of_what_was_lowered()}, sys.stdout)
