"""dtype_of_val, eval_polymorphic_shape and PolyShape say what jax2tf's say."""

import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import AUTO, convert, export
from jax2tf_bridge.converting import dtype_of_val
from jax2tf_bridge.errors import DTypeError, InconclusiveShapeError, ShapeError
from jax2tf_bridge.from_jax import eval_polymorphic_shape
from jax2tf_bridge.portable import PolyShape
from shape_poly import Comparison, Proven, parse_dimension, prove, shape_text, symbolic_shape

# The dtypes in which they are taken, with 32 bits and with 64.
VALUES: dict[str, tuple[Any, str, str]] = {
    "int": (3, "int32", "int64"),
    "float": (2.5, "float32", "float64"),
    "large float": (1e40, "float32", "float64"),
    "bool": (True, "bool", "bool"),
    "complex": (1 + 2j, "complex64", "complex128"),
    "float64 array": (np.array([1.0, 2.0]), "float32", "float64"),
    "int64 array": (np.array([1, 2]), "int32", "int64"),
    "uint64 array": (np.array([1], np.uint64), "uint32", "uint64"),
    "complex128 array": (np.array([1j]), "complex64", "complex128"),
    "float16 scalar": (np.float16(2), "float16", "float16"),
    "float64 scalar": (np.float64(2), "float32", "float64"),
    "int64 scalar": (np.int64(2), "int32", "int64"),
    "bool scalar": (np.bool_(True), "bool", "bool"),
    "uint8 scalar": (np.uint8(3), "uint8", "uint8"),
    "bfloat16 array": (np.zeros(2, ml_dtypes.bfloat16), "bfloat16", "bfloat16"),
    "bfloat16 scalar": (ml_dtypes.bfloat16(2), "bfloat16", "bfloat16"),
    "float8 array": (np.zeros(2, ml_dtypes.float8_e4m3fn), "float8_e4m3fn", "float8_e4m3fn"),
    "JAX array": (jnp.arange(3), "int32", "int32"),
    "weakly typed": (jnp.asarray(3.0), "float32", "float32"),
    "key": (jax.random.key(0), "uint32", "uint32"),
    "keys": (jax.random.split(jax.random.key(0), 3), "uint32", "uint32"),
    "words of a key": (jax.random.PRNGKey(0), "uint32", "uint32"),
    "float0": (np.zeros((2,), jax.dtypes.float0), "bool", "bool"),
    "tensor of int64": (tf.constant([1], tf.int64), "int32", "int64"),
    "tensor of float64": (tf.constant([1.0], tf.float64), "float32", "float64"),
    "tensor of uint16": (tf.constant([1], tf.uint16), "uint16", "uint16"),
    "tensor of complex128": (tf.constant([1j], tf.complex128), "complex64", "complex128"),
    "tensor of bool": (tf.constant([True]), "bool", "bool"),
    "variable": (tf.Variable([1.0]), "float32", "float32"),
    "variable of int64": (tf.Variable([1], dtype=tf.int64), "int32", "int64"),
}


