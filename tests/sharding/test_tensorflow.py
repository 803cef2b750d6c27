"""Sharded functions in TensorFlow: on one device with a warning; the TPU's annotations."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge as bridge
from jax2tf_bridge import DisabledSafetyCheck
from jax2tf_bridge.errors import ShardingError, UnsupportedByTargetError
from tests.sharding.meshes import X, by_parts, over, product, spread_product

ALLOWED = (DisabledSafetyCheck.shardings(),)


def converted(function: Any, checks: Sequence[DisabledSafetyCheck] = (), **options: Any) -> Any:
    return bridge.convert(function, native_serialization_disabled_checks=checks, **options)


def test_eager_mode_refuses() -> None:
    with pytest.raises(
        ShardingError,
        match=r"<lambda> is sharded over 8 devices, and was called in eager mode: a function with "
        r"sharded arguments or results must be used under a `tf\.function` context\. Wrap the "
        r"call in tf\.function\. .* with DisabledSafetyCheck\.shardings\(\) among",
    ):
        converted(jax.jit(lambda a: a * 2, in_shardings=over("x")))(X)
    with pytest.raises(ShardingError, match="was called in eager mode"):
        converted(jax.jit(lambda a: a * 2, out_shardings=over("x")))(X)


def test_eager_mode_runs_what_has_whole_arguments_and_results() -> None:
    def constrained(a: Any, unused: Any) -> Any:
        return jax.lax.with_sharding_constraint(a * 2, over("x"))

    # The sharding of an argument that the module does not take is ignored.
    function = jax.jit(constrained, in_shardings=(over(), over("x")), out_shardings=over())
    with pytest.warns(UserWarning, match="constrained is sharded over 8 devices, and eager Tens"):
        result = converted(function)(X, X)
    np.testing.assert_allclose(result, X * 2)


def test_graphs_run_it_on_one_device_and_warn_once() -> None:
    function = converted(spread_product())

    @tf.function
    def value_and_slope(a: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(a)
            result = function(a, w)
        return result, tape.gradient(result, a)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for rows in (8, 16, 8):  # traced twice
            a = np.tile(X, (rows // 8, 1))
            found, slope = value_and_slope(tf.constant(a), tf.constant(X))
            expected, pull = jax.vjp(product, a, X)
            np.testing.assert_allclose(found, expected, atol=1e-5)
            np.testing.assert_allclose(slope, pull(np.ones_like(a))[0], atol=1e-4)
    # TensorFlow's AutoGraph has warnings of its own on Python 3.13.
    (only,) = (each for each in caught if each.category is UserWarning)
    assert only.filename == __file__
    assert str(only.message) == (
        "product is sharded over 8 devices, and TensorFlow on cpu, cuda and rocm runs it as a "
        "whole on one device. The values are the same. If the memory and time of one device are "
        "enough, DisabledSafetyCheck.shardings() among the disabled checks turns this warning off. "
        "To run it on all of them, serve it on TPU, inside tf.function, exported with "
        'platforms=["tpu"].'
    )
    graph = value_and_slope.get_concrete_function(tf.constant(X), tf.constant(X)).graph
    assert sum(op.type == "XlaSharding" for op in graph.get_operations()) == 3 + 3 + 2


def test_the_warning_names_the_platforms_of_the_function() -> None:
    platforms = ["cpu", "tpu"]
    two = converted(spread_product(), native_serialization_platforms=platforms)
    with pytest.warns(UserWarning, match="TensorFlow on cpu runs it as a whole"):
        tf.function(two)(X, X)


@pytest.mark.parametrize("jitted", [True, False])
def test_open_sizes_may_be_constrained(jitted: bool) -> None:
    def constrained(a: Any) -> Any:
        a = jax.jit(jnp.sin, in_shardings=over("y"), out_shardings=over(None, "x"))(a)
        return jax.lax.with_sharding_constraint(jnp.concatenate([a, a]), over("x"))

    function: Any = constrained
    if jitted:
        function = jax.jit(constrained, in_shardings=over("x"), out_shardings=over("x", "y"))
    open_sizes = converted(function, ALLOWED, polymorphic_shapes="(8*b, _)")

    @tf.function(autograph=False)
    def slope(a: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(a)
            result = open_sizes(a)
        return result, tape.gradient(result, a)

    for rows in (8, 16):
        x = np.tile(X, (rows // 8, 1))
        found, pulled = slope(tf.constant(x))
        np.testing.assert_allclose(found, np.concatenate([np.sin(x)] * 2), atol=1e-6)
        np.testing.assert_allclose(pulled, 2 * np.cos(x), atol=1e-5)


def test_a_retargeted_function_is_still_known_to_be_sharded() -> None:
    portable = bridge.export(spread_product())(X, X)
    again = bridge.retarget(portable, bridge.Target.tensorflow("2.21"))
    assert (
        again.module.calling_convention_version == portable.module.calling_convention_version == 10
    )
    with pytest.raises(UnsupportedByTargetError, match="it holds sharding annotations"):
        bridge.retarget(portable, bridge.Target.tensorflow("2.17"))


@pytest.mark.parametrize("how", ["eager", "graph", "compiled"])
def test_allowed_it_gives_the_same_values_and_gradients(how: str) -> None:
    function = converted(spread_product(), ALLOWED)

    def value_and_slopes(a: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([a, w])
            result = function(a, w)
        return result, tape.gradient(result, [a, w])

    run: Any = value_and_slopes
    if how != "eager":
        run = tf.function(value_and_slopes, jit_compile=how == "compiled")
    found, slopes = run(tf.constant(X), tf.constant(X))
    expected, pull = jax.vjp(product, X, X)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for slope, wanted in zip(slopes, pull(np.ones_like(X)), strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-4)


@pytest.fixture
def gspmd() -> Iterator[None]:
    """JAX's older partitioner, whose modules older releases of TensorFlow read too."""
    before = getattr(jax.config, "jax_use_shardy_partitioner")  # noqa: B009 - not in its type
    jax.config.update("jax_use_shardy_partitioner", False)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


