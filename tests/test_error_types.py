"""Errors have the types that jax2tf, jax.export and flax.serialization raise, beside ours.

Each row of a table provokes an error in both, theirs and the bridge's. Code that was written for
theirs catches `kind`; where theirs is an accident of the implementation, which nobody catches on
purpose, the row says so, and ours is a BridgeError of another kind.
"""

import collections
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge
from jax2tf_bridge import BridgeError
from jax2tf_bridge.from_jax import jax_compat

X = np.ones((4, 3), np.float32)
SPEC = jax.ShapeDtypeStruct(X.shape, X.dtype)


@dataclass(frozen=True)
class Row:
    """A call that fails.

    Attributes:
      kind: what theirs raises, and ours too.
      call: is given the module, theirs or ours.
      accident: why ours need not be of that kind; "" where it is.
      ours: whether ours is raised by the bridge, and does not come from JAX.
    """

    kind: type[BaseException]
    call: Callable[[Any], Any]
    accident: str = ""
    ours: bool = True


class _Pair(tuple):  # type: ignore[type-arg]
    """A type that nothing is registered for."""


Named = collections.namedtuple("Named", "a b")
INCONCLUSIVE = jax_compat.InconclusiveDimensionOperation


def converted(f: Any = jnp.sin, *args: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda m: m.convert(f, **options)(*(args or (X,)))


def gradient(f: Any, **options: Any) -> Callable[[Any], Any]:
    def call(m: Any) -> Any:
        variable, g = tf.Variable(X), m.convert(f, **options)
        with tf.GradientTape() as tape:
            y = g(variable)
        return tape.gradient(y, variable)

    return call


def doubles(x: Any) -> Any:
    return jax.lax.while_loop(lambda v: v[0, 0] < 9, lambda v: 2 * v, x)


def called(f: Any, *args: Any, way: Any = lambda f: f, **options: Any) -> Callable[[Any], Any]:
    return lambda m: way(m.call_tf(f, **options))(*(args or (X,)))


def declared(f: Any, declaration: Any) -> Callable[[Any], Any]:
    return called(f, output_shape_dtype=declaration)


def identity(x: Any) -> Any:
    return x


def array(x: tf.Tensor) -> Any:
    return tf.TensorArray(tf.float32, 4).unstack(x)


def texts(x: tf.Tensor) -> Any:
    return tf.strings.as_string(x)


def text_lengths(x: tf.Tensor) -> Any:
    return tf.strings.length(tf.strings.as_string(x))


def positives(x: tf.Tensor) -> Any:
    return tf.boolean_mask(x, x > 0)


def misses(x: tf.Tensor) -> Any:
    table: dict[int, Any] = {}
    return table[1]


def forward(f: Any) -> Any:
    return lambda x: jax.jvp(f, (x,), (x,))


PLATFORMS: Any = "native_serialization_platforms"

JAX2TF = {
    "convert: no function": Row(TypeError, converted(3)),
    "convert: unknown platform": Row(ValueError, converted(**{PLATFORMS: ("gpus",)})),
    "convert: in a transformation": Row(
        ValueError, lambda m: jax.jit(lambda x: m.convert(jnp.sin)(x))(X)
    ),
    "convert: unknown option": Row(TypeError, converted(no_such=1), ours=False),
    "argument: text": Row(TypeError, converted(jnp.sin, "a")),
    "argument: tensor of text": Row(TypeError, converted(jnp.sin, tf.constant("a"))),
    "argument: object": Row(TypeError, converted(jnp.sin, object())),
    "argument: unknown rank": Row(
        ValueError,
        lambda m: tf.function(m.convert(jnp.sin), autograph=False).get_concrete_function(
            tf.TensorSpec(None)
        ),
    ),
    "shapes: too many entries": Row(ValueError, converted(polymorphic_shapes=["b, ...", "b"])),
    "shapes: a dict for a tuple": Row(ValueError, converted(polymorphic_shapes={"a": "b"})),
    "shapes: a list for an array": Row(ValueError, converted(polymorphic_shapes=[["b, ..."]])),
    "shapes: another key": Row(
        ValueError,
        converted(lambda x: x["a"], {"a": X}, polymorphic_shapes=[{"z": "b, ..."}]),
    ),
    "shapes: no text": Row(ValueError, converted(polymorphic_shapes=[3])),
    "shapes: another rank": Row(ValueError, converted(polymorphic_shapes="b")),
    "shapes: another size": Row(ValueError, converted(polymorphic_shapes="b, 4")),
    "shapes: unknown size without a name": Row(
        ValueError,
        lambda m: tf.function(m.convert(jnp.sin), autograph=False).get_concrete_function(
            tf.TensorSpec((None, 3))
        ),
    ),
    "shapes: unreadable": Row(
        Exception,
        converted(polymorphic_shapes="(b"),
        accident="an error of Python's tokenizer, whose type depends on where it stops",
    ),
    "constraints: no text": Row(
        ValueError, converted(polymorphic_shapes="b, ...", polymorphic_constraints=[3])
    ),
    "constraints: unreadable": Row(
        ValueError, converted(polymorphic_shapes="b, ...", polymorphic_constraints=["b ? 3"])
    ),
    "constraints: never hold": Row(
        ValueError, converted(polymorphic_shapes="b, ...", polymorphic_constraints=["2 >= 3"])
    ),
    "tracing: undecided": Row(
        INCONCLUSIVE,
        converted(lambda x: x[:4] if x.shape[0] > 3 else x, polymorphic_shapes="b, 3"),
    ),
    "tracing: sizes that do not fit": Row(
        TypeError,
        converted(lambda x, y: x + y, X, X, polymorphic_shapes=["v, 3", "4, 3"]),
    ),
    "tracing: sizes that do not fit, einsum": Row(
        AssertionError,
        converted(
            lambda x, y: jnp.einsum("ab,cb->ac", x, y), X, X, polymorphic_shapes=["_, b", "_, c"]
        ),
        accident="a bare assert",
    ),
    "tracing: callback": Row(
        NotImplementedError, converted(lambda x: jax.pure_callback(np.sin, x, x))
    ),
    "gradient: none was asked for": Row(
        LookupError, gradient(jnp.sin, with_gradient=False), ours=False
    ),
    "gradient: of a while_loop": Row(ValueError, gradient(doubles)),
    "eval_polymorphic_shape: structure": Row(
        ValueError,
        lambda m: m.eval_polymorphic_shape(jnp.sin, polymorphic_shapes=["b, 3", "b"])(X),
    ),
    "dtype_of_val: text": Row(TypeError, lambda m: m.dtype_of_val("a")),
    "PolyShape: no dimension": Row(ValueError, lambda m: m.PolyShape(3.5)),
    "checks: text": Row(
        AttributeError,
        converted(native_serialization_disabled_checks=["custom_call"]),
        accident="it asks a str for a method",
    ),
    "call_tf: no function": Row(TypeError, called(3)),
    "call_tf: text for an argument": Row(TypeError, called(identity, "a")),
    "call_tf: tensor for an argument": Row(TypeError, called(identity, tf.ones(2))),
    "call_tf: key for an argument": Row(ValueError, called(identity, jax.random.key(0))),
    "call_tf: result is text": Row(ValueError, called(texts)),
    "call_tf: result is text, jit": Row(ValueError, called(texts, way=jax.jit)),
    "call_tf: result is a TensorArray": Row(ValueError, called(array)),
    "call_tf: result is a TensorArray, jit": Row(ValueError, called(array, way=jax.jit)),
    "call_tf: result is ragged": Row(ValueError, called(tf.RaggedTensor.from_tensor)),
    "call_tf: result is sparse": Row(ValueError, called(tf.sparse.from_dense)),
    "call_tf: result is an object": Row(ValueError, called(lambda x: object())),
    "call_tf: declared otherwise, shape": Row(
        ValueError, declared(identity, jax.ShapeDtypeStruct((3, 3), X.dtype))
    ),
    "call_tf: declared otherwise, dtype": Row(
        ValueError, declared(identity, jax.ShapeDtypeStruct(X.shape, np.int32))
    ),
    "call_tf: declared otherwise, 64 bits": Row(
        ValueError, declared(identity, jax.ShapeDtypeStruct(X.shape, np.float64))
    ),
    "call_tf: declared otherwise, structure": Row(ValueError, declared(identity, [SPEC])),
    "call_tf: declared otherwise, None": Row(ValueError, declared(identity, None)),
    "call_tf: declared, gives None": Row(ValueError, declared(lambda x: None, SPEC)),
    "call_tf: declares no array": Row(TypeError, declared(identity, np.float32)),
    "call_tf: XLA cannot compile": Row(ValueError, called(text_lengths, way=jax.jit)),
    "call_tf: dynamic size": Row(ValueError, called(positives, way=jax.jit)),
    "call_tf: symbolic size": Row(
        ValueError, lambda m: m.convert(m.call_tf(tf.sin), polymorphic_shapes="b, 3")(X)
    ),
    "call_tf: forward mode": Row(TypeError, called(tf.sin, way=forward)),
    "call_tf: graph in jit": Row(ValueError, called(tf.sin, way=jax.jit, call_tf_graph=True)),
    "call_tf: graph without results in jit": Row(
        ValueError, called(lambda x: None, way=jax.jit, call_tf_graph=True)
    ),
    "call_tf: the function raises": Row(
        KeyError, called(misses), accident="the function's own error; it is the cause of ours"
    ),
}


def exported(m: Any, f: Any = jnp.sin, *args: Any, **options: Any) -> Any:
    return m.export(jax.jit(f), **options)(*(args or (X,)))


def called_with(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda m: exported(m).call(*args, **kwargs)


def registered_twice(m: Any) -> None:
    kind = collections.namedtuple("kind", "a b")
    for _ in range(2):
        m.register_namedtuple_serialization(kind, serialized_name=f"{m.__name__}.{id(kind)}")


JAX_EXPORT = {
    "export: no function": Row(ValueError, lambda m: m.export(3)(X)),
    "export: callback": Row(
        NotImplementedError, lambda m: exported(m, lambda x: jax.pure_callback(np.sin, x, x))
    ),
    "export: unknown custom call": Row(
        ValueError, lambda m: exported(m, lambda x: jax.ffi.ffi_call("no_such", SPEC)(x))
    ),
    "export: undecided": Row(
        INCONCLUSIVE,
        lambda m: exported(
            m,
            lambda x: x[:4] if x.shape[0] > 3 else x,
            jax.ShapeDtypeStruct(m.symbolic_shape("b, 3"), X.dtype),
        ),
    ),
    "export: text": Row(TypeError, lambda m: exported(m, jnp.sin, "a")),
    "call: structure": Row(ValueError, called_with(X, X), ours=False),
    "call: keyword": Row(ValueError, called_with(y=X), ours=False),
    "call: rank": Row(ValueError, called_with(X[0]), ours=False),
    "call: shape": Row(ValueError, called_with(X[:2]), ours=False),
    "call: dtype": Row(ValueError, called_with(X.astype(np.int32)), ours=False),
    "call: text": Row(TypeError, called_with("a"), ours=False),
    "call: platform": Row(
        ValueError, lambda m: exported(m, platforms=("tpu",)).call(X), ours=False
    ),
    "vjp: not stored": Row(ValueError, lambda m: m.deserialize(exported(m).serialize()).vjp()),
    "serialize: order not stored": Row(
        ValueError,
        lambda m: m.deserialize(exported(m).serialize()).serialize(vjp_order=1),
    ),
    "deserialize: nothing": Row(
        Exception,
        lambda m: m.deserialize(b""),
        accident="an error of flatbuffers, which reads past the end",
    ),
    "register: no named tuple": Row(
        ValueError, lambda m: m.register_namedtuple_serialization(_Pair, serialized_name="pair")
    ),
    "register: twice": Row(ValueError, registered_twice),
    "register: no pytree": Row(
        ValueError,
        lambda m: m.register_pytree_node_serialization(
            _Pair,
            serialized_name="pair",
            serialize_auxdata=lambda _: b"",
            deserialize_auxdata=lambda _: None,
        ),
    ),
    "symbolic_args_specs: structure": Row(
        ValueError, lambda m: m.symbolic_args_specs((X,), ["b, ...", "c"]), ours=False
    ),
}


def restored(target: Any, state: Any) -> Callable[[Any], Any]:
    return lambda m: m.from_state_dict(target, state)


def state_registered_twice(m: Any) -> None:
    class Again:
        pass

    for _ in range(2):
        m.register_serialization_state(Again, lambda _: {}, lambda again, _: again)


def deep() -> Any:
    found: Any = 1
    for _ in range(2000):
        found = [found]
    return found


NO_MAPPING = "it asks a number for its keys"

FLAX = {
    "to_bytes: an object": Row(TypeError, lambda m: m.to_bytes({"a": object()})),
    "to_bytes: a set": Row(TypeError, lambda m: m.msgpack_serialize({"a": {1}})),
    "to_bytes: an array of objects": Row(
        ValueError, lambda m: m.to_bytes({"a": np.array([object()])})
    ),
    "to_bytes: a large integer": Row(
        OverflowError,
        lambda m: m.to_bytes({"a": 2**70}),
        accident="msgpack's, of a number that JAX has not either",
    ),
    "to_bytes: nested too deeply": Row(
        (SystemError, RecursionError, ValueError),  # type: ignore[arg-type]
        lambda m: m.msgpack_serialize(deep()),
        accident="wherever the stack ends",
    ),
    "to_state_dict: keys that become one": Row(
        ValueError, lambda m: m.to_state_dict({1: 1, "1": 2})
    ),
    "from_state_dict: another length": Row(ValueError, restored([1, 2], {"0": 1})),
    "from_state_dict: another key": Row(ValueError, restored({"a": 1}, {"b": 1})),
    "from_state_dict: another field": Row(ValueError, restored(Named(1, 2), {"a": 1})),
    "from_state_dict: a leaf for a list": Row(TypeError, restored([1], 3)),
    "from_state_dict: a leaf for a dict": Row(
        AttributeError, restored({"a": 1}, 3), accident=NO_MAPPING
    ),
    "from_state_dict: a leaf for a named tuple": Row(
        AttributeError, restored(Named(1, 2), 3), accident=NO_MAPPING
    ),
    "from_state_dict: another index": Row(
        KeyError, restored([1, 2], {"0": 1, "5": 1}), accident="it looks the index up"
    ),
    "from_bytes: another key": Row(
        ValueError, lambda m: m.from_bytes({"a": 1}, m.to_bytes({"b": 1}))
    ),
    "msgpack_restore: nothing": Row(ValueError, lambda m: m.msgpack_restore(b"")),
    "msgpack_restore: no msgpack": Row(ValueError, lambda m: m.msgpack_restore(b"\xc1")),
    "msgpack_restore: cut off": Row(
        ValueError, lambda m: m.msgpack_restore(m.msgpack_serialize({"a": X})[:-3])
    ),
    "msgpack_restore: more than that": Row(
        ValueError, lambda m: m.msgpack_restore(m.msgpack_serialize({"a": 1}) + b"\x01")
    ),
    "msgpack_restore: a number": Row(TypeError, lambda m: m.msgpack_restore(3)),
    "register: twice": Row(ValueError, state_registered_twice),
}


def _theirs(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax2tf is deprecated, and says so when it is imported
        return pytest.importorskip(name, reason=f"there is no {name} here")


def _compare(row: Row, theirs: Any, ours: Any) -> None:
    with pytest.raises(row.kind):
        row.call(theirs)
    if row.accident:
        with pytest.raises(BridgeError):
            row.call(ours)
        return
    with pytest.raises(row.kind) as caught:
        row.call(ours)
    assert isinstance(caught.value, BridgeError) == row.ours, repr(caught.value)


@pytest.mark.filterwarnings("ignore:PolyShape is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", JAX2TF)
def test_types_of_jax2tf(name: str) -> None:
    _compare(JAX2TF[name], _theirs("jax.experimental.jax2tf"), jax2tf_bridge)


@pytest.mark.parametrize("name", JAX_EXPORT)
def test_types_of_jax_export(name: str) -> None:
    ours = importlib.import_module("jax2tf_bridge.jax_export")
    _compare(JAX_EXPORT[name], _theirs("jax.export"), ours)


@pytest.mark.parametrize("name", FLAX)
def test_types_of_flax(name: str) -> None:
    _compare(FLAX[name], _theirs("flax.serialization"), jax2tf_bridge.weights)
