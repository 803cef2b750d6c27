"""Converted functions saved by plain tf.saved_model.save, loaded in a process without JAX."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert, export
from jax2tf_bridge.to_tensorflow import to_tf
from tests.tensorflow_process import run_in_tensorflow

X = np.array([[0.5, 1.0, 2.0]], np.float32)


def model(x: Any) -> Any:
    return jnp.sin(x) * x


def until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.all(v < 10), lambda v: v * 2, x)


def save(path: Path, f: Any, **options: Any) -> None:
    module = tf.Module()
    module.f = tf.function(f, input_signature=[tf.TensorSpec((None, 3))], autograph=False)
    tf.saved_model.save(module, path, options=tf.saved_model.SaveOptions(**options))


CONSUMER = """
import sys
import numpy as np, tensorflow as tf
x = tf.constant([[0.5, 1.0, 2.0]])

def gradient(f, order):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gradient(f, order - 1) if order > 1 else f(x)
    return tape.gradient(y, x)

for path in sys.argv[1:]:
    f = tf.saved_model.load(path).f
    results = [f(x)]
    assert f(tf.ones((4, 3))).shape == (4, 3)
    for order in (1, 2):
        try:
            results.append(gradient(f, order))
        except LookupError as e:
            results.append(str(e).replace("\\n", " "))
    for result in results:
        print(result if isinstance(result, str) else result.numpy().tolist())