def test_modules_of_gspmd_run_on_every_release(gspmd: None) -> None:
    portable = bridge.export(spread_product(), disabled_checks=ALLOWED)(X, X)
    assert portable.tensorflow_releases[0] == "2.15"
    np.testing.assert_allclose(bridge.to_tf(portable)(X, X), product(X, X), atol=1e-5)
    slopes = bridge.to_tf(portable.vjp())(X, X, np.ones_like(X))
    for slope, wanted in zip(slopes, jax.vjp(product, X, X)[1](np.ones_like(X)), strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-4)
    with pytest.raises(ShardingError, match=r"computes on each device's part separately"):
        converted(by_parts(), ALLOWED)(X)


def test_modules_of_shardy_need_a_release_that_reads_them() -> None:
    portable = bridge.export(spread_product(), disabled_checks=ALLOWED)(X, X)
    assert portable.tensorflow_releases == ("2.20", "2.21", "2.22")


def test_a_model_of_it_is_saved_and_loaded(tmp_path: Path) -> None:
    module = tf.Module()
    signature = [tf.TensorSpec([8, 8]), tf.TensorSpec([8, 8])]
    function = converted(spread_product(), ALLOWED)
    module.f = tf.function(function, input_signature=signature, autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.f(X, X), product(X, X), atol=1e-5)


def test_what_computes_by_parts_cannot_be_allowed() -> None:
    function = converted(by_parts(), ALLOWED)
    text = r"computes on each device's part separately \(jax\.shard_map\), so it cannot run on"
    for run in (function, tf.function(function)):
        with pytest.raises(ShardingError, match=text):
            run(X)
    portable = bridge.export(by_parts(), platforms=["cpu"], disabled_checks=ALLOWED)(X)
    stored = bridge.deserialize(bridge.serialize(portable))
    with pytest.raises(ShardingError, match=text):
        bridge.to_tf(stored, with_gradient=False)(X)


def test_the_check_is_stored_and_jax_is_not_told() -> None:
    portable = bridge.export(spread_product(), platforms=["cpu"], disabled_checks=ALLOWED)(X, X)
    stored = bridge.deserialize(bridge.serialize(portable.with_vjp()))
    assert stored.module.disabled_checks == ALLOWED
    found = bridge.to_tf(stored)(X, X)
    np.testing.assert_allclose(found, product(X, X), atol=1e-5)
    assert bridge.to_exported(portable).disabled_safety_checks == ()
    (op,) = _nodes(tf.function(bridge.to_tf(portable)), "XlaCallModule", X, X)
    assert list(op.attr["disabled_checks"].list.s) == []


