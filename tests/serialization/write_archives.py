"""The recipe of the files in tests/serialization/archives: run it under each release of JAX.

It needs JAX and flatbuffers alone, on the CPU:

    pip install 'jax[cpu]==0.4.30' 'numpy<2' absl-py flatbuffers
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python write_archives.py archives

For each function it writes what `Exported.serialize` gives, and beside it, as JSON, what the
Exported object says of itself, by which readers are compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

Json = Any
RELEASE = tuple(int(p) for p in jax.__version__.split(".")[:3])
Point = namedtuple("Point", ("x", "y"))


class Box:
    """A custom node with static data."""

    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


jax.tree_util.register_pytree_node(
    Box, lambda b: ((b.content,), b.label), lambda a, c: Box(c[0], a)
)


def trees() -> tuple[Any, int]:
    if not hasattr(export, "register_pytree_node_serialization"):
        argument: Any = {"b": [jnp.ones(2), None], "a": (jnp.ones(3), {})}
        return export.export(jax.jit(lambda t, *, k: (t["b"], t["a"][0] * k)))(argument, k=2.0), 1
    export.register_namedtuple_serialization(Point, serialized_name="archives.Point")
    export.register_pytree_node_serialization(
        Box,
        serialized_name="archives.Box",
        serialize_auxdata=str.encode,
        deserialize_auxdata=bytes.decode,
    )
    argument = {"b": [Box(jnp.ones(2), "red"), None], "a": (Point(jnp.ones(3), 1.0), {})}
    return export.export(jax.jit(lambda t, *, k: (t["b"], t["a"][0].x * k)))(argument, k=2.0), 1


def symbolic() -> tuple[Any, int]:
    scope = export.SymbolicScope(["b >= 3", "mod(b, 2) == 0", "h <= 100"])
    shapes = export.symbolic_args_specs(
        (jnp.ones((4, 6)), jnp.ones((4, 7))), ("b, h", "b, floordiv(h, 2) + b"), scope=scope
    )
    return export.export(jax.jit(lambda x, y: (x.sum(0), y.reshape(-1)), keep_unused=False))(
        *shapes
    ), 0


def keys() -> tuple[Any, int]:
    arguments = [jax.random.key(0, impl=i) for i in ("threefry2x32", "rbg", "unsafe_rbg")]
    return export.export(jax.jit(lambda *k: [jax.random.bits(x) for x in k] + [k[0]]))(
        *arguments
    ), 0


def sharded() -> tuple[Any, int]:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("x", "y"))

    def sharding(*spec: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    function = jax.jit(
        lambda a, b: (a + 1, b.sum()),
        in_shardings=(sharding("x"), sharding(None, ("y", "x"))),
        out_shardings=(sharding("x", None), sharding()),
    )
    return export.export(function)(jnp.ones((4, 2)), jnp.ones((3, 4, 5))), 0


def effect() -> tuple[Any, int]:
    # There is no public way to an effect that can be exported.
    from jax._src import effects
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    class Archived(effects.Effect):
        __str__ = lambda self: "archived"  # noqa: E731
        __eq__ = lambda self, other: isinstance(other, Archived)  # noqa: E731
        __hash__ = lambda self: 7  # noqa: E731

    Archived.__qualname__ = "Archived"
    for known in (
        effects.lowerable_effects,
        effects.ordered_effects,
        effects.control_flow_allowed_effects,
    ):
        known.add_type(Archived)
    primitive = Primitive("archived")
    primitive.def_effectful_abstract_eval(lambda x: (x, {Archived()}))

    def lower(context: Any, x: Any) -> list[Any]:
        context.set_tokens_out(context.tokens_in)
        return [x]

    mlir.register_lowering(primitive, lower)
    return export.export(jax.jit(lambda x: primitive.bind(x) + 1))(jnp.ones(2)), 0


def disabled() -> tuple[Any, int]:
    checks = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("mine")]
    function = export.export(
        jax.jit(lambda x: x + 1), platforms=["tpu", "cuda"], disabled_checks=checks
    )
    return function(jnp.ones((), np.int8)), 0


def dtypes() -> tuple[Any, int]:
    import ml_dtypes

    names = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    )
    names += " complex128 bfloat16 int4 uint4 float8_e4m3fn float8_e5m2"
    if RELEASE >= (0, 4, 38):
        names += " float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz"
    if RELEASE >= (0, 5, 3):
        names += " float8_e4m3 float8_e3m4 float8_e8m0fnu float4_e2m1fn"
    types = [np.dtype(getattr(ml_dtypes, n, None) or n) for n in names.split()]
    # Newer releases have it as jax.enable_x64.
    home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    with home.enable_x64(True):
        arguments = [jax.ShapeDtypeStruct((i,), t) for i, t in enumerate(types)]
        return export.export(jax.jit(lambda *a: a[::-1]))(*arguments), 0


def scalar_free() -> tuple[Any, int]:
    return export.export(jax.jit(lambda: None))(), 0


FUNCTIONS: dict[str, tuple[Callable[[], tuple[Any, int]], tuple[int, ...]]] = {
    # With the first release that can write it.
    "trees": (trees, (0, 4, 30)),
    "symbolic": (symbolic, (0, 4, 30)),
    "keys": (keys, (0, 6, 2)),
    "sharded": (sharded, (0, 4, 30)),
    "effect": (effect, (0, 4, 35)),
    "disabled": (disabled, (0, 4, 30)),
    "dtypes": (dtypes, (0, 4, 30)),
    "nothing": (scalar_free, (0, 4, 30)),
}


def tree(definition: Any) -> Json:
    """A pytree's structure, by the registered names of its types."""
    node = definition.node_data()
    children = [tree(child) for child in definition.children()]
    if node is None:
        return "leaf"
    if node[0] is type(None):
        return "none"
    name = {tuple: "tuple", list: "list", dict: "dict"}.get(node[0])
    if name == "dict":
        return ["dict", list(node[1]), children]
    if node[0] is Point:
        return ["namedtuple", ["archives.Point", "x", "y"], children]
    if node[0] is Box:
        return ["custom", ["archives.Box", node[1]], children]
    return [name, [], children]


