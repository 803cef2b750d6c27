"""Programs as users of jax.export write them, over whichever module has its names.

Each takes the module, jax.export or the bridge's, and gives what the two have to agree on.
"""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

x24 = np.arange(8, dtype=np.float32).reshape(2, 4) / 5


def struct(shape: Any, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def refuses(call: Callable[[], Any], *errors: type[Exception]) -> bool:
    """Returns whether the call raises one of the errors."""
    try:
        call()
    except errors:
        return True
    return False


def copy_of(export: Any, exported: Any, vjp_order: int = 0) -> Any:
    """Reads a function back from its bytes."""
    return export.deserialize(exported.serialize(vjp_order=vjp_order))


def fields(export: Any) -> Any:
    def f(x: Any, unused: Any, *, tree: Any) -> Any:
        return {"sum": x + tree["a"], "pair": (tree["b"], [x * 2])}

    tree = {"b": np.int32(3), "a": np.float32(2)}
    exported = export.export(jax.jit(f))(x24, x24, tree=tree)
    return {
        "name": exported.fun_name,
        "platforms": exported.platforms,
        "devices": exported.nr_devices,
        "kept": exported.module_kept_var_idx,
        "effects": [exported.ordered_effects, exported.unordered_effects],
        "checks": [str(c) for c in exported.disabled_safety_checks],
        "sizes": exported.uses_global_constants,
        "shapes": [[*aval.shape] for aval in (*exported.in_avals, *exported.out_avals)],
        "dtypes": [str(aval.dtype) for aval in (*exported.in_avals, *exported.out_avals)],
        "shardings": [exported.in_shardings_hlo, exported.out_shardings_hlo],
        "bytes": isinstance(exported.mlir_module_serialized, bytes),
        "text": "stablehlo.add" in exported.mlir_module(),
        "version": export.minimum_supported_calling_convention_version
        <= exported.calling_convention_version
        <= export.maximum_supported_calling_convention_version,
        "results": exported.call(x24, x24, tree=tree),
    }


def types(export: Any) -> Any:
    args = ((x24, np.int32(3)), {"scale": np.float32(2)})
    exported = export.export(jax.jit(lambda pair, tree: (pair[0] * tree["scale"], pair[1])))(*args)
    renamed = dataclasses.replace(exported, fun_name="renamed")
    return {
        "trees": [
            exported.in_tree == jax.tree.structure((args, {})),
            exported.out_tree == jax.tree.structure((0, 0)),
            exported.in_tree.num_leaves,
        ],
        "dtypes": [exported.in_avals[0].dtype == jnp.float32, exported.in_avals[0].shape == (2, 4)],
        "avals": [str(aval) for aval in (*exported.in_avals, *exported.out_avals)],
        "renamed": [renamed.fun_name, copy_of(export, renamed).fun_name],
        "result": renamed.call(*args),
        "text": str(exported),
    }


def numbers(export: Any) -> Any:
    half = jnp.ones(3, jnp.bfloat16)
    exported = export.export(jax.jit(lambda x, scale: (x * scale, scale + 1)))(half, 2.0)
    product, number = exported.call(half, 3.0)
    again = copy_of(export, exported)
    weak = [[aval.weak_type for aval in e.in_avals] for e in (exported, again)]
    return weak, str(product.dtype), str((number * half).dtype), product


def traced_arguments(export: Any) -> Any:
    seen = []

    def outer(x: Any, y: Any) -> Any:
        exported = export.export(jax.jit(lambda x, y: jnp.sum(x * y["a"])))(x, {"a": y})
        seen.append([str(aval) for aval in exported.in_avals])
        return exported.call(x, {"a": y})

    results = [jax.jit(outer)(x24, 2.0), jax.grad(outer)(x24, np.float32(2))]
    return results, seen


def static_arguments(export: Any) -> Any:
    f = jax.jit(lambda x, n, *, c: x * n + c, static_argnums=1, static_argnames="c")
    exported = export.export(f)(x24, 3, c=0.5)
    return exported.call(x24), len(exported.in_avals)


def bytes_and_back(export: Any) -> Any:
    exported = export.export(jax.jit(lambda x: jnp.sin(x) * x))(x24)
    data = exported.serialize()
    again = export.deserialize(bytearray(data))
    assert isinstance(again, export.Exported)
    return type(data).__name__, again.fun_name, again.call(x24), again.has_vjp()


def derivatives_of_orders(export: Any) -> Any:
    def f(x: Any) -> Any:
        return 7 * x * x * x

    exported = export.export(jax.jit(f))(struct(()))
    again = copy_of(export, exported, vjp_order=2)
    first = jax.grad(again.call)
    second = jax.grad(first)
    third = jax.grad(second)
    found = [exported.has_vjp(), again.has_vjp(), again.vjp().vjp().has_vjp()]
    results = [g(np.float32(0.5)) for g in (again.call, first, second)]
    beyond = refuses(lambda: third(np.float32(0.5)), ValueError, LookupError)
    return found, results, beyond, jax.grad(jax.grad(jax.grad(exported.call)))(np.float32(0.5))


def vjp_called(export: Any) -> Any:
    def f(x: Any, n: Any) -> Any:
        return x**2 * n, n + 1

    exported = export.export(jax.jit(f))(x24, np.int32(3))
    vjp = exported.vjp()
    float0 = np.zeros((), jax.dtypes.float0)
    cotangent, of_integer = vjp.call(x24, np.int32(3), x24, float0)
    shapes = [[*aval.shape] for aval in (*vjp.in_avals, *vjp.out_avals)]
    return shapes, cotangent, str(of_integer.dtype)


def several_platforms(export: Any) -> Any:
    def f(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    exported = export.export(jax.jit(f), platforms=["tpu", "cpu", "cuda"])(struct((2, 4)))
    again = copy_of(export, exported, vjp_order=1)
    return [
        (e.platforms, e.call(x24), jax.jit(e.call)(x24), jax.grad(lambda x: e.call(x).sum())(x24))  # noqa: B023
        for e in (exported, again)
    ]


def another_platform(export: Any) -> Any:
    elsewhere = export.export(jax.jit(jnp.cos), platforms=["tpu"])(x24)
    checks = [export.DisabledSafetyCheck.platform()]
    unchecked = export.export(jax.jit(jnp.cos), platforms=["tpu"], disabled_checks=checks)(x24)
    refused = refuses(lambda: elsewhere.call(x24), ValueError)
    checks = [str(c) for c in unchecked.disabled_safety_checks]
    return export.default_export_platform(), refused, checks, unchecked.call(x24)


def custom_calls(export: Any) -> Any:
    def f(x: Any) -> Any:
        return jax.ffi.ffi_call("a_call", struct((2, 4)))(x)

    refused = refuses(lambda: export.export(jax.jit(f))(x24), ValueError)
    check = export.DisabledSafetyCheck.custom_call("a_call")
    allowed = export.export(jax.jit(f), disabled_checks=[check])(x24)
    other = export.DisabledSafetyCheck.platform()
    checks = [str(c) for c in allowed.disabled_safety_checks]
    return refused, checks, check.is_custom_call(), other.is_custom_call()


def open_sizes(export: Any) -> Any:
    def f(x: Any) -> Any:
        return jnp.concatenate([x, x], axis=1).reshape(-1)

    b, a = export.symbolic_shape("b, a")
    exported = export.export(jax.jit(f))(struct((b, a)))
    (dimension,) = exported.out_avals[0].shape
    return {
        "size": str(dimension),
        "symbolic": [export.is_symbolic_dim(d) for d in (dimension, b, 3)],
        "results": [e.call(x24[:1]) for e in (exported, copy_of(export, exported))],
        "rank": refuses(lambda: exported.call(x24[0]), ValueError),
        "dtype": refuses(lambda: exported.call(x24.astype(np.int32)), ValueError),
    }


def sizes_by_specifications(export: Any) -> Any:
    def f(tree: Any, y: Any) -> Any:
        return tree["x"] @ tree["w"] + y

    args = {"x": x24, "w": np.ones((4, 3), np.float32)}, np.ones((2, 1), np.float32)
    specs = export.symbolic_args_specs(args, [{"x": "b, _", "w": None}, "b, ..."])
    exported = export.export(jax.jit(f))(*specs)
    texts = [[str(d) for d in aval.shape] for aval in (*exported.in_avals, *exported.out_avals)]
    wrong = refuses(lambda: exported.call(args[0], np.ones((3, 1), np.float32)), ValueError)
    return texts, exported.call(*args), wrong


def constraints(export: Any) -> Any:
    scope = export.SymbolicScope(("n >= 2", "mod(n, 2) == 0", "m >= n"))
    n = export.symbolic_shape("n, 4", scope=scope)
    m = export.symbolic_shape("m, 4", scope=scope)

    def f(x: Any, y: Any) -> Any:
        return y[: x.shape[0]] + x, x.reshape(2, -1)

    exported = export.export(jax.jit(f))(struct(n), struct(m))
    y = np.ones((3, 4), np.float32)
    odd = refuses(lambda: exported.call(y, y), ValueError)
    fewer = refuses(lambda: exported.call(np.ones((4, 4), np.float32), y), ValueError)
    again = copy_of(export, exported)
    return exported.call(x24, y), again.call(x24, y), odd, fewer


def values_of_sizes(export: Any) -> Any:
    def f(x: Any) -> Any:
        return jnp.sum(x, axis=0) / x.shape[0], jnp.arange(x.shape[0])

    exported = export.export(jax.jit(f))(struct(export.symbolic_shape("b, 4")))
    gradient = jax.grad(lambda x: jnp.sum(exported.call(x)[0] ** 2))
    return exported.call(x24), exported.call(x24[:1]), gradient(x24)


def one_in_another(export: Any) -> Any:
    inner = export.export(jax.jit(lambda x: jnp.sin(x).reshape(-1)))(
        struct(export.symbolic_shape("2*b, 4"))
    )

    def outer(x: Any) -> Any:
        return inner.call(jnp.concatenate([x, x])) * 2

    exported = export.export(jax.jit(outer))(struct(export.symbolic_shape("c, 4")))
    again = copy_of(export, exported, vjp_order=1)
    gradient = jax.jit(jax.grad(lambda x: again.call(x).sum()))
    sizes = [str(d) for d in exported.out_avals[0].shape]
    unknown = refuses(
        lambda: export.export(jax.jit(inner.call))(struct(export.symbolic_shape("c, 4"))),
        ValueError,
    )
    return sizes, exported.call(x24), again.call(x24), gradient(x24), unknown


def custom_nodes(export: Any) -> Any:
    # Types and names are registered once in a process.
    suffix = export.__name__

    class Layer:
        def __init__(self, w: Any, scale: int) -> None:
            self.w, self.scale = w, scale

    jax.tree_util.register_pytree_node(
        Layer, lambda layer: ((layer.w,), layer.scale), lambda scale, leaves: Layer(*leaves, scale)
    )
    registered = export.register_pytree_node_serialization(
        Layer,
        serialized_name=f"documented.Layer of {suffix}",
        serialize_auxdata=lambda scale: str(scale).encode(),
        deserialize_auxdata=lambda data: int(data.decode()),
    )
    pair = namedtuple("pair", "first second")
    named = export.register_namedtuple_serialization(
        pair, serialized_name=f"documented.pair of {suffix}"
    )
    twice = refuses(
        lambda: export.register_namedtuple_serialization(pair, serialized_name="other"), ValueError
    )

    def f(layer: Any) -> Any:
        return pair(layer.w * layer.scale, Layer(layer.w, layer.scale + 1))

    exported = export.export(jax.jit(f))(Layer(x24, 3))
    first, second = copy_of(export, exported).call(Layer(x24, 3))
    return registered is Layer, named is pair, twice, first, second.w, second.scale


def transformations(export: Any) -> Any:
    exported = export.export(jax.jit(lambda x: jnp.tanh(x) ** 2))(x24)

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: exported.call(y), x)

    def condition(x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, exported.call, lambda y: y, x)

    checkpointed = jax.checkpoint(lambda x: exported.call(x).sum())
    forward = refuses(lambda: jax.jvp(exported.call, (x24,), (x24,)), TypeError)
    batched = refuses(lambda: jax.vmap(exported.call)(np.stack([x24, x24])), NotImplementedError)
    results = [jax.jit(g)(x24) for g in (exported.call, loop, condition, jax.grad(checkpointed))]
    return results, forward, batched


def keys(export: Any) -> Any:
    exported = export.export(jax.jit(lambda key: jax.random.normal(key, (3,))))(jax.random.key(0))
    return [e.call(jax.random.key(5)) for e in (exported, copy_of(export, exported))]


def structure_of_arguments(export: Any) -> Any:
    exported = export.export(jax.jit(lambda x, *, y: x + y))(x24, y=x24)
    wrong = [
        lambda: exported.call(x24, x24),
        lambda: exported.call(x24),
        lambda: exported.call([x24], y=x24),
    ]
    return exported.call(x24, y=x24), [refuses(call, ValueError) for call in wrong]


PROGRAMS: tuple[Callable[[Any], Any], ...] = (
    fields,
    types,
    numbers,
    traced_arguments,
    static_arguments,
    bytes_and_back,
    derivatives_of_orders,
    vjp_called,
    several_platforms,
    another_platform,
    custom_calls,
    open_sizes,
    sizes_by_specifications,
    constraints,
    values_of_sizes,
    one_in_another,
    custom_nodes,
    transformations,
    keys,
    structure_of_arguments,
)


def as_json(value: Any) -> str:
    """Writes what a program gives: arrays as lists of numbers of five digits."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, (np.ndarray, jax.Array, np.generic)):
            return np.round(np.asarray(leaf, np.float64), 5).tolist()
        return leaf

    return json.dumps(jax.tree_util.tree_map(plain, value))
