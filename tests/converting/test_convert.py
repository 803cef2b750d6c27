"""convert(): values, eager mode and tf.function, decorators, and what it refuses."""

import functools
import re
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import BridgeError, Target, convert
from jax2tf_bridge.errors import DTypeError, ExportError, FunctionError, TargetError

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
JIT = pytest.mark.parametrize("jit_compile", [None, False, True])


def double(x: Any) -> Any:
    return x + x


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


@pytest.mark.parametrize(
    "value",
    [X, tf.constant(X), tf.Variable(X), jnp.asarray(X), X.astype(np.float64), np.float32(2), 2.5],
    ids=["numpy", "tensor", "variable", "jax", "float64", "numpy scalar", "python float"],
)
def test_values_in_eager_mode_and_in_graphs(value: Any) -> None:
    f = convert(double)
    expected = 2 * np.asarray(value, np.float32)
    for call in (f, tf.function(f), lambda v: tf.function(lambda: f(v))()):
        result = call(value)
        assert isinstance(result, tf.Tensor)
        assert result.dtype == tf.float32
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, tf.bool), (3, tf.int32), (1.5, tf.float32), (2j, tf.complex64)]
)
def test_python_numbers(value: Any, dtype: tf.DType) -> None:
    result = convert(lambda x: x)(value)
    assert result.dtype == dtype
    assert result.numpy() == value


def test_integer_that_needs_64_bits() -> None:
    f = convert(lambda n, p: n)
    with pytest.raises(
        DTypeError, match=r"argument p\['k'\] is 2147483648, which does not fit int32. Set jax_en"
    ):
        f(1, {"k": 2**31})
    with jax.enable_x64(True):
        assert f(1, {"k": 2**31}).dtype == tf.int64


def test_variable_of_open_shape() -> None:
    variable = tf.Variable(X, shape=tf.TensorShape([None, 2]))
    f = convert(lambda x: jnp.sum(x, 1), polymorphic_shapes="(b, 2)")
    np.testing.assert_allclose(f(variable), X.sum(1))
    variable.assign(np.ones((3, 2), np.float32))
    np.testing.assert_allclose(tf.function(f)(variable), [2, 2, 2])


@JIT
def test_tf_function(jit_compile: bool | None) -> None:
    f = tf.function(
        convert(softmax, polymorphic_shapes="(b, _)"), autograph=False, jit_compile=jit_compile
    )
    for batch in (1, 2, 5):
        x = np.linspace(0, 1, batch * 3, dtype=np.float32).reshape(batch, 3)
        np.testing.assert_allclose(f(x), softmax(x), rtol=1e-6)


@JIT
def test_open_batch_in_the_graph(jit_compile: bool | None) -> None:
    f = tf.function(
        convert(softmax, polymorphic_shapes="(b, _)"),
        input_signature=[tf.TensorSpec((None, 3))],
        jit_compile=jit_compile,
    )
    assert f.get_concrete_function().structured_outputs.shape.as_list() == [None, 3]
    for batch in (1, 4):
        x = np.ones((batch, 3), np.float32)
        np.testing.assert_allclose(f(x), softmax(x), rtol=1e-6)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_jit_in_either_order(inner: bool, outer: bool, jitted: bool) -> None:
    within = tf.function(convert(jax.jit(double) if jitted else double), jit_compile=inner)

    @tf.function(jit_compile=outer)
    def around(x: Any) -> Any:
        return within(x) + 1

    np.testing.assert_allclose(around(X), 2 * X + 1)


def test_convert_within_a_tf_function() -> None:
    @tf.function
    def f(x: Any) -> Any:
        return convert(double)(x)

    np.testing.assert_allclose(f(X), 2 * X)


def test_as_a_decorator() -> None:
    @functools.partial(convert, polymorphic_shapes="(b, ...)")
    def total(x: Any) -> Any:
        """Adds up."""
        return jnp.sum(x, axis=0)

    assert total.__name__ == "total"
    assert total.__doc__ == "Adds up."
    np.testing.assert_allclose(total(X), X.sum(0))

    @tf.function
    @convert
    def plus_one(x: Any) -> Any:
        return x + 1

    np.testing.assert_allclose(plus_one(X), X + 1)


def test_signature_names_the_placeholders() -> None:
    concrete = tf.function(convert(lambda image, mask: image * mask)).get_concrete_function(
        tf.TensorSpec((2,)), tf.TensorSpec((2,))
    )
    assert [t.name for t in concrete.inputs] == ["image:0", "mask:0"]


def test_default_values_stay_values_of_python() -> None:
    def f(x: Any, power: int = 2, *, negate: bool = True) -> Any:
        y = x**power
        return -y if negate else y

    for call in (convert(f), tf.function(convert(f)), tf.function(lambda x: convert(f)(x))):
        np.testing.assert_allclose(call(X), -(X**2))


def test_within_a_jax_transformation() -> None:
    f = convert(double)
    for transformed in (jax.jit(f), jax.grad(f), jax.vmap(f)):
        with pytest.raises(ExportError, match=r"inside a JAX transformation") as error:
            transformed(jnp.ones(2))
        assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("value", [None, 3, "double", [double]])
def test_not_callable(value: Any) -> None:
    with pytest.raises(FunctionError, match=r"convert expected a JAX function, got") as error:
        convert(value)
    assert isinstance(error.value, TypeError)