assert "jax" not in sys.modules
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Runs each model in the consumer, which prints its result and two orders of its gradient."""
    root = tmp_path_factory.mktemp("models")
    portable = export(model, polymorphic_shapes="(b, _)")(X)
    models: dict[str, Any] = {
        "default": (convert(model, polymorphic_shapes="(b, _)"), {}),
        "with gradients": (
            convert(model, polymorphic_shapes="(b, _)"),
            {"experimental_custom_gradients": True},
        ),
        "without gradients": (
            convert(model, polymorphic_shapes="(b, _)"),
            {"experimental_custom_gradients": False},
        ),
        "with_gradient=False": (
            convert(model, polymorphic_shapes="(b, _)", with_gradient=False),
            {},
        ),
        "while_loop": (convert(until_large, polymorphic_shapes="(b, _)"), {}),
        "record": (to_tf(portable), {}),
        "record of order 0": (to_tf(portable.with_vjp(0)), {}),
        "record of order 1": (to_tf(portable.with_vjp(1)), {}),
    }
    for name, (f, options) in models.items():
        save(root / name, f, **options)
    out = run_in_tensorflow(CONSUMER, *(str(root / name) for name in models)).splitlines()
    return {name: out[3 * i : 3 * i + 3] for i, name in enumerate(models)}


def numbers(line: str) -> Any:
    return np.array([[float(n) for n in line.strip("[]").split(",")]])


@pytest.mark.parametrize("name", ["default", "with gradients", "record", "record of order 1"])
def test_first_order_is_saved(loaded: dict[str, list[str]], name: str) -> None:
    value, gradient, _ = loaded[name]
    np.testing.assert_allclose(numbers(value), model(X), rtol=1e-6)
    expected = jax.grad(lambda x: jnp.sum(model(x)))(X)
    np.testing.assert_allclose(numbers(gradient), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["default", "with gradients", "record"])
def test_second_order_ends_clearly(loaded: dict[str, list[str]], name: str) -> None:
    assert (
        "tf.saved_model.save stores only the first-order gradient of model, so the gradient of "
        "model has none." in loaded[name][2]
    )


def test_last_order_of_a_function_ends_clearly(loaded: dict[str, list[str]]) -> None:
    assert "only VJPs of lower orders were made" in loaded["record of order 1"][2]
    assert "only VJPs of lower orders were made" in loaded["record of order 0"][1]


def test_values_without_gradients(loaded: dict[str, list[str]]) -> None:
    for name in ("without gradients", "with_gradient=False", "record of order 0"):
        np.testing.assert_allclose(numbers(loaded[name][0]), model(X), rtol=1e-6)
    assert "No gradient defined" in loaded["without gradients"][1]


def test_reasons_are_saved(loaded: dict[str, list[str]]) -> None:
    value, *gradients = loaded["while_loop"]
    np.testing.assert_allclose(numbers(value), [[4, 8, 16]])
    for text in gradients:
        assert "until_large has no gradient: Reverse-mode differentiation does not work" in text
    for text in loaded["with_gradient=False"][1:]:
        assert "model was converted with with_gradient=False" in text


def test_gradient_that_was_traced_before_saving_has_every_order(tmp_path: Path) -> None:
    """The advice of the message about orders that are not saved."""
    f = convert(model, polymorphic_shapes="(b, _)")

    def second(x: Any) -> Any:
        y = f(x)
        for _ in range(2):
            (y,) = tf.gradients(y, [x])
        return y

    save(tmp_path / "m", second)
    loaded = tf.saved_model.load(tmp_path / "m").f
    expected = jax.grad(lambda x: jnp.sum(jax.grad(lambda v: jnp.sum(model(v)))(x)))(X)
    np.testing.assert_allclose(loaded(X), expected, rtol=1e-5)


def test_saving_traces_the_function_no_second_time(tmp_path: Path) -> None:
    traces = []

    def traced(x: Any) -> Any:
        traces.append(x.shape)
        return jnp.sin(x)

    save(tmp_path / "m", convert(traced, polymorphic_shapes="(b, _)"))
    assert len(traces) == 1


def test_saved_in_the_process_that_made_it_and_trained_on(tmp_path: Path) -> None:
    """Variables that are arguments stay variables, with gradients, after loading."""
    module = tf.Module()
    module.params = {"w": tf.Variable(np.ones((3, 1), np.float32)), "b": [tf.Variable(1.0)]}
    f = convert(lambda p, x: x @ p["w"] + p["b"][0], polymorphic_shapes=[None, "(b, _)"])
    module.f = tf.function(
        lambda x: f(module.params, x), input_signature=[tf.TensorSpec((None, 3))]
    )
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    w = loaded.params["w"]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.f(X))
    np.testing.assert_allclose(tape.gradient(loss, w), X.T)
    w.assign(2 * w)
    np.testing.assert_allclose(loaded.f(X), X.sum(1, keepdims=True) * 2 + 1)


def test_saves_although_a_rule_has_no_gradient(tmp_path: Path) -> None:
    """JAX has a derivative rule for svd, which refuses full_matrices."""
    module = tf.Module()
    module.f = tf.function(
        convert(lambda x: jnp.linalg.svd(x, full_matrices=True)[0] ** 2),
        input_signature=[tf.TensorSpec([3, 2], tf.float32)],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path))
    assert tf.saved_model.load(str(tmp_path)).f(tf.ones([3, 2])).shape == (3, 3)


@pytest.mark.parametrize("kind", ["cond", "switch_case", "while_loop"])
def test_gradients_of_control_flow_around_it_after_loading(kind: str, tmp_path: Path) -> None:
    weight = np.float32(2)
    sine = convert(lambda x: jnp.sin(x) * x * weight, polymorphic_shapes="(b,)")

    def choose(flag: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        if kind == "cond":
            return tf.cond(flag, lambda: sine(x), lambda: x)
        if kind == "switch_case":
            return tf.switch_case(tf.cast(flag, tf.int32), [lambda: x, lambda: sine(x)])
        times = tf.cast(flag, tf.int32)
        return tf.while_loop(lambda i, y: i < times, lambda i, y: (i + 1, sine(y)), (0, x))[1]

    module = tf.Module()
    specs = [tf.TensorSpec([], tf.bool), tf.TensorSpec([None], tf.float32)]
    module.choose = tf.function(choose, autograph=False, input_signature=specs)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    x = tf.constant([1.0, 2.0])
    expected = weight * (np.cos(x) * x + np.sin(x))
    for choice in (module.choose, tf.saved_model.load(str(tmp_path)).choose):
        for flag, gradient in ((True, expected), (False, [1.0, 1.0])):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = choice(flag, x)
            np.testing.assert_allclose(tape.gradient(y, x), gradient, rtol=1e-5)
