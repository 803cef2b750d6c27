"""Errors of call_tf name the TensorFlow function, the operation, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.calling_tf import call_tf
from jax2tf_bridge.errors import (
    BridgeError,
    CallTfError,
    DTypeError,
    FunctionError,
    ShapeError,
    StructureError,
    UnsupportedByTargetError,
)

X = jnp.array([1.0, 2.0])
VARIABLE = tf.Variable(1.0)
OUTSIDE = "outside of jax.jit, scan, cond, while_loop and convert"


def texts(x: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(x)


def ragged(x: tf.Tensor) -> Any:
    return {"a": tf.RaggedTensor.from_row_lengths(x, [2, 0])}


def variants(x: tf.Tensor) -> tf.Tensor:
    return [tf.raw_ops.TensorListReserve(element_shape=[2], num_elements=1, element_dtype=x.dtype)]


def an_object(x: tf.Tensor) -> Any:
    return x, object()


def multiplies(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, x)


def misses(x: tf.Tensor) -> tf.Tensor:
    raise KeyError("no such table")


def measures_text(x: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(tf.strings.as_string(x))


def calls_python(x: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.py_function(lambda y: y + 1, [x], tf.float32), [2])


def reshapes(x: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, sizes)


def counts(x: tf.Tensor) -> tf.Tensor:
    VARIABLE.assign_add(1.0)
    return x * VARIABLE


def positives(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > 0)


def different(x: tf.Tensor) -> tf.Tensor:
    return tf.unique(x)[0]


def identity(x: tf.Tensor) -> tf.Tensor:
    return x


@pytest.mark.parametrize(
    ("f", "kind", "text"),
    [
        (texts, DTypeError, "The result of the TensorFlow function texts is a string"),
        (ragged, StructureError, r"result \['a'\] of the TensorFlow function ragged is a Ragged"),
        (
            variants,
            DTypeError,
            r"result \[0\] of .* variants has dtype variant, which JAX does not",
        ),
        (an_object, StructureError, r"result \[1\] of .* an_object is neither a tensor nor an arr"),
    ],
)
def test_results_that_jax_has_nothing_for(
    way: Callable[..., Any], f: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        way(call_tf(f))(X)


def test_keys_that_jax_cannot_sort(way: Callable[..., Any]) -> None:
    mixed = {1: X, "a": X}
    with pytest.raises(StructureError, match=r"^The result\[0\] of the TensorFlow function .* 'a'"):
        way(call_tf(lambda x: [{1: x, "a": x}]))(X)
    with pytest.raises(StructureError, match=r"^The argument x\[0\] of .*: 1 \(int\), 'a' \(str\)"):
        call_tf(lambda x: x)([mixed])
    with pytest.raises(StructureError, match=r"^The argument scale of .* Write them as strings"):
        call_tf(lambda x, *, scale: x)(X, scale=mixed)


def test_what_the_function_raises_is_the_cause(way: Callable[..., Any]) -> None:
    with pytest.raises(
        CallTfError, match=r"function misses raised KeyError: .*no such table"
    ) as caught:
        way(call_tf(misses))(X)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.function == "misses"
    with pytest.raises(
        CallTfError, match=r"function multiplies raised \w+ in the operation MatMul: .*rank|ndims"
    ) as caught:
        way(call_tf(multiplies))(X)
    assert caught.value.operation == "MatMul"
    assert caught.value.__cause__ is not None


def test_errors_of_the_bridge_within_stay_what_they_are(way: Callable[..., Any]) -> None:
    converted = convert(jnp.sin, polymorphic_shapes="(b, 3)")
    with pytest.raises(ShapeError) as caught:
        way(call_tf(converted))(X)
    notes = "".join(caught.value.__notes__)
    assert "while call_tf called the TensorFlow function sin" in notes


@pytest.mark.parametrize(
    ("f", "operation", "reason"),
    [
        (measures_text, "AsString", "XLA does not support the operation AsString"),
        (calls_python, "EagerPyFunc", "XLA does not support the operation EagerPyFunc"),
        (positives, "Where", "returns a result whose size depends on .* the operation Where, but"),
        (
            different,
            "Unique",
            "returns a result whose size depends on .* the operation Unique, but",
        ),
        (counts, "AssignAddVariableOp", r"changes a tf.Variable \(AssignAddVariableOp\), which"),
    ],
)
def test_what_cannot_be_compiled_names_the_operation(f: Any, operation: str, reason: str) -> None:
    call_tf(f)(X)  # eagerly it can
    for compiling in (
        jax.jit(call_tf(f)),
        lambda x: jax.lax.scan(lambda c, _: (c, call_tf(f)(c)), x, None, length=2),
        convert(call_tf(f)),
    ):
        with pytest.raises(
            UnsupportedByTargetError, match=f"function {f.__name__} .*{reason}"
        ) as e:
            compiling(X)
        assert e.value.operation == operation
        assert OUTSIDE in str(e.value)


def test_sizes_that_are_arguments_name_the_operation() -> None:
    sizes = jnp.array([2, 1])
    assert call_tf(reshapes)(X, sizes).shape == (2, 1)
    with pytest.raises(
        UnsupportedByTargetError,
        match=r"reshapes .* input 1 of the operation Reshape must be known when it is compiled",
    ) as caught:
        jax.jit(call_tf(reshapes))(X, sizes)
    assert caught.value.operation == "Reshape"
    # A tf.function keeps its lines.
    with pytest.raises(
        UnsupportedByTargetError, match=r"at \S*test_errors\.py:\d+\. Call"
    ) as caught:
        jax.jit(call_tf(tf.function(reshapes)))(X, sizes)
    assert caught.value.source is not None


def test_gradients_of_loops_without_a_bound() -> None:
    def loops(x: tf.Tensor) -> tf.Tensor:
        while tf.reduce_sum(x) > 0.1:
            x = tf.sin(x) / 2
        return x

    gradient = jax.grad(lambda x: call_tf(loops)(x).sum())
    assert gradient(X).shape == (2,)
    with pytest.raises(
        UnsupportedByTargetError, match=r"a loop \(While\) only if it knows .*maximum_iterations"
    ):
        jax.jit(gradient)(X)


def _declared(shape: tuple[int, ...], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_declared_results_are_compared(way: Callable[..., Any]) -> None:
    right = way(call_tf(identity, output_shape_dtype=_declared((2,))))(X)
    assert right.tolist() == [1, 2]
    with pytest.raises(
        ShapeError, match=r"identity has another shape .* Declared: \(3,\)\. Got: \(2,\)"
    ):
        way(call_tf(identity, output_shape_dtype=_declared((3,))))(X)
    with pytest.raises(
        DTypeError, match=r"identity has another dtype .* Declared: int32\. Got: float32"
    ):
        way(call_tf(identity, output_shape_dtype=_declared((2,), np.int32)))(X)
    with pytest.raises(StructureError, match=r"identity returns another structure .*\[\*\]"):
        way(call_tf(identity, output_shape_dtype=[_declared((2,))]))(X)


def test_declared_results_of_dynamic_size() -> None:
    f = call_tf(positives, output_shape_dtype=_declared((2, 1), np.int32))
    assert f(jnp.array([1.0, -1.0, 1.0])).tolist() == [[0], [2]]
    with pytest.raises(ShapeError, match=r"Declared: \(2, 1\)\. Got: \(1, 1\)"):
        f(jnp.array([1.0, -1.0, -1.0]))
    # A compiled program would return two rows for any values.
    with pytest.raises(UnsupportedByTargetError, match="by the operation Where"):
        jax.jit(f)(X)


def nothing(x: tf.Tensor) -> None:
    return None


@pytest.mark.parametrize("f", [nothing, tf.function(nothing, jit_compile=True)])
def test_none_declares_a_function_without_results(way: Callable[..., Any], f: Any) -> None:
    assert way(call_tf(f))(X) is None
    assert way(call_tf(f, output_shape_dtype=None))(X) is None
    with pytest.raises(StructureError, match=r"Declared: PyTreeDef\(\*\)\. Got: PyTreeDef\(None\)"):
        way(call_tf(f, output_shape_dtype=_declared((2,))))(X)
    with pytest.raises(StructureError, match=r"Declared: PyTreeDef\(None\)\. Got: PyTreeDef\(\*\)"):
        way(call_tf(identity, output_shape_dtype=None))(X)


def wide(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64)


def test_declared_64_bits_need_x64(way: Callable[..., Any]) -> None:
    text = (
        r"output_shape_dtype of call_tf\(wide\) declares float64 for the result, and JAX has .*"
        r"Declare float32, .* jax\.config\.update\(\"jax_enable_x64\", True\)"
    )
    f = call_tf(wide, output_shape_dtype=_declared((2,), np.float64))
    with pytest.raises(DTypeError, match=text):
        way(f)(X)
    with jax.enable_x64(True):  # the declaration above holds now
        assert way(f)(X).dtype == np.float64
    assert way(call_tf(wide, output_shape_dtype=_declared((2,))))(X).dtype == np.float32


def test_declared_sizes_that_xla_contradicts() -> None:
    def twice(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.concat([x, x], 0), tf.cast([tf.size(x) + 0, -1], tf.int32))

    f = call_tf(twice, output_shape_dtype=_declared((4, 1)))
    with pytest.raises(ShapeError, match=r"twice .* float32\[2,2\]|Declared: \(4, 1\)"):
        jax.jit(f)(X)


def test_declarations_are_checked_at_once() -> None:
    with pytest.raises(StructureError, match=r"call_tf\(identity\) must be a pytree of jax\.Shape"):
        call_tf(identity, output_shape_dtype=np.float32)
    with pytest.raises(StructureError, match=r"Got: TensorSpec\(.* of type TensorSpec"):
        call_tf(identity, output_shape_dtype=tf.TensorSpec((2,)))
    with pytest.raises(ShapeError, match=r"must have numbers as sizes\. Got: \(None, 2\)"):
        call_tf(identity, output_shape_dtype=_Open())
    with pytest.raises(DTypeError, match=r"declares the dtype key<fry>, which JAX and Tensor"):
        call_tf(identity, output_shape_dtype=jax.eval_shape(lambda: jax.random.key(0)))
    with pytest.raises(FunctionError, match=r"call_tf expected a TensorFlow function\. Got: 3"):
        call_tf(3)  # type: ignore[arg-type]


class _Open:
    shape, dtype = (None, 2), np.float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", r"argument x of identity must be an array or a number\. Got: 'a' of type str\. Bind"),
        (tf.constant(1.0), r"argument x of identity is a TensorFlow value: .* value\.numpy\(\)"),
        (jax.random.key(0), r"x of identity has dtype key<fry>.*jax\.random\.key_data\(key\)"),
        (np.zeros(2, jax.dtypes.float0), r"x of identity has dtype float0, .* leave it out"),
        (jnp.zeros(2, jnp.int4), r"x of identity has dtype int4, .* pass it as int8 or uint8"),
        (2**40, r"x of identity is 1099511627776, .* for JAX's int32\. Pass a float, or set jax"),
    ],
    ids=["text", "tensor", "key", "float0", "int4", "overflow"],
)
def test_arguments_that_tensorflow_has_nothing_for(value: Any, text: str) -> None:
    with pytest.raises(DTypeError, match=text):
        call_tf(identity)(value)
    with pytest.raises(DTypeError, match=text.replace("x of", r"x\['w'\]\[0\] of")):
        call_tf(identity)({"w": [value]})


def test_symbolic_sizes_say_what_to_do() -> None:
    converted = convert(call_tf(identity), polymorphic_shapes="(b,)")
    with pytest.raises(
        BridgeError, match=r"function identity .* symbolic shape: float32\[b\].*known shapes"
    ):
        converted(X)


def test_what_keras_says_is_kept() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
    text = r"sequential.*raised ValueError: .*(incompatible|expected)"
    with pytest.raises(CallTfError, match=text):
        call_tf(model)(np.ones((2, 3), np.float32))