def shardings(exported: Any, side: str) -> Json:
    """Shardings of the arguments or results, by XLA's bytes or by name."""
    hlo = [
        None if s is None else s.to_proto().SerializeToString().hex()
        for s in getattr(exported, f"{side}_shardings_hlo")
    ]
    named: list[Json] = []
    for s in getattr(exported, f"_{side}_named_shardings", None) or [None] * len(hlo):
        if s is None:
            named.append(None)
            continue
        mesh = s.mesh.abstract_mesh if hasattr(s.mesh, "abstract_mesh") else s.mesh
        device = getattr(mesh, "abstract_device", None)
        named.append(
            {
                "axes": [list(mesh.axis_names), list(mesh.axis_sizes)],
                "types": [t.name.lower() for t in mesh.axis_types],
                "device": device
                and [device.device_kind, getattr(device, "platform", None), device.num_cores],
                "partitions": [
                    [] if p is None else [p] if isinstance(p, str) else list(p) for p in s.spec
                ],
                "memory_kind": s.memory_kind,
            }
        )
    return {"hlo": hlo, "named": named}


def with_vjp(exported: Any, order: int) -> Any:
    """The same function with its VJP exported once and for all: a second time differs in names."""
    if not order:
        return exported
    vjp = with_vjp(exported.vjp(), order - 1)
    return dataclasses.replace(exported, _get_vjp=lambda _: vjp)


def describe(exported: Any, order: int) -> Json:
    """Describes an Exported object."""

    def avals(them: Any) -> Json:
        return [
            [[str(d) for d in a.shape], "float0" if a.dtype == jax.dtypes.float0 else str(a.dtype)]
            for a in them
        ]

    return {
        "fun_name": exported.fun_name,
        "in_tree": tree(exported.in_tree),
        "in_avals": avals(exported.in_avals),
        "out_tree": tree(exported.out_tree),
        "out_avals": avals(exported.out_avals),
        "in_shardings": shardings(exported, "in"),
        "out_shardings": shardings(exported, "out"),
        "nr_devices": exported.nr_devices,
        "platforms": list(exported.platforms),
        "ordered_effects": [str(type(e)) for e in exported.ordered_effects],
        "unordered_effects": [str(type(e)) for e in exported.unordered_effects],
        "disabled_safety_checks": [str(c) for c in exported.disabled_safety_checks],
        "module": hashlib.sha256(exported.mlir_module_serialized).hexdigest(),
        "calling_convention_version": exported.calling_convention_version,
        "module_kept_var_idx": list(exported.module_kept_var_idx),
        "uses_global_constants": exported.uses_global_constants,
        "vjp": describe(exported.vjp(), order - 1) if order else None,
    }


def main(folder: str) -> None:
    """Writes the files of this release of JAX into a folder of its own."""
    # Modules name the source files of their operations: without the folders of this machine.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    into = Path(folder) / jax.__version__
    into.mkdir(parents=True, exist_ok=True)
    for name, (make, first) in FUNCTIONS.items():
        if first > RELEASE:
            continue
        exported, order = make()
        exported = with_vjp(exported, order)
        (into / f"{name}.exported").write_bytes(exported.serialize(vjp_order=order))
        (into / f"{name}.json").write_text(json.dumps(describe(exported, order)) + "\n")
        print(jax.__version__, name)


if __name__ == "__main__":
    main(sys.argv[1])
