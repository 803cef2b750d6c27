"""to_tf(): a portable function as a TF function, and what it refuses before an op is built."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import PortableFunction, Target, export
from jax2tf_bridge.errors import ArgumentsError, DTypeError, ModuleError, ShapeError, StructureError

# Private: it replaces a list of TensorFlow's, which only large models notice.
from jax2tf_bridge.to_tensorflow import _tf_compat, to_tf
from tests.serialization.records import changed
from tests.tensorflow_process import run_in_tensorflow
from tests.to_tensorflow.dense_function import PARAMS, X


def test_call(portable: PortableFunction) -> None:
    f = to_tf(portable)
    for call in (f, tf.function(f, autograph=False), tf.function(f, jit_compile=True)):
        for batch in (1, 5):
            result = call(PARAMS, np.ones((batch, 3), np.float32), scale=2.0)
            np.testing.assert_allclose(result["y"], np.full((batch, 4), 6.0))
            assert int(result["n"]) == batch


def test_values_of_every_kind(portable: PortableFunction) -> None:
    f = to_tf(portable)
    params = {"w": tf.Variable(PARAMS["w"]), "b": jnp.asarray(PARAMS["b"])}
    for scale in (2, 2.0, np.float32(2), tf.constant(2.0), tf.Variable(2.0)):
        np.testing.assert_allclose(f(params, X, scale=scale)["y"], np.full((2, 4), 6.0))


def test_name_and_repr(portable: PortableFunction) -> None:
    f = to_tf(portable)
    assert f.__name__ == "dense"
    for text in (repr(portable), str(f.__doc__)):
        assert text.startswith("PortableFunction dense(params['b']: float32[4], params['w']: ")
        assert "x: float32[b,3], scale: float32[]) -> (int32[], float32[b,4])\n" in text
        assert f"module: {len(portable.module.data)} bytes" in text
        assert repr(portable.module.data)[2:10] not in text
        assert len(text) < 1000


def test_every_difference_of_structure_is_listed(portable: PortableFunction) -> None:
    with pytest.raises(StructureError) as error:
        to_tf(portable)({"w": [1.0], "c": 1.0}, None, scales=1)
    text = str(error.value)
    for line in (
        "params: the key 'b' is missing",
        "params: the key 'c' is not expected",
        "x: expected an array, got None",
        "the keyword argument scale is missing",
        "the keyword argument scales is not expected",
    ):
        assert f"\n  - {line}" in text
    assert isinstance(error.value, TypeError)


def test_number_of_arguments(portable: PortableFunction) -> None:
    with pytest.raises(StructureError, match=r"expected 2 \(params, x\), got 1"):
        to_tf(portable)(PARAMS, scale=1.0)


def test_every_difference_of_shape_and_dtype_is_listed(portable: PortableFunction) -> None:
    f = to_tf(portable)
    with pytest.raises(ArgumentsError) as error:
        f({"w": np.ones((3, 5), np.float32), "b": np.zeros(4, np.int32)}, X[0], scale=1.0)
    text = str(error.value)
    assert "The arguments of dense are not those that it was exported with:" in text
    assert "\n  - params['w']: expected shape (3, 4), got (3, 5)" in text
    assert "\n  - x: expected shape (b, 3), got (3,)" in text
    assert "\n  - params['b']: expected float32, got int32" in text
    assert "Nothing is cast or reshaped for you: use tf.cast or tf.reshape" in text


def test_a_graph_for_converters_takes_float32_in_place_of_bfloat16() -> None:
    x = jnp.ones(3, jnp.bfloat16)
    f = to_tf(export(lambda x: x * 2, target=Target.converters())(x))
    with pytest.raises(DTypeError) as error:
        f(x)
    assert str(error.value) == (
        "The arguments of <lambda> are not those that it was exported with:\n"
        "  - x: expected float32, got bfloat16\n"
        "The target (converters of TensorFlow graphs) has float32 in place of bfloat16: pass "
        "tf.cast(x, tf.float32)."
    )
    assert f(tf.cast(x, tf.float32)).numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.float16, np.bool_])
def test_nothing_is_cast(portable: PortableFunction, dtype: Any) -> None:
    name = np.dtype(dtype).name
    for call in (to_tf(portable), tf.function(to_tf(portable), autograph=False)):
        with pytest.raises(DTypeError, match=f"x: expected float32, got {name}"):
            call(PARAMS, X.astype(dtype), scale=1.0)


@pytest.mark.parametrize(("x", "got"), [(X[:, :2], r"\(2, 2\)"), (X[None], r"\(1, 2, 3\)")])
def test_sizes_and_ranks(portable: PortableFunction, x: Any, got: str) -> None:
    with pytest.raises(ShapeError, match=rf"x: expected shape \(b, 3\), got {got}"):
        to_tf(portable)(PARAMS, x, scale=1.0)


def test_unknown_rank(portable: PortableFunction) -> None:
    f = to_tf(portable)
    g = tf.function(
        lambda x: f(PARAMS, x, scale=1.0)["y"],
        input_signature=[tf.TensorSpec(None)],
        autograph=False,
    )
    np.testing.assert_allclose(g(X), np.full((2, 4), 3.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the rank must be 2"):
        g(X[0])


def test_what_is_no_array(portable: PortableFunction) -> None:
    with pytest.raises(DTypeError, match=r"The argument x must be a tensor.*float32\[b,3\]"):
        to_tf(portable)(PARAMS, object(), scale=1.0)


def test_number_that_is_none_of_the_dtype() -> None:
    f = to_tf(export(lambda n: n + 1)(np.int32(1)))
    assert f(2).numpy() == 3
    for wrong in (1.5, 2**40, 1j):
        with pytest.raises(DTypeError, match=r"The argument n must be .* a scalar for int32\[\]"):
            f(wrong)
    narrow = to_tf(export(lambda n: n.astype("int8"))(jax.ShapeDtypeStruct((), "int4")))
    assert narrow(-8).numpy() == -8
    with pytest.raises(DTypeError, match=r"a scalar for int4\[\]\. Got: 8 "):
        narrow(8)


def test_shapes_that_contradict_each_other() -> None:
    f = to_tf(export(lambda x, y: x + y, polymorphic_shapes="(b,)")(X[0], X[0]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"y: expected shape \(b,\), got \(4,\): b is 3$"
    ):
        f(np.ones(3, np.float32), np.ones(4, np.float32))


RELEASE = ".".join(tf.__version__.split(".")[:2])
REMEDY = (
    f"Where JAX is installed, retarget it: jax2tf-bridge retarget FILE --tensorflow {RELEASE}, or "
    rf"in Python retarget\(portable, Target.tensorflow\('{RELEASE}'\)\)\. Or export it "
    r"again without a target, or serve it with a newer TensorFlow\."
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stablehlo_version": (99, 0, 0)}, "needs StableHLO 99.0.0 .*the installed TensorFlow"),
        ({"calling_convention_version": 99}, ".*calling convention 99; the installed TensorFlow"),
    ],
)
def test_function_that_is_too_new(portable: PortableFunction, change: Any, message: str) -> None:
    with pytest.raises(ModuleError, match=f"dense {message}.*{REMEDY}"):
        to_tf(changed(portable, **change))


def test_vjp_function() -> None:
    """Flat primals, then cotangents; a result for each primal, also those that were dropped."""

    def f(p: Any, n: Any, unused: Any, *, k: Any) -> Any:
        return p["a"] * n * k, n + 1

    a, n, k = np.array([1, 2], np.float32), np.array([3, 4], np.int32), np.float32(2)
    portable = export(f)({"a": a}, n, np.float32(9), k=k)
    assert portable.module.kept_arguments == (0, 1, 3)
    vjp = portable.vjp()
    assert [str(aval) for aval in vjp.in_avals] == [
        "float32[2]",
        "int32[2]",
        "float32[]",
        "float32[]",
        "float32[2]",
        "float0[2]",
    ]
    assert [str(aval) for aval in vjp.out_avals] == [
        "float32[2]",
        "float0[2]",
        "float32[]",
        "float32[]",
    ]
    g = to_tf(vjp)
    da, dn, d_unused, dk = g(
        a, n, np.float32(9), k, np.array([1, 1], np.float32), np.zeros(2, np.bool_)
    )
    np.testing.assert_allclose(da, n * k)
    assert dn.dtype == tf.bool
    np.testing.assert_array_equal(dn, [False, False])
    np.testing.assert_allclose(d_unused, 0)
    np.testing.assert_allclose(dk, np.sum(a * n))
    with pytest.raises(DTypeError, match="cotangent_1: expected bool, got int32"):
        g(a, n, np.float32(9), k, np.array([1, 1], np.float32), np.zeros(2, np.int32))


def gradient(f: Any) -> Any:
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(PARAMS, x, scale=1.0)["y"]
    return tape.gradient(y, x)


def test_without_gradient(portable: PortableFunction) -> None:
    f = to_tf(portable, with_gradient=False)
    for call in (f, tf.function(f, autograph=False)):
        with pytest.raises(LookupError, match="dense was converted with with_gradient=False"):
            gradient(call)
    np.testing.assert_allclose(gradient(to_tf(portable)), np.full((2, 3), 4))


def test_structure_without_the_types_of_the_exporting_process() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Weights:
        kernel: Any
        bias: Any

    exported = export(lambda w: Weights(w.kernel * 2, w.bias))(Weights(X, X[0]))
    portable = pickle.loads(pickle.dumps(exported))
    f = to_tf(portable)
    result = f({"kernel": X, "bias": X[0]})
    np.testing.assert_allclose(result["kernel"], 2 * X)
    with pytest.raises(StructureError, match="w: the key 'bias' is missing"):
        f({"kernel": X})
    with pytest.raises(StructureError, match=r"w: expected a Weights of 2 children \(as a dict"):
        f([X, X[0]])


def test_without_jax(portable: PortableFunction, tmp_path: Path) -> None:
    portables = {
        "all orders": portable.with_vjp(2),
        "key": export(lambda k: jax.random.uniform(k, (2,)))(jax.random.key(1)),
    }
    (tmp_path / "records").write_bytes(pickle.dumps(portables))
    expected = jax.random.uniform(jax.random.key(1), (2,))
    words = jax.random.key_data(jax.random.key(1)).tolist()
    out = run_in_tensorflow(
        """
        import pickle, sys
        import numpy as np, tensorflow as tf
        from jax2tf_bridge.to_tensorflow import to_tf
        with open(sys.argv[1], "rb") as file:
            records = pickle.load(file)
        f = to_tf(records["all orders"])
        params = {"w": tf.ones((3, 4)), "b": tf.zeros(4)}

        def gradient(x, order):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = gradient(x, order - 1) if order else f(params, x, scale=2.0)["y"] ** 2
            return tape.gradient(y, x)

        x = tf.ones((2, 3))
        print(f(params, x, scale=2.0)["y"].numpy().tolist())
        print(gradient(x, 0).numpy().tolist())
        print(gradient(x, 1).numpy().tolist())
        try:
            gradient(x, 2)
        except LookupError as e:
            print(e)
        print(to_tf(records["key"])(tf.constant(eval(sys.argv[2]), tf.uint32)).numpy().tolist())
        assert "jax" not in sys.modules
        """,
        str(tmp_path / "records"),
        str(words),
    )
    value, first, second, third, sample = out.splitlines()
    assert eval(value) == [[6.0] * 4] * 2
    np.testing.assert_allclose(eval(first), np.full((2, 3), 4 * 2 * 6 * 2))
    np.testing.assert_allclose(eval(second), np.full((2, 3), 3 * 4 * 2 * 2 * 2))
    assert "only VJPs of lower orders were made" in third
    np.testing.assert_allclose(eval(sample), expected, rtol=1e-6)


def test_a_gradient_that_is_saved_finds_inputs_by_identity() -> None:
    """TensorFlow compares tensors slowly, which takes long for many weights."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf.compat.v1.placeholder(tf.float32) for _ in range(3)]
        other = tf.identity(inputs[0])
    graph.inputs = list(inputs)
    _tf_compat.find_inputs_by_identity([other, tf.constant(1.0)])
    found = graph.inputs
    assert [found.index(each) for each in inputs] == [0, 1, 2]
    with pytest.raises(ValueError, match="is not in the list"):
        found.index(other)
    found.insert(0, other)
    assert [found.index(each) for each in (other, *inputs)] == [0, 1, 2, 3]
