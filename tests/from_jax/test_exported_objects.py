"""to_exported() and retarget(): functions as JAX's exported functions, and for TensorFlow."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction, Target, from_exported, retarget, to_exported
from jax2tf_bridge.errors import ModuleError, StructureError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import jax_compat
from jax2tf_bridge.portable import (
    NodeCodec,
    StoredGradient,
    TreeSpec,
    are_types_checked,
    mark_types_checked,
)
from tests.serialization.records import changed

x34 = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


@partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["scale"])
@dataclass
class Layer:
    """A node with static data."""

    w: Any
    scale: int


def _on_cpu(f: Any, shapes: Any = None, **options: Any) -> Any:
    return bridge.export(f, polymorphic_shapes=shapes, platforms=["cpu"], **options)


def test_values_gradients_and_second_gradients() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jnp.sin(x) ** 3, axis=1)

    exported = to_exported(_on_cpu(f, "(b, 4)")(x34))
    for rows in (1, 3):
        x = x34[:rows]

        def total(g: Any, x: Any) -> Any:
            return jnp.sum(g(x))

        def slope(g: Any, x: Any) -> Any:
            return jnp.sum(jax.grad(partial(total, g))(x) ** 2)

        def every_order(g: Any, x: Any) -> Any:
            return g(x), jax.grad(partial(total, g))(x), jax.grad(partial(slope, g))(x)

        got, expected = (jax.jit(partial(every_order, g))(x) for g in (exported.call, f))
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-5)
        np.testing.assert_allclose(got[2], expected[2], rtol=1e-4, atol=1e-6)


def test_vjps_are_made_when_they_are_asked_for() -> None:
    portable = _on_cpu(jnp.sin)(x34)
    exported = to_exported(portable)
    made_before = portable.gradient.vjp
    assert made_before is None
    assert exported.has_vjp()
    exported.vjp()
    assert portable.gradient.vjp is not None
    assert not to_exported(portable.with_vjp(0)).has_vjp()


def test_without_the_private_field_the_vjps_that_are_there_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portable = _on_cpu(jnp.sin)(x34)
    monkeypatch.setattr(jax_compat, "_GET_VJP", "no_such_field")
    assert not to_exported(portable).has_vjp()
    exported = to_exported(portable.with_vjp(1))
    assert exported.has_vjp()
    got = jax.grad(lambda x: jnp.sum(exported.call(x)))(x34)
    np.testing.assert_allclose(got, np.cos(x34), rtol=1e-6)


def test_structure_keywords_static_data_and_dropped_arguments() -> None:
    def f(layer: Layer, unused: Any, tree: Any, *, offset: Any) -> Any:
        return {3: layer.w * layer.scale + offset, 1: (tree["b"], [tree["a"], None])}

    args = (Layer(x34, 5), x34, {"b": np.int32(2), "a": np.ones(2, np.float32)})
    portable = _on_cpu(f)(*args, offset=x34)
    exported = to_exported(portable)
    assert exported.module_kept_var_idx == (0, 2, 3, 4)
    got = exported.call(*args, offset=x34)
    expected = f(*args, offset=x34)
    structures: list[Any] = [jax.tree_util.tree_structure(tree) for tree in (got, expected)]
    assert structures[0] == structures[1]
    jax.tree_util.tree_map(partial(np.testing.assert_allclose, rtol=1e-6), got, expected)
    with pytest.raises(ValueError, match="pytree structure"):
        exported.call(Layer(x34, 6), *args[1:], offset=x34)


def test_a_type_that_is_not_known_is_an_error() -> None:
    portable = pickle.loads(pickle.dumps(_on_cpu(lambda p: p.w)(Layer(x34, 5)), protocol=4))
    spec = portable.in_tree.children[0].children[0]
    unknown = replace(spec, codec=None, serialized_name="my.Layer")
    tree = portable.in_tree
    arguments = replace(tree.children[0], children=(unknown,))
    opaque = replace(portable, in_tree=replace(tree, children=(arguments, tree.children[1])))
    message = r"(?s)here: my.Layer\. Register them before .*- register_pytree_node_serialization"
    with pytest.raises(StructureError, match=message):
        to_exported(opaque)


class _Point(NamedTuple):
    a: Any
    b: Any


def test_fields_in_another_order_here_are_an_error() -> None:
    portable = _on_cpu(lambda p: p.a - p.b)(_Point(x34, x34[0]))
    np.testing.assert_allclose(to_exported(portable).call(_Point(x34, x34[0])), x34 - x34[0])
    arguments, keywords = portable.in_tree.children
    (spec,) = arguments.children

    def with_argument(changed: TreeSpec) -> PortableFunction:
        children = (replace(arguments, children=(changed,)), keywords)
        changed_tree = replace(portable.in_tree, children=children)
        changed_function: PortableFunction = replace(portable, in_tree=changed_tree)
        return changed_function

    codec = NodeCodec(
        _Point, spec.codec.flatten, lambda children: _Point(b=children[0], a=children[1])
    )
    other = replace(spec, keys=("b", "a"), codec=codec)
    message = r"(?s)arguments of <lambda> are flattened in another order here.*fields of a named"
    with pytest.raises(StructureError, match=message):
        to_exported(with_argument(other))
    unsorted = TreeSpec("dict", keys=("b", "a"), children=spec.children)
    with pytest.raises(StructureError, match=message):
        to_exported(with_argument(unsorted))
    swapped = replace(
        portable, out_tree=unsorted, out_avals=(*portable.out_avals, *portable.out_avals)
    )
    with pytest.raises(StructureError, match="results of <lambda> are flattened in another"):
        to_exported(swapped)


def test_constraints_are_known_to_jax_again() -> None:
    portable = _on_cpu(
        lambda x: x[2:].reshape(2, -1), "(2*b, n)", polymorphic_constraints=["b >= 2", "n >= 3"]
    )(np.ones((6, 4), np.float32))
    exported = to_exported(portable)
    assert from_exported(exported).constraints == ("b >= 2", "n >= 3")
    assert exported.call(np.ones((8, 3), np.float32)).shape == (2, 9)
    on_host = replace(portable, in_avals=(replace(portable.in_avals[0], memory_space="host"),))
    assert str(to_exported(on_host).in_avals[0]) == "float32<host>[2*b,n]"
    with pytest.raises(ValueError, match=r"n >= 3"):
        exported.call(np.ones((8, 2), np.float32))


def test_several_platforms_and_64_bits() -> None:
    def f(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)

    portable = bridge.export(f)(x34)
    assert len(portable.platforms) == 4
    np.testing.assert_allclose(to_exported(portable).call(x34), x34 + 1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(to_exported(portable).call(x34), x34 + 1)


def test_64_bits_under_constraints_stay_64_bits_without_x64() -> None:
    with jax.enable_x64(True):
        portable = _on_cpu(jnp.sin, "(b,)", polymorphic_constraints=["b >= 2"])(x34[0].astype("f8"))
    exported = to_exported(portable)
    assert [str(a) for a in (*exported.in_avals, *exported.out_avals)] == ["float64[b]"] * 2
    assert from_exported(exported).constraints == ("b >= 2",)
    with jax.enable_x64(True):
        x = x34[0].astype(np.float64)
        np.testing.assert_allclose(exported.call(x), np.sin(x), rtol=1e-12)


def test_a_mesh_of_one_device_is_no_mesh() -> None:
    sharding = NamedSharding(Mesh(jax.devices()[:1], ("x",)), PartitionSpec("x"))
    sine = jax.jit(jnp.sin, in_shardings=sharding, out_shardings=sharding)
    for f in (sine, jax.jit(lambda x: sine(x) * 1)):
        exported = jax_export.export(f, platforms=["cpu"])(x34)
        portable = from_exported(exported)
        assert b"sdy" in exported.mlir_module_serialized
        assert b"sdy" not in portable.module.data + portable.vjp().module.data
        assert portable.tensorflow_releases[0] == "2.15"
        np.testing.assert_allclose(to_exported(portable).call(x34), np.sin(x34), rtol=1e-6)
        archive = bridge.deserialize(exported.serialize())
        assert b"sdy" not in retarget(archive).module.data
        np.testing.assert_allclose(to_exported(archive).call(x34), np.sin(x34), rtol=1e-6)


def test_4_bit_values_are_4_bit_values_for_jax() -> None:
    def f(x: Any, y: Any) -> Any:
        return x.astype(jnp.int8) * 2, y

    x = np.array([-8, 7, 3]).astype(ml_dtypes.int4)
    y = np.array([15, 0, 3]).astype(ml_dtypes.uint4)
    portable = _on_cpu(f, "b")(x, y)
    exported = to_exported(portable)
    assert [str(a.dtype) for a in exported.in_avals] == ["int4", "uint4"]
    doubled, same = exported.call(x, y)
    assert doubled.tolist() == [-16, 14, 6]
    assert same.dtype == jnp.uint4
    assert np.asarray(same).astype(int).tolist() == [15, 0, 3]
    # And back: TensorFlow reads them as 8 bits.
    again = from_exported(exported)
    assert again.module.stablehlo_version == portable.module.stablehlo_version
    assert [a.dtype for a in again.in_avals] == ["int4", "uint4"]
    assert are_types_checked(again)
    # The types of a file are compared with its module, which takes 4-bit or 8-bit values.
    data = exported.serialize()
    archive = bridge.deserialize(data)
    for stored in (pickle.loads(pickle.dumps(portable)), archive):
        assert not are_types_checked(stored)
        assert to_exported(stored).call(x, y)[0].tolist() == [-16, 14, 6]
    signs = (replace(archive.in_avals[0], dtype="uint4"), archive.in_avals[1])
    with pytest.raises(ModuleError, match=r"argument 0: the portable function says uint4\[b\]"):
        to_exported(replace(archive, in_avals=signs))


def test_typed_keys() -> None:
    portable = _on_cpu(lambda key: jax.random.split(key)[0])(jax.random.key(3))
    got = to_exported(portable).call(jax.random.key(5))
    expected = jax.random.split(jax.random.key(5))[0]
    assert (jax.random.key_data(got) == jax.random.key_data(expected)).all()
    assert from_exported(to_exported(portable)).in_avals == portable.in_avals


def _top_two(x: Any) -> Any:
    return jax.lax.top_k(x, 2)


def test_retarget_writes_for_another_release_with_the_gradients_that_are_there() -> None:
    portable = _on_cpu(_top_two, target=Target.tensorflow("2.19"))(x34).with_vjp(1)
    older = retarget(portable, Target.tensorflow("2.16"))
    assert older.module.stablehlo_version == (0, 17, 7)
    assert older.tensorflow_releases[0] == "2.16"
    stored = pickle.loads(pickle.dumps(older))
    assert stored.vjp().module.stablehlo_version == (0, 17, 7)
    assert retarget(portable.with_vjp(0)).module.stablehlo_version == (0, 14, 24)
    assert not retarget(portable.with_vjp(0)).has_vjp


def test_retarget_says_what_the_release_cannot() -> None:
    def batched(x: Any, i: Any) -> Any:
        return jax.vmap(lambda row, j: row[j])(x, i)

    # As JAX lowers it: with gathers that have batching dimensions, from StableHLO 1.1 on.
    shapes = jax_export.symbolic_args_specs((x34, np.zeros((3, 2), np.int32)), ("b, 4", "b, 2"))
    exported = jax_export.export(jax.jit(batched), platforms=["cpu"])(*shapes)
    newer = from_exported(exported, target=Target.tensorflow("2.19"))
    with pytest.raises(UnsupportedByTargetError, match=r"first TensorFlow .* is 2.18"):
        retarget(newer, Target.tensorflow("2.15"))
    primal = _on_cpu(jnp.sin)(x34).with_vjp(1)
    with_newer = replace(primal, gradient=StoredGradient(newer))
    with pytest.raises(UnsupportedByTargetError, match=r"portable.with_vjp\(0\) drops"):
        retarget(with_newer, Target.tensorflow("2.15"))


def test_a_module_that_cannot_be_read() -> None:
    portable: PortableFunction = _on_cpu(jnp.sin)(x34)
    damaged = changed(portable, module=portable.module.data[: len(portable.module.data) // 2])
    with pytest.raises(ModuleError, match="cannot read the module of sin"):
        retarget(damaged)
    newer = changed(damaged, stablehlo_version=(99, 0, 0))
    mark_types_checked(newer)  # as if our own reader could read it
    with pytest.raises(ModuleError, match=r"written at StableHLO 99.0.0.*upgrade JAX"):
        to_exported(newer)


def test_types_that_are_not_the_functions_are_refused() -> None:
    portable = _on_cpu(jnp.sin)(x34)
    wrong = replace(portable, out_avals=(replace(portable.out_avals[0], dtype="float64"),))
    with pytest.raises(ModuleError, match="does not match its portable function"):
        retarget(wrong)
    stored = pickle.loads(pickle.dumps(wrong))
    with pytest.raises(ModuleError, match=r"(?s)module of sin .*result 0: .* float64\[3,4\]"):
        to_exported(stored)
    damaged = changed(stored, module=portable.module.data[: len(portable.module.data) // 2])
    with pytest.raises(ModuleError, match="module of sin cannot be read"):
        to_exported(damaged)
    with pytest.raises(ModuleError, match="several platforms"):
        to_exported(changed(pickle.loads(pickle.dumps(portable)), platforms=("cpu", "tpu")))


def test_types_of_stored_vjps_are_compared_where_all_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portable = pickle.loads(pickle.dumps(_on_cpu(jnp.sin)(x34).with_vjp(1)))
    vjp = portable.vjp()
    wrong = replace(vjp, out_avals=(replace(vjp.out_avals[0], dtype="int32"),))
    monkeypatch.setattr(jax_compat, "_GET_VJP", "no_such_field")
    assert to_exported(portable).has_vjp()
    with pytest.raises(ModuleError, match=r"result 0: the portable function says int32"):
        to_exported(replace(portable, gradient=StoredGradient(wrong)))
