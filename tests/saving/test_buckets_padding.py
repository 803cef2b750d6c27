"""Functions with buckets answer as without: for all sizes, eagerly and traced, differentiated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.saving.buckets import Bucketing, pad_to_buckets
from tests.sampling import sampled
from tests.saving.bucketed_functions import NamedFunction, named, traced, without_weights

Array = Any
BUCKETS = {"b": (2, 4, 8)}
SIZES = (0, 1, 2, 3, 4, 5, 8, 9, 16, 19)
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(x: Any) -> Any:
    return jnp.tanh(x @ WEIGHTS)


def both(function: NamedFunction, bucketing: Bucketing) -> list[Any]:
    """Yields the function as it is called eagerly, and as it is saved."""
    call = pad_to_buckets(without_weights(function), bucketing)
    return [call, traced(call, bucketing)]


class Recorded:
    """A function that notes the shapes that it is called with when it runs."""

    def __init__(self, function: Any, name: str) -> None:
        self.function, self.name = function, name
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, tensors: Any) -> Any:
        def note(shape: Any) -> Any:
            self.shapes.append(tuple(shape.numpy().tolist()))
            return shape

        x = tensors[self.name]
        with tf.control_dependencies([tf.py_function(note, [tf.shape(x)], tf.int32)]):
            return self.function({**tensors, self.name: tf.identity(x)})


@pytest.fixture(scope="module")
def plain() -> NamedFunction:
    function: NamedFunction = named(layer, numbers(4, 3))
    return function


@pytest.mark.slow
@pytest.mark.parametrize("oversize", ["split", "as is"])
def test_values_and_gradients_of_the_first_and_second_order(
    plain: NamedFunction, oversize: Any
) -> None:
    by_x = jax.grad(lambda x: jnp.sin(layer(x)).sum())
    second = jax.grad(lambda x: jnp.sin(by_x(x)).sum())
    for call in both(plain, plain.bucketing(BUCKETS, oversize=oversize)):
        for size in SIZES:
            x = numbers(size, 3, seed=size)
            tensor = tf.constant(x)
            with tf.GradientTape() as outer:
                outer.watch(tensor)
                with tf.GradientTape() as tape:
                    tape.watch(tensor)
                    y = call({"x": tensor})["output_0"]
                    total = tf.reduce_sum(tf.sin(y))
                gradient = tape.gradient(total, tensor)
                again = tf.reduce_sum(tf.sin(gradient))
            np.testing.assert_allclose(y, layer(x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(gradient, by_x(x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(outer.gradient(again, tensor), second(x), atol=1e-5)


def test_only_buckets_reach_the_function(plain: NamedFunction) -> None:
    expected = {0: [2], 1: [2], 2: [2], 3: [4], 8: [8], 9: [8, 2], 16: [8, 8], 19: [8, 8, 4]}
    for oversize in ("split", "as is"):
        bucketing = plain.bucketing(BUCKETS, oversize=oversize)
        recorded = Recorded(plain, "x")
        call = pad_to_buckets(without_weights(recorded), bucketing)
        for run in (call, traced(call, bucketing)):
            for size, sizes in expected.items():
                recorded.shapes.clear()
                run({"x": tf.constant(numbers(size, 3))})
                seen = [shape[0] for shape in recorded.shapes]
                assert seen == ([size] if size > 8 and oversize == "as is" else sizes), (
                    size,
                    oversize,
                )


def test_static_sizes_stay_static(plain: NamedFunction) -> None:
    call = plain.pad_to_buckets(BUCKETS)
    for size in (3, 4, 19):

        def f(x: Any, size: int = size) -> Any:
            y = call({"x": x})["output_0"]
            assert y.shape.as_list() == [size, 2]
            return y

        tf.function(f, autograph=False)(tf.constant(numbers(size, 3)))
    concrete = tf.function(lambda x: call({"x": x})["output_0"], autograph=False)
    spec = tf.TensorSpec((None, 3), tf.float32)
    assert concrete.get_concrete_function(spec).outputs[0].shape.as_list() == [None, 2]


def test_a_size_that_is_a_bucket_is_not_copied(plain: NamedFunction) -> None:
    seen = []

    def call(tensors: Any) -> Any:
        seen.append(tensors["x"])
        return {"output_0": tensors["x"][:, :2]}

    x = tf.constant(numbers(4, 3))
    pad_to_buckets(without_weights(call), plain.bucketing(BUCKETS))({"x": x})
    assert seen[0] is x


def test_dimensions_that_are_expressions() -> None:
    def f(x: Any, y: Any) -> Any:
        return {"a": 2 * x, "b": jnp.concatenate([y, y]), "c": x.reshape(-1, 2) * 3}

    function = named(f, numbers(8, 3), numbers(5), shapes=("(2*b, 3)", "(b + 1,)"))
    for call in both(function, function.bucketing({"b": (2, 4)}, oversize="as is")):
        for size in (1, 2, 3, 4, 5):
            x, y = numbers(2 * size, 3), numbers(size + 1)
            results = call({"x": tf.constant(x), "y": tf.constant(y)})
            np.testing.assert_array_equal(results["a"], 2 * x)
            # Results that depend on the place of the padding are wrong; `save` detects them.
            assert results["b"].shape == (2 * size + 2,)
            np.testing.assert_array_equal(results["c"], x.reshape(-1, 2) * 3)


@pytest.mark.parametrize("oversize", ["split", pytest.param("as is", marks=pytest.mark.slow)])
def test_two_variables_and_results_in_which_they_stand_elsewhere(oversize: Any) -> None:
    def f(x: Any, y: Any, scale: Any) -> Any:
        return {"t": jnp.transpose(x, (1, 2, 0)) * scale, "y": y + 1, "s": scale * 2}

    args = (numbers(2, 5, 3), np.ones(2, np.int32), np.float32(2))
    function = named(f, *args, shapes=("(b, l, 3)", "(b,)", None))
    bucketing = function.bucketing({"b": (1, 4), "l": (4, 6)}, oversize=oversize)
    for call in both(function, bucketing):
        for b, length in ((0, 5), (1, 1), (3, 6), (4, 4), (9, 14), (2, 0), (6, 3)):
            x, y = numbers(b, length, 3), np.arange(b, dtype=np.int32)
            results = call({"x": tf.constant(x), "y": tf.constant(y), "scale": tf.constant(3.0)})
            np.testing.assert_allclose(results["t"], np.transpose(x, (1, 2, 0)) * 3)
            np.testing.assert_array_equal(results["y"], y + 1)
            np.testing.assert_array_equal(results["s"], 6)


def test_a_mask_tells_what_is_real() -> None:
    def mean(x: Any, mask: Any) -> Any:
        return (x * mask[:, None]).sum(0) / jnp.maximum(mask.sum(), 1)

    for dtype in (np.float32, np.int32, np.bool_):
        function = named(mean, numbers(2, 3), np.ones(2, dtype), shapes=("(b, 3)", "(b,)"))
        for call in both(function, function.bucketing(BUCKETS, mask="mask", oversize="as is")):
            for size in (1, 3, 4, 9):
                x = numbers(size, 3)
                result = call({"x": tf.constant(x)})["output_0"]
                np.testing.assert_allclose(result, x.mean(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(call({"x": tf.zeros((0, 3))})["output_0"], [0, 0, 0])


@pytest.mark.costly
def test_a_mask_of_two_dimensions() -> None:
    def softmax(x: Any, mask: Any) -> Any:
        return jax.nn.softmax(jnp.where(mask, x, -jnp.inf), -1)

    args = (numbers(2, 3), np.ones((2, 3), np.bool_))
    function = named(softmax, *args, shapes=("(b, l)", "(b, l)"))
    bucketing = function.bucketing(
        {"b": (2, 4), "l": (4, 8)}, mask="mask", oversize={"b": "split", "l": "as is"}
    )
    for call in both(function, bucketing):
        for b, length in ((1, 3), (4, 8), (3, 9), (9, 5)):
            x = numbers(b, length)
            result = call({"x": tf.constant(x)})["output_0"]
            np.testing.assert_allclose(result, jax.nn.softmax(x, -1), rtol=1e-5, atol=1e-6)


# One that is no number, one that NumPy lacks, and one that is wide.
FEW = ("bool", "bfloat16", "complex64")


@pytest.mark.parametrize("dtype", sampled(DTYPES, every=100, keep=FEW))
def test_dtypes(dtype: str) -> None:
    with jax.enable_x64(True):
        function = named(lambda x: x[:, ::-1], jnp.zeros((2, 3)).astype(dtype))
    for oversize in ("split", "as is"):
        for call in both(function, function.bucketing(BUCKETS, oversize=oversize)):
            for size in (0, 1, 9):
                x = np.arange(3 * size).reshape(size, 3).astype(jnp.dtype(dtype))
                y = call({"x": tf.constant(x)})["output_0"]
                assert y.dtype == tf.as_dtype(dtype)
                np.testing.assert_array_equal(y.numpy(), x[:, ::-1])


def test_sizes_that_contradict_each_other() -> None:
    function = named(lambda x, y: x + y, numbers(2, 3), numbers(2, 3), shapes=["(b, 3)", "(b, 3)"])
    eager, saved = both(function, function.bucketing(BUCKETS))
    for x_size, y_size in ((3, 4), (1, 2), (9, 10), (0, 1)):
        tensors = {"x": tf.constant(numbers(x_size, 3)), "y": tf.constant(numbers(y_size, 3))}
        message = rf"f: y: expected shape \(b, 3\), got.*{y_size}.*: b is.*{x_size}"
        for call in (eager, saved):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                call(tensors)


def test_sizes_that_no_value_gives() -> None:
    function = named(lambda x: x * 2, numbers(4), shapes="(2*b,)")
    for call in both(function, function.bucketing(BUCKETS, oversize="as is")):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"\(2\*b,\), got.*5.*: Division had remainder"
        ):
            call({"x": tf.constant(numbers(5))})
    function = named(lambda x: x * 2, numbers(4), shapes="(b + 1,)")
    for call in both(function, function.bucketing(BUCKETS, oversize="as is")):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Expected value >= 0 for dimension variable b"
        ):
            call({"x": tf.constant(numbers(0))})


def test_names_and_ranks(plain: NamedFunction) -> None:
    call = plain.pad_to_buckets(BUCKETS)
    with pytest.raises(StructureError) as caught:
        call({"X": tf.constant(numbers(3, 3))})
    assert str(caught.value) == (
        "f:\n  - the input 'x' is missing\n  - the input 'X' is not expected"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"got \(3,\): the rank must be 2"):
        call({"x": tf.constant(numbers(3))})
    function = named(lambda x, m: x[:, 0] * m, numbers(2, 3), numbers(2), shapes=["(b, 3)", "(b,)"])
    with pytest.raises(
        StructureError, match="the mask 'm' is filled in automatically; do not pass it"
    ):
        function.pad_to_buckets(BUCKETS, mask="m")({"x": numbers(3, 3), "m": numbers(3)})


def test_an_unknown_rank_is_checked_when_it_runs(plain: NamedFunction) -> None:
    call = plain.pad_to_buckets(BUCKETS)
    f = tf.function(
        lambda x: call({"x": x})["output_0"],
        input_signature=[tf.TensorSpec(None, tf.float32)],
        autograph=False,
    )
    x = numbers(3, 3)
    np.testing.assert_allclose(f(tf.constant(x)), layer(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError):
        f(tf.constant(numbers(3)))


@pytest.mark.parametrize("oversize", ["split", "as is"])
def test_in_a_saved_model_with_gradients(
    plain: NamedFunction, oversize: Any, tmp_path: Path
) -> None:
    call = plain.pad_to_buckets(BUCKETS, oversize=oversize)
    module = tf.Module()
    module.f = tf.function(
        lambda x: call({"x": x}),
        input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")],
        autograph=False,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), signatures={"s": module.f}, options=options)
    loaded = tf.saved_model.load(str(tmp_path))

    def by_x(x: Any) -> Any:
        y = np.tanh(x @ WEIGHTS)
        return (2 * y * (1 - y**2)) @ WEIGHTS.T

    for size in (0, 3, 8, 19):
        x = numbers(size, 3)
        tensor = tf.constant(x)
        for f in (loaded.f, loaded.signatures["s"]):
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                y = f(x=tensor)["output_0"]
                total = tf.reduce_sum(y**2)
            np.testing.assert_allclose(y, layer(x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(tape.gradient(total, tensor), by_x(x), rtol=1e-4, atol=1e-5)