@pytest.mark.parametrize("x64", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("name", VALUES)
def test_dtype_of_val(name: str, x64: bool, jax2tf: Any) -> None:
    value, narrow, wide = VALUES[name]
    with jax.enable_x64(x64):
        ours = dtype_of_val(value)
        assert ours == jax2tf.dtype_of_val(value)
        assert ours.name == (wide if x64 else narrow)


@pytest.mark.parametrize("x64", [False, True], ids=["32 bits", "64 bits"])
def test_dtype_of_val_is_what_convert_takes(x64: bool) -> None:
    values = [value for value, _, _ in VALUES.values()]
    with jax.enable_x64(x64):
        taken = convert(lambda *args: args)(*values)
        assert [t.dtype for t in taken] == [dtype_of_val(value) for value in values]


def test_tensors_of_a_graph_have_a_dtype_too() -> None:
    found = []
    function = tf.function(lambda x: found.append(dtype_of_val(x)), autograph=False)
    function.get_concrete_function(tf.TensorSpec(None, tf.float64))
    assert found == [tf.float32]


def test_integers_of_4_bits_cross_as_8(jax2tf: Any) -> None:
    """TensorFlow reads such arguments wrongly: here the bridge differs from jax2tf."""
    value = np.zeros(2, ml_dtypes.int4)
    assert dtype_of_val(value) == tf.int8
    assert jax2tf.dtype_of_val(value).name == "int4"


def test_integer_that_does_not_fit() -> None:
    with pytest.raises(DTypeError, match=r"2147483648 does not fit int32\. Set jax_enable_x64"):
        dtype_of_val(2**31)
    with jax.enable_x64(True):
        assert dtype_of_val(2**31) == tf.int64


@pytest.mark.parametrize(
    "value",
    ["text", None, [1, 2], {"a": 1}, object(), np.array("a"), tf.constant("a"), np.longdouble(2)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_has_no_dtype(value: Any, jax2tf: Any) -> None:
    for function in (dtype_of_val, jax2tf.dtype_of_val):
        with pytest.raises(TypeError):
            function(value)


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


FUNCTIONS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "two arguments": (lambda a, x: a @ x, ["a, b", "b, c"], (spec(20, 30), spec(30, 10))),
    "structure": (
        lambda x: {"t": x.T, "s": (x.sum(), x.reshape(-1))},
        "(b, h)",
        (spec(2, 3, dtype=jnp.bfloat16),),
    ),
    "sum": (lambda x, y: jnp.concatenate([x, y]), ["a, _", "b, _"], (spec(2, 3), spec(4, 3))),
    "arithmetic": (lambda x: jnp.concatenate([x, x, x[1:]]), "(b, ...)", (spec(2, 3),)),
    "division": (lambda x: x[::2], "b", (spec(2, dtype=jnp.int32),)),
    "reshape": (lambda x: x.reshape(2, -1), "b, 4", (spec(2, 4),)),
    "no symbol": (lambda x: x, None, (spec(2, 4),)),
    "no result": (lambda x: None, "b, _", (spec(2, 4),)),
    "prefix": (
        lambda d: d["a"] + d["b"],
        [{"a": "b", "b": None}],
        ({"a": np.ones(3, np.float32), "b": np.float32(1)},),
    ),
    "one for all": (lambda x, y: x + y, "b", (spec(3), spec(3))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eval_polymorphic_shape(name: str, jax2tf: Any) -> None:
    f, shapes, args = FUNCTIONS[name]
    ours, our_shapes = eval_polymorphic_shape(f, polymorphic_shapes=shapes)(*args)
    theirs, their_shapes = jax2tf.eval_polymorphic_shape(f, polymorphic_shapes=shapes)(*args)
    structure: Any = jax.tree.structure(ours)
    assert structure == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        # Symbolic dimensions of two scopes cannot be compared.
        assert (str(a.shape), a.dtype) == (str(b.shape), b.dtype)
    assert our_shapes == their_shapes


def test_what_it_gives_is_taken_as_the_next_argument() -> None:
    f, shapes, args = FUNCTIONS["two arguments"]
    found, texts = eval_polymorphic_shape(f, polymorphic_shapes=shapes)(*args)
    transposed, text = eval_polymorphic_shape(jnp.transpose, polymorphic_shapes=[texts])(found)
    assert text == "(c, a)"
    assert str(transposed.shape) == "(c, a)"
    arrays, _ = eval_polymorphic_shape(jnp.transpose, polymorphic_shapes=[text])(spec(7, 5))
    assert str(arrays.shape) == "(a, c)"


def test_what_jax_cannot_decide_is_decided(jax2tf: Any) -> None:
    def f(x: Any) -> Any:
        return jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8)

    with pytest.raises(Exception, match="remainder"):
        jax2tf.eval_polymorphic_shape(f, polymorphic_shapes="b")(spec(3))
    _, text = eval_polymorphic_shape(f, polymorphic_shapes="b")(spec(3))
    rows, eight = symbolic_shape(text)
    assert eight == 8
    assert prove(Comparison("==", rows, parse_dimension("floordiv(b + 7, 8)"))) == Proven()


def test_requirements_are_errors_unless_they_are_granted() -> None:
    def halves(x: Any) -> Any:
        return x.reshape(2, -1)

    evaluate = eval_polymorphic_shape(halves, polymorphic_shapes="(b,)")
    with pytest.raises(InconclusiveShapeError, match=re.escape("mod(b, 2) == 0")):
        evaluate(spec(4))
    granted = eval_polymorphic_shape(
        halves, polymorphic_shapes="(b,)", polymorphic_constraints=AUTO
    )
    found, text = granted(spec(4))
    portable = export(halves, polymorphic_shapes="(b,)", polymorphic_constraints=AUTO)(spec(4))
    assert text == str(found.shape) == shape_text(portable.out_avals[0].shape)


def test_auto_is_refused_with_what_to_do() -> None:
    with pytest.raises(ShapeError, match=r"read out_avals of the portable function that export\(f"):
        eval_polymorphic_shape(jnp.sin, polymorphic_shapes=AUTO)(spec(3))


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        (("b", 28), "(b, 28)"),
        (("b",), "(b,)"),
        ((), "()"),
        (("b", ...), "(b, ...)"),
        ((..., "_"), "(..., _)"),
    ],
)
def test_poly_shape_says_what_to_write(dims: Any, text: str) -> None:
    with pytest.warns(DeprecationWarning, match=re.escape(f"Write the string {text!r}")) as caught:
        shape = PolyShape(*dims)
    assert caught[0].filename == __file__
    assert str(shape) == text
    assert tuple(shape) == dims


@pytest.mark.parametrize("dim", [None, 2.5, ["b"], True])
def test_poly_shape_has_no_other_dimensions(dim: Any) -> None:
    with pytest.raises(ShapeError, match=r"must be an integer, a string as 'b' or '2\*b', or"):
        PolyShape("b", dim)


@pytest.mark.filterwarnings("ignore:PolyShape is deprecated:DeprecationWarning")
def test_poly_shape_is_an_entry_of_polymorphic_shapes(jax2tf: Any) -> None:
    x = np.ones((3, 2), np.float32)
    shapes = [{"a": PolyShape("b", ...), "b": PolyShape("b", 2)}]
    theirs = [{"a": jax2tf.PolyShape("b", ...), "b": jax2tf.PolyShape("b", 2)}]
    for given in (shapes, theirs, copy.deepcopy(shapes), pickle.loads(pickle.dumps(shapes))):
        f = convert(lambda d: d["a"] + d["b"], polymorphic_shapes=given)
        function = tf.function(f, autograph=False)
        concrete = function.get_concrete_function(
            {"a": tf.TensorSpec((None, 2)), "b": tf.TensorSpec((None, 2))}
        )
        assert concrete.structured_outputs.shape.as_list() == [None, 2]
        np.testing.assert_array_equal(f({"a": x, "b": x}), x + x)
