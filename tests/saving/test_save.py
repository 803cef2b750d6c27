"""save(): signatures, names, weights, gradients, and processing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    AUTO,
    DisabledSafetyCheck,
    PortableFunction,
    Processing,
    Signature,
    export,
    save,
    write_function,
)
from jax2tf_bridge.errors import FunctionError, GradientError

# Private: which weights are trainable, without saving a model.
from jax2tf_bridge.saving._variables import Weights
from jax2tf_bridge.signatures import make_valid_names
from tests.saving.saved_functions import DENSE, PARAMS, X, dense


class Moments(NamedTuple):
    mean: Any
    count: Any


@pytest.fixture(scope="module")
def dense_function() -> PortableFunction:
    return export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)


def test_names_dtypes_values_and_gradients(tmp_path: Path) -> None:
    params: Any = [{"w": np.ones((3, 2), np.float32)}, (np.float32(1),)]

    def f(params: Any, x: Any, *, scale: Any) -> Any:
        return {"y": x @ params[0]["w"] * scale + params[1][0], "m": [Moments(x.sum(), x > 1)]}

    portable = export(f, polymorphic_shapes=[None, "(b, 3)"])(params, X, scale=np.float32(2))
    saved = save(tmp_path / "m", portable)
    assert str(saved.signatures["serving_default"]) == (
        "(params_0_w: float32[3,2], params_1_0: float32[], x: float32[b,3], scale: float32[])"
        " -> (m_0_mean: float32[], m_0_count: bool[b,3], y: float32[b,2])"
    )
    assert saved.notes == ()
    loaded = tf.saved_model.load(tmp_path / "m")
    signature = loaded.signatures["serving_default"]
    x, w = tf.constant(X), tf.constant(params[0]["w"])
    inputs = {"params_0_w": w, "params_1_0": tf.constant(1.0), "x": x, "scale": tf.constant(2.0)}
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        results = signature(**inputs)
    np.testing.assert_allclose(results["y"], X @ w * 2 + 1)
    np.testing.assert_allclose(results["m_0_mean"], X.sum())
    np.testing.assert_array_equal(results["m_0_count"], X > 1)
    by_x, by_w = tape.gradient(results["y"], [x, w])
    np.testing.assert_allclose(by_x, np.full((2, 3), 4.0))
    np.testing.assert_allclose(by_w, 2 * X.sum(0)[:, None].repeat(2, 1))
    method = loaded.serving_default([{"w": w}, (1.0,)], x, scale=tf.constant(2.0))
    np.testing.assert_allclose(method["y"], results["y"])
    np.testing.assert_allclose(method["m"][0]["mean"], X.sum())


@pytest.mark.costly
def test_weights_are_variables_shared_by_all_signatures(tmp_path: Path) -> None:
    def total(params: Any, x: Any) -> Any:
        return dense(params, x).sum()

    signatures = {"serving_default": DENSE, "total": Signature(total, args=[X])}
    saved = save(tmp_path / "m", signatures, params=PARAMS)
    assert {name: str(aval) for name, aval in saved.weights.items()} == {
        "dense/bias": "float32[2]",
        "dense/kernel": "float32[3,2]",
        "steps": "int32[]",
    }
    assert saved.trainable == ("dense/bias", "dense/kernel")
    assert (
        str(saved.signatures["serving_default"]) == "(x: float32[b,3]) -> (output_0: float32[b,2])"
    )
    loaded = tf.saved_model.load(tmp_path / "m")
    assert [v.name for v in loaded.trainable_variables] == ["dense/bias:0", "dense/kernel:0"]
    np.testing.assert_allclose(loaded.serving_default(X), dense(PARAMS, X), rtol=1e-6)
    loaded.params["dense/bias"].assign([0.0, 0.0])
    changed = {**PARAMS, "dense": {**PARAMS["dense"], "bias": np.zeros(2, np.float32)}}
    np.testing.assert_allclose(loaded.serving_default(X), dense(changed, X), rtol=1e-6)
    np.testing.assert_allclose(loaded.total(x=X), total(changed, X), rtol=1e-6)
    with tf.GradientTape() as tape:
        loss = loaded.total(X)
    kernel = tape.gradient(loss, loaded.params["dense/kernel"])
    expected = jax.grad(lambda k: total({"dense": {**changed["dense"], "kernel": k}}, X))
    np.testing.assert_allclose(kernel, expected(PARAMS["dense"]["kernel"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("trainable", "names"),
    [
        (True, ("dense/bias", "dense/kernel")),
        (False, ()),
        (["dense/kernel"], ("dense/kernel",)),
        ("dense/kernel", ("dense/kernel",)),
        (["dense/"], ("dense/bias", "dense/kernel")),
        (["dense", "steps"], ("dense/bias", "dense/kernel")),
    ],
)
def test_which_weights_are_trainable(
    dense_function: PortableFunction, trainable: Any, names: Any
) -> None:
    weights = Weights(PARAMS, trainable)
    weights.for_function(dense_function)
    assert tuple(w.name for w in weights.weights() if w.variable.trainable) == names


def test_weights_that_are_not_trainable_are_loaded_so(
    dense_function: PortableFunction, tmp_path: Path
) -> None:
    options: Any = {"params": PARAMS, "trainable": ["dense/kernel"], "vjp_order": 0}
    saved = save(tmp_path / "m", dense_function, **options)
    assert saved.trainable == ("dense/kernel",)
    loaded = tf.saved_model.load(tmp_path / "m")
    assert [v.name for v in loaded.trainable_variables] == ["dense/kernel:0"]


def test_captured_arrays_become_variables_once(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)

    def f(x: Any) -> Any:
        return jax.jit(lambda x: jnp.sin(x @ weights))(x)

    def g(x: Any) -> Any:
        return (x @ weights).sum(1)

    signatures = {
        "f": Signature(f, args=[X], polymorphic_shapes="(b, 3)"),
        "g": Signature(g, args=[X], polymorphic_shapes="(b, 3)"),
    }
    saved = save(tmp_path / "m", signatures)
    assert [str(aval) for aval in saved.constants.values()] == ["float32[3,1000]"]
    assert weights.nbytes <= saved.variable_bytes < weights.nbytes + 2000
    graph = (tmp_path / "m" / "saved_model.pb").read_bytes()
    assert weights.tobytes()[:64] not in graph
    assert "captured arrays, now variables that are not trainable: 1, 0.0 MB" in str(saved)
    loaded = tf.saved_model.load(tmp_path / "m")
    assert not loaded.trainable_variables
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(x)
    np.testing.assert_allclose(y, f(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loaded.g(x), g(X), rtol=1e-5)
    expected = jax.grad(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.costly
def test_gradients_up_to_an_order(tmp_path: Path) -> None:
    def f(params: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(x @ params) ** 2)

    w = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)
    cube = Signature(f, args=[X], polymorphic_shapes="(b, 3)")
    assert (
        save(tmp_path / "m", cube, params=w, vjp_order=2).signatures["serving_default"].vjp_order
        == 2
    )
    loaded = tf.saved_model.load(tmp_path / "m")
    x, variable = tf.constant(X), loaded.params["params"]
    with tf.GradientTape() as second:
        second.watch(x)
        with tf.GradientTape() as first:
            first.watch(x)
            y = loaded.serving_default(x)
        by_x = first.gradient(y, x)
        square = tf.reduce_sum(by_x**2)
    by_x_x, by_x_w = second.gradient(square, [x, variable])

    def one(w: Any, x: Any) -> Any:
        return jax.grad(f, 1)(w, x)

    @jax.jit
    def expected(w: Any, x: Any) -> Any:
        return one(w, x), *jax.grad(lambda x, w: jnp.sum(one(w, x) ** 2), (0, 1))(x, w)

    for found, right in zip((by_x, by_x_x, by_x_w), expected(w, X), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)


def slope(f: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


@pytest.mark.parametrize(("order", "more"), [(0, 1), (1, 2)])
def test_the_order_above_says_how_to_get_it(order: int, more: int, tmp_path: Path) -> None:
    signature = Signature(lambda x: jnp.sum(x**3), args=[X])
    save(tmp_path / "m", signature, vjp_order=order)
    loaded = tf.saved_model.load(tmp_path / "m")
    x = tf.constant(X)
    message = (
        rf"The gradients of <lambda> were saved up to order {order}\. For more, save it with "
        rf"vjp_order={more}\."
    )
    f = loaded.serving_default
    with pytest.raises(LookupError, match=message):
        slope((lambda x: slope(f, x)) if order else f, x)


def test_a_function_without_a_gradient_is_saved(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x)

    saved = save(tmp_path / "m", Signature(f, args=[X]))
    (note,) = saved.notes
    assert note.startswith("saved without a gradient: f has no gradient: ")
    assert saved.signatures["serving_default"].vjp_order == 0
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m").serving_default(X), f(X))
    with pytest.raises(GradientError, match="f has no gradient"):
        save(tmp_path / "n", Signature(export(f)(X).with_vjp(1)))


def test_functions_and_files(tmp_path: Path) -> None:
    portable = export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    write_function(tmp_path / "f.jaxfn", portable, vjp_order=1)
    file = tmp_path / "f.jaxfn"
    # Empty options say nothing of the arguments, so they are no contradiction.
    with_empty = Signature(file, kwargs={}, polymorphic_constraints=[])
    signatures = {"a": portable, "b": with_empty, "c": str(file)}
    save(tmp_path / "m", signatures, params=PARAMS, vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    for method in (loaded.a, loaded.b, loaded.c):
        np.testing.assert_allclose(method(X), dense(PARAMS, X), rtol=1e-6)
    assert len(loaded.variables) == 3


def test_without_weights_beside_it(tmp_path: Path) -> None:
    plain = Signature(lambda x: x + 1, args=[X], takes_params=False)
    save(tmp_path / "m", {"dense": DENSE, "plain": plain}, params=PARAMS, vjp_order=0)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m").plain(X), X + 1)


def test_specifications_are_for_the_arguments_alone(tmp_path: Path) -> None:
    with_weights = [None, "(b, 3)"]
    signatures = {
        f"f{i}": Signature(dense, args=[X], polymorphic_shapes=shapes)
        for i, shapes in enumerate(["(b, 3)", ["(b, 3)"], [AUTO], AUTO, with_weights])
    }
    saved = save(tmp_path / "m", signatures, params=PARAMS, vjp_order=0)
    for name in signatures:
        assert str(saved.signatures[name]).startswith("(x: float32[b,3]) -> "), name


def test_inputs_and_outputs_are_renamed(tmp_path: Path) -> None:
    def f(image: Any, *, options: Any) -> Any:
        return {"logits": image * options["scale"]}, image.sum()

    signature = Signature(
        f,
        args=[X],
        kwargs={"options": {"scale": np.float32(2)}},
        input_names={"image": "picture", "options['scale']": "scale"},
        output_names=["scores", "total"],
    )
    saved = save(tmp_path / "m", signature, vjp_order=0).signatures["serving_default"]
    assert str(saved) == (
        "(picture: float32[2,3], scale: float32[]) -> (scores: float32[2,3], total: float32[])"
    )


def test_defaults(tmp_path: Path) -> None:
    def f(x: Any, scale: Any, *, shift: Any) -> Any:
        return x * scale + shift

    signature = Signature(
        f,
        args=[X, np.float32(0)],
        kwargs={"shift": np.float32(0)},
        defaults={"scale": 2.0, "shift": 1.0},
    )
    save(tmp_path / "m", signature, vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.serving_default(X), X * 2 + 1)
    np.testing.assert_array_equal(loaded.serving_default(X, 3.0, shift=0.0), X * 3)
    from tensorflow.core.protobuf import saved_model_pb2

    data = (tmp_path / "m" / "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(data).meta_graphs
    found = graph.signature_def["serving_default"].defaults
    assert {name: tf.make_ndarray(value).item() for name, value in found.items()} == {
        "scale": 2.0,
        "shift": 1.0,
    }


def test_processing_in_tensorflow_is_saved_with_it(tmp_path: Path) -> None:
    keys = tf.constant(["cat", "dog"])
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0, 1], tf.int32)), default_value=-1
    )
    names = tf.Variable(["feline", "canine"])

    def embed(params: Any, index: Any) -> Any:
        return {"vector": params[index], "index": index}

    signature = Signature(
        embed,
        args=[np.zeros(2, np.int32)],
        polymorphic_shapes="(b,)",
        processing=Processing(
            preprocess=lambda word: table.lookup(word),
            inputs={"word": tf.TensorSpec([None], tf.string)},
            postprocess=lambda vector, index: {"vector": vector, "kind": tf.gather(names, index)},
        ),
    )
    params = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    save(tmp_path / "m", signature, params=params)
    loaded = tf.saved_model.load(tmp_path / "m")
    for call in (loaded.serving_default, loaded.signatures["serving_default"]):
        results = call(word=tf.constant(["dog", "cat", "dog"]))
        np.testing.assert_array_equal(results["vector"], params[[1, 0, 1]])
        assert results["kind"].numpy().tolist() == [b"canine", b"feline", b"canine"]


@pytest.mark.parametrize("seed", ["key", "scalar"])
def test_random_functions_take_a_plain_seed(seed: Any, tmp_path: Path) -> None:
    def f(key: Any, x: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    key = jax.random.key(7)
    save(tmp_path / "m", Signature(f, args=[key, X], seed=seed), vjp_order=0)
    given = np.uint32(7) if seed == "scalar" else np.array([0, 7], np.uint32)
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded.serving_default(given, X), f(key, X), rtol=1e-6)


def test_no_arguments_and_no_results(tmp_path: Path) -> None:
    save(tmp_path / "a", Signature(lambda: jnp.ones(2)), vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "a")
    np.testing.assert_array_equal(loaded.signatures["serving_default"]()["output_0"], [1, 1])
    save(tmp_path / "b", Signature(lambda x: (), args=[X]), vjp_order=0)
    assert tf.saved_model.load(tmp_path / "b").serving_default(X) == ()


def test_narrow_integers_are_named_as_they_cross(tmp_path: Path) -> None:
    portable = export(lambda x: x.astype(jnp.int8))(np.ones(3, np.int8).astype(jnp.int4))
    saved = save(tmp_path / "m", portable).signatures["serving_default"]
    assert str(saved) == "(x: int8[3]) -> (output_0: int8[3])"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["x", "p['w']", "p['w'][0].mean"], ("x", "p_w", "p_w_0_mean")),
        (["x", "X", "x"], ("x", "X_1", "x_2")),
        (["a[0]", "a_0", "a_0_1"], ("a_0", "a_0_1", "a_0_1_1")),
        (["", "[0]['a b']", "['1']"], ("output_0", "output_0_a_b", "output_1")),
        (["self", "class", "classes"], ("output_self", "output_class", "classes")),
        (["['größe']", "['_']", "['a/b']"], ("gr_e", "output_0", "a_b")),
    ],
)
def test_valid_names(paths: list[str], names: tuple[str, ...]) -> None:
    assert make_valid_names(paths, "output") == names


def test_names_that_tensorflow_takes(tmp_path: Path) -> None:
    keys = ["a", "A", "größe", "self", "lambda", "tensors", "name", "1", "a/b c", "_", ""]
    portable = export(lambda p: {k: v + 1 for k, v in p.items()})({k: X for k in keys})
    saved = save(tmp_path / "m", portable, vjp_order=0).signatures["serving_default"]
    signature = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    results = signature(**{n: tf.constant(X) + i for i, n in enumerate(saved.inputs)})
    for i, name in enumerate(saved.outputs):
        np.testing.assert_array_equal(results[name], X + i + 1)


def test_checks_are_disabled_for_a_signature(tmp_path: Path) -> None:
    def chatty(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x * 2

    quiet = Signature(chatty, args=[X], disabled_checks=[DisabledSafetyCheck.debug_effects()])
    save(tmp_path / "m", quiet, vjp_order=0)
    np.testing.assert_allclose(tf.saved_model.load(tmp_path / "m").serving_default(X), 2 * X)
    wrong: Any = [DisabledSafetyCheck.debug_effects]
    for checks, text in ((wrong, "disabled check 0 must be"), ("debug_effects", "must be a list")):
        with pytest.raises(FunctionError, match=rf"{text}.*DisabledSafetyCheck.*Got: "):
            save(tmp_path / "n", Signature(chatty, args=[X], disabled_checks=checks))


def test_a_loaded_model_is_called_as_its_default_signature(tmp_path: Path) -> None:
    save(tmp_path / "one", {"predict": DENSE}, params=PARAMS)
    save(
        tmp_path / "two",
        {"other": Signature(jnp.sin, args=[X], takes_params=False), "serving_default": DENSE},
        params=PARAMS,
    )
    for name, method in (("one", "predict"), ("two", "serving_default")):
        model = tf.saved_model.load(str(tmp_path / name))
        np.testing.assert_array_equal(model(X), getattr(model, method)(X))


def test_a_model_without_a_default_signature_is_not_called(tmp_path: Path) -> None:
    signatures = {"sine": Signature(jnp.sin, args=[X]), "cosine": Signature(jnp.cos, args=[X])}
    save(tmp_path / "m", signatures)
    assert not callable(tf.saved_model.load(str(tmp_path / "m")))
