"""The operations that guard sizes: where they run, how many they are, what they compute."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from jax2tf_bridge import convert
from jax2tf_bridge.emitters import SizeAlgebra
from jax2tf_bridge.to_tensorflow import to_tf
from shape_poly import DimExpr
from tests import strategies
from tests.sampling import examples
from tests.to_tensorflow.shape_checking import (
    assertions,
    double,
    function_of,
    squares,
    words,
)


def in_a_loop(f: Any) -> Any:
    def loop(x: Any) -> Any:
        return tf.while_loop(
            lambda i, _: i < 2,
            lambda i, v: (i + 1, f(v)),
            (0, x),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        )[1]

    return loop


@pytest.mark.parametrize("jit_compile", [None, True])
@pytest.mark.parametrize(
    "around",
    [
        in_a_loop,
        lambda f: lambda x: tf.cond(tf.reduce_sum(x) > -1.0, lambda: f(x), lambda: x),
        lambda f: lambda x: tf.map_fn(f, x[None])[0],
        lambda f: lambda x: tf.function(f, autograph=False)(x),
    ],
    ids=["while_loop", "cond", "map_fn", "call"],
)
def test_inside_control_flow(around: Any, jit_compile: bool | None) -> None:
    f = to_tf(function_of(lambda x: jnp.abs(x), ["b, 2*b"]))
    function = tf.function(
        around(f),
        input_signature=[tf.TensorSpec([None, None])],
        autograph=False,
        jit_compile=jit_compile,
    )
    np.testing.assert_array_equal(function(tf.ones((2, 4))), np.ones((2, 4)))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(tf.ones((2, 5)))
    text = "x: expected shape (b, 2*b), got (2, 5): 2*b is 4 for b = 2"
    assert jit_compile or words(text) in words(str(caught.value))


def test_in_a_dataset() -> None:
    f = to_tf(function_of(squares, ["2*b"]))
    data = tf.data.Dataset.from_tensor_slices(tf.ones(7)).batch(4).map(f)
    results = iter(data)
    assert next(results).shape == (4,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Division had remainder"):
        next(results)


def test_guards_run_before_the_module() -> None:
    f = tf.function(
        to_tf(function_of(double, ["b, 2*b"])),
        input_signature=[tf.TensorSpec([None, None])],
        autograph=False,
    ).get_concrete_function()
    first, second = assertions(f)
    assert first in second.control_inputs
    (module,) = [op for op in f.graph.get_operations() if op.type == "XlaCallModule"]
    assert second in module.control_inputs


def test_a_graph_without_automatic_control_dependencies_is_guarded_too() -> None:
    f = to_tf(function_of(double, ["b, 2*b"]))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, None])
        (y,) = f(x)
        assert session.run(y, {x: np.ones((2, 4))}).shape == (2, 4)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(y, {x: np.ones((2, 5))})
    assert words("got (2, 5): 2*b is 4 for b = 2") in words(str(caught.value))


def test_how_many_operations_it_takes() -> None:
    """An open batch size is the usual case: its shape, the size, the comparison, the Assert."""

    def operations(spec: Any) -> list[str]:
        f = tf.function(
            to_tf(function_of(double, ["b, 28"])), input_signature=[spec], autograph=False
        ).get_concrete_function()
        return [op.type for op in f.graph.get_operations()]

    static = operations(tf.TensorSpec([2, 28]))
    assert "Assert" not in static
    added = operations(tf.TensorSpec([None, 28]))
    for kind in static:
        added.remove(kind)
    assert sorted(k for k in added if k != "Const") == ["Assert", "GreaterEqual", "Shape", "Unpack"]


def test_constants_that_need_64_bits() -> None:
    portable = replace(function_of(double, ["b"]), constraints=("5000000000*b <= 15000000000",))
    f = tf.function(to_tf(portable), input_signature=[tf.TensorSpec([None])], autograph=False)
    assert f(tf.ones(3))[0].shape == (3,)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(tf.ones(4))
    assert words("5000000000*b is 20000000000 for b = 4") in words(str(caught.value))


@settings(deadline=None, max_examples=examples(30))
@given(strategies.expressions, strategies.assignments, st.sets(st.sampled_from("abc")))
def test_tensors_compute_as_python_does(
    x: DimExpr, values: dict[str, int], known: set[str]
) -> None:
    algebra = SizeAlgebra(tf.int64)
    mixed = {
        name: value if name in known else tf.constant(value, tf.int64)
        for name, value in values.items()
    }
    expected = x.evaluate(values)
    result = x.evaluate_with(mixed, algebra)
    assert int(result) == (expected + 2**63) % 2**64 - 2**63
    assert isinstance(result, int) or x.variables() - known


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
def test_lite_models_convert_and_run() -> None:
    """LiteRT has no Assert: its converter leaves them out.

    TensorFlow's own converter reads no reduction by a maximum that keeps NaN; save_litert does.
    """
    weights = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    f = convert(
        lambda x: jax.nn.sigmoid(x @ weights), polymorphic_shapes="(2*b, 4)", with_gradient=False
    )
    function = tf.function(f, input_signature=[tf.TensorSpec([None, 4])], autograph=False)
    concrete = function.get_concrete_function()
    assert assertions(concrete)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], tf.Module())
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    for size in (2, 6):
        x = np.linspace(0, 1, 4 * size, dtype=np.float32).reshape(size, 4)
        (argument,) = interpreter.get_input_details()
        interpreter.resize_tensor_input(argument["index"], x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(argument["index"], x)
        interpreter.invoke()
        (result,) = interpreter.get_output_details()
        np.testing.assert_allclose(
            interpreter.get_tensor(result["index"]), jax.nn.sigmoid(x @ weights), rtol=1e-5
        )