def test_generator_function() -> None:
    def f(x: Any) -> Any:
        yield x

    with pytest.raises(FunctionError, match=r"got the generator function f. Return a list"):
        convert(f)


def test_unknown_platform() -> None:
    with pytest.raises(TargetError, match=r"native_serialization_platforms: unknown .*'cdua'"):
        convert(double, native_serialization_platforms=["cdua"])


@pytest.mark.parametrize("name", ["enable_xla", "native_serialization"])
def test_deprecated_argument(name: str) -> None:
    options: dict[str, Any] = {name: True}
    text = f"The argument {name}=True of convert is its default, and will be removed. Leave it out."
    with pytest.warns(DeprecationWarning, match=text) as caught:
        f = convert(double, **options, polymorphic_shapes="(b, ...)")
    assert [w.filename for w in caught] == [__file__]
    np.testing.assert_allclose(f(X), 2 * X)
    assert "XlaCallModule" in _operations(f)


@pytest.mark.parametrize(
    "options",
    [
        {"enable_xla": False},
        {"native_serialization": False},
        {"native_serialization": False, "enable_xla": True},
        {"native_serialization": False, "target": Target.tensorflow("2.17")},
        {"target": Target.widest(xla=False)},
        {"target": Target.installed(xla=False), "enable_xla": False},
        {"target": Target.widest(xla=False), "native_serialization_platforms": ["cpu", "tpu"]},
    ],
    ids=str,
)
def test_tensorflows_own_operations(
    options: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    f = convert(double, **options, polymorphic_shapes="(b, ...)")
    assert not [w for w in recwarn if w.category is DeprecationWarning]
    np.testing.assert_allclose(f(X), 2 * X)
    assert not [name for name in _operations(f) if "Xla" in name]
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        y = f(x)
    np.testing.assert_allclose(tape.gradient(y, x), np.full_like(X, 2))


def _operations(f: Any) -> set[str]:
    spec = tf.TensorSpec([None, *X.shape[1:]], X.dtype)
    concrete = tf.function(f, autograph=False).get_concrete_function(spec)
    return {op.type for op in concrete.graph.get_operations()}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"enable_xla": False, "native_serialization": True},
            "enable_xla=False asks for TensorFlow's own operations, and native_serialization=True "
            "for a module that XLA runs. Leave one of them out.",
        ),
        (
            {"native_serialization": False, "native_serialization_platforms": ["cpu"]},
            "and native_serialization=False asks for TensorFlow's own operations, which run on "
            "all. Leave one of them out.",
        ),
        (
            {"native_serialization": True, "target": Target.tensorflow("2.17", xla=False)},
            "native_serialization=True and target='TensorFlow 2.17 without XLA' contradict each "
            "other. Leave native_serialization out.",
        ),
        (
            {"enable_xla": True, "target": Target.widest(xla=False)},
            "contradict each other. Leave enable_xla out.",
        ),
    ],
)
def test_switches_that_contradict_each_other(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TargetError, match=re.escape(text)):
        convert(double, **options)


@pytest.mark.parametrize(
    "value",
    ["text", object(), tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense(X)],
    ids=["str", "object", "ragged", "sparse"],
)
def test_argument_that_is_no_array(value: Any) -> None:
    with pytest.raises(
        DTypeError, match=r"The argument p\['a'\]\[1\] of a converted function should be a NumPy"
    ):
        convert(lambda p: p)({"a": [1.0, value]})


@pytest.mark.parametrize("value", [tf.constant("text"), np.array(["text"])])
def test_dtype_that_jax_lacks(value: Any) -> None:
    with pytest.raises(DTypeError, match=r"The argument x has dtype .*, which JAX does not have"):
        convert(double)(value)


def test_unknown_rank() -> None:
    f = tf.function(convert(double), input_signature=[tf.TensorSpec(None)])
    with pytest.raises(DTypeError, match=r"The argument x has an unknown rank. Give it one with"):
        f(X)


def test_errors_keep_their_type_within_autograph() -> None:
    f = convert(double)

    @tf.function
    def user_function(x: Any) -> Any:
        if tf.reduce_any(x == "a"):
            x = x + "b"
        return f(x)

    with pytest.raises(BridgeError, match=r"which JAX does not have") as error:
        user_function(tf.constant("a"))
    assert type(error.value) is DTypeError


def test_eight_threads_share_one_function() -> None:
    traces = []

    def traced(x: Any) -> Any:
        traces.append(x.shape)
        return jnp.tanh(x)

    f = convert(traced, polymorphic_shapes="(b, _)")
    results = in_threads(8, lambda i: f(np.full((i + 1, 3), i, np.float32)))
    for i, result in enumerate(results):
        np.testing.assert_allclose(result, np.tanh(np.full((i + 1, 3), i)), rtol=1e-5)
    assert len(traces) == 1


def test_eight_threads_export_and_trace_at_once() -> None:
    def use(i: int) -> Any:
        f = tf.function(convert(lambda x: jnp.sin(x) * i), autograph=False)
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    for i, gradient in enumerate(in_threads(8, use)):
        np.testing.assert_allclose(gradient, np.cos(X) * i, atol=1e-6)


def in_threads(count: int, use: Any) -> list[Any]:
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(i: int) -> None:
        start.wait()
        results[i] = use(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