def _nodes(function: Any, kind: str, *args: Any) -> Iterator[Any]:
    graph = function.get_concrete_function(*map(tf.constant, args)).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return (node for node in nodes if node.op == kind)


def for_tpu(function: Any) -> Any:
    return tf.function(converted(function, native_serialization_platforms=["tpu"]))


def test_for_the_tpu_arguments_and_results_are_annotated() -> None:
    nodes = list(_nodes(for_tpu(spread_product()), "XlaSharding", X, X))
    listed = [node.attr["_XlaSharding"].s for node in nodes]
    assert [node.attr["sharding"].s for node in nodes] == listed
    # Each is an xla.OpSharding: type OTHER, tiles, devices; copies lie along the last dimension.
    last = b"\x30\x01"
    rows = b"\x08\x03\x1a\x03\x02\x01\x04\x22\x08\x00\x01\x02\x03\x04\x05\x06\x07" + last
    columns = b"\x08\x03\x1a\x03\x01\x04\x02\x22\x08\x00\x04\x01\x05\x02\x06\x03\x07" + last
    blocks = b"\x08\x03\x1a\x02\x02\x04\x22\x08\x00\x01\x02\x03\x04\x05\x06\x07"
    assert listed == [rows, columns, blocks]
    grids = [node.attr["_XlaShardingV2"].s for node in nodes]
    # The same with a grid, that is transposed, in the place of the list.
    assert grids[1] == b"\x08\x03\x1a\x03\x01\x04\x02" + last + b"\x4a\x02\x02\x04\x52\x02\x01\x00"
    assert all(grids)


def test_the_annotation_of_what_is_everywhere_has_no_devices() -> None:
    function = jax.jit(product, in_shardings=(over("x"), over()), out_shardings=None)
    nodes = list(_nodes(for_tpu(function), "XlaSharding", X, X))
    assert len(nodes) == 2
    assert nodes[1].attr["_XlaSharding"].s in (b"\x08\x00", b"")
    assert nodes[1].attr["_XlaShardingV2"].s == b""


def test_gradients_for_the_tpu_are_annotated_too() -> None:
    function = for_tpu(spread_product())

    @tf.function
    def slope(a: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(a)
            result = function(a, w)
        return tape.gradient(result, a)

    assert len(list(_nodes(slope, "XlaSharding", X, X))) >= 3 + 3 + 2


def test_shard_map_may_be_built_for_the_tpu_and_runs_nowhere_else() -> None:
    function = for_tpu(by_parts())
    assert len(list(_nodes(function, "XlaSharding", X))) == 2
    with pytest.raises(tf.errors.NotFoundError, match="platform CPU is not among the platforms"):
        function(X)


def test_models_are_saved_for_the_tpu_or_with_a_warning(tmp_path: Path) -> None:
    everywhere = bridge.export(spread_product())(X, X)
    with pytest.warns(UserWarning, match="product is sharded over 8 devices"):
        bridge.save(tmp_path / "everywhere", everywhere)
    served = tf.saved_model.load(str(tmp_path / "everywhere")).signatures["serving_default"]
    (found,) = served(**{name: tf.constant(X) for name in ("a", "w")}).values()
    np.testing.assert_allclose(found, product(X, X), atol=1e-5)
    bridge.save(tmp_path / "tpu", bridge.export(by_parts(), platforms=["tpu"])(X))
    assert b"_XlaShardingV2" in (tmp_path / "tpu" / "saved_model.pb").read_bytes()


def test_without_the_ops_a_function_on_one_device_has_no_annotation() -> None:
    function = tf.function(converted(jax.jit(product)))
    assert list(_nodes(function, "XlaSharding", X, X)) == []


def test_what_xla_has_no_words_for_is_an_error() -> None:
    portable = bridge.export(spread_product(), platforms=["tpu"])(X, X)
    mesh = bridge.portable.AbstractMesh(("x", "y"), (2, 4), ("auto", "auto"))
    partial = bridge.portable.Sharding(mesh, (("x",), ()), unreduced=("y",))
    odd = replace(portable, in_shardings=(partial, None))
    with pytest.raises(ShardingError, match=r"unreduced=\{'y'\}.* cannot express"):
        tf.function(bridge.to_tf(odd, with_gradient=False)).get_concrete_function(
            tf.constant(X), tf.constant(X)
        )
