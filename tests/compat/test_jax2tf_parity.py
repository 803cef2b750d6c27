"""Compares with jax2tf, in one process, what users and tools match on.

Static shapes only: with symbolic ones jax2tf fails on the newest pairs.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from tests.compat.installed_jax2tf import installed_jax2tf
from tests.fresh_process import run_python
from tests.sampling import sampled

jax2tf = installed_jax2tf()

try:
    jax2tf.convert(lambda x: x)(np.float32(1.0))
except NotImplementedError as e:
    pytest.skip(f"jax2tf fails on this pair of releases: {e}", allow_module_level=True)

Converter = Callable[..., Callable[..., Any]]
BOTH = {"jax2tf": jax2tf.convert, "bridge": convert}
X = np.array([[0.5, 1.0], [2.0, 3.0]], np.float32)


def both(use: Callable[[Converter], Any]) -> tuple[Any, Any]:
    """Calls `use` with each of the two converters."""
    return use(jax2tf.convert), use(convert)


def names_in(graph: Any, *wanted: str) -> list[tuple[str, str]]:
    return [
        (op.name, op.type)
        for op in graph.get_operations()
        if any(w in op.name for w in ("jax2tf", *wanted))
    ]


def test_names_of_arguments_and_results() -> None:
    def graph(converter: Converter) -> list[tuple[str, str]]:
        f = converter(lambda x, y: (jnp.sin(x), [x + y, y]))
        spec = tf.TensorSpec((2, 2))
        concrete = tf.function(f, autograph=False).get_concrete_function(spec, spec)
        return names_in(concrete.graph, "XlaCallModule")

    theirs, ours = both(graph)
    assert ours == theirs
    assert [name for name, _ in ours] == [
        "jax2tf_arg_0",
        "jax2tf_arg_1",
        "XlaCallModule",
        "jax2tf_out",
        "jax2tf_out_1",
        "jax2tf_out_2",
    ]


def test_names_of_a_second_call_are_uniquified() -> None:
    def graph(converter: Converter) -> list[tuple[str, str]]:
        f = converter(jnp.sin)
        twice = tf.function(lambda x: f(f(x)), autograph=False)
        return names_in(twice.get_concrete_function(tf.TensorSpec((2,))).graph)

    theirs, ours = both(graph)
    assert ours == theirs
    assert ("jax2tf_arg_0_1", "Identity") in ours


def test_names_of_keyword_arguments_go_on_counting() -> None:
    def graph(converter: Converter) -> list[tuple[str, str]]:
        f = converter(lambda x, *, w: x @ w["kernel"] + w["bias"])
        function = tf.function(lambda x, w: f(x, w={"kernel": w, "bias": x}), autograph=False)
        spec = tf.TensorSpec((2, 2))
        return names_in(function.get_concrete_function(spec, spec).graph)

    theirs, ours = both(graph)
    assert ours == theirs


@pytest.mark.parametrize("order", [1, 2])
def test_names_in_gradients(order: int) -> None:
    def graph(converter: Converter) -> list[tuple[str, str]]:
        f = converter(lambda x: jnp.sin(x) * x)

        def derivative(x: Any) -> Any:
            y = f(x)
            for _ in range(order):
                (y,) = tf.gradients(y, [x])
            return y

        function = tf.function(derivative, autograph=False)
        return names_in(function.get_concrete_function(tf.TensorSpec((2,))).graph)

    theirs, ours = both(graph)
    assert ours == theirs
    assert any("jax2tf_vjp/jax2tf_arg_0" in name for name, _ in ours)
    assert any("jax2tf_vjp/jax2tf_out" in name for name, _ in ours)


def function_with_everything(x: Any, n: Any, unused: Any) -> Any:
    del unused
    return jnp.sin(x) * n.astype(jnp.float32), n + 1, x.astype(jnp.bfloat16)


@pytest.mark.parametrize("unconnected", list(tf.UnconnectedGradients))
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_gradients_of_unused_and_integer_arguments(unconnected: Any, in_graph: bool) -> None:
    def gradients(converter: Converter) -> Any:
        f = converter(function_with_everything)

        def run(x: Any, n: Any, unused: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([x, unused])
                y, m, z = f(x, n, unused)
                loss = tf.reduce_sum(y)
            return [
                tape.gradient(out, [x, n, unused], unconnected_gradients=unconnected)
                for out in (loss, y, m, z)
            ]

        args = (tf.constant(X), tf.constant([[1, 2], [3, 4]]), tf.constant([5.0, 6.0]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (tf.function(run, autograph=False) if in_graph else run)(*args)

    theirs, ours = both(gradients)
    for one, other in zip(theirs, ours, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("unconnected", list(tf.UnconnectedGradients))
def test_gradients_through_integers_of_the_users_graph(unconnected: Any) -> None:
    """Here the integer argument comes out of differentiable values."""

    def gradients(converter: Converter) -> Any:
        f = converter(lambda x, n: x * n.astype(jnp.float32))

        @tf.function(autograph=False)
        def run(x: Any, s: Any) -> Any:
            y = f(x, tf.cast(s, tf.int32))
            return tf.gradients(y, [x, s], unconnected_gradients=unconnected)

        return run(tf.constant(X), tf.constant(2.0))

    theirs, ours = both(gradients)
    np.testing.assert_allclose(theirs[0], ours[0])
    assert (theirs[1] is None) == (ours[1] is None)
    if theirs[1] is not None:
        np.testing.assert_allclose(theirs[1], ours[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_other_dtypes(dtype: str) -> None:
    def gradient(converter: Converter) -> Any:
        f = converter(lambda x: x * x * x)
        x = tf.cast(tf.constant(X), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    theirs, ours = both(gradient)
    assert theirs.dtype == ours.dtype
    wide = [tf.cast(v, tf.float32) for v in (theirs, ours)]
    np.testing.assert_allclose(wide[0], wide[1], rtol=1e-2)


VALUES: dict[str, Any] = {
    "python int": 3,
    "python float": 2.5,
    "python bool": True,
    "python complex": 1 + 2j,
    "float64 array": np.array([1.0, 2.0]),
    "int64 array": np.array([1, 2]),
    "float16 scalar": np.float16(2),
    "jax array": jnp.arange(3),
    "tensor of int64": tf.constant([1, 2], tf.int64),
    "tensor of float64": tf.constant([1.0, 2.0], tf.float64),
    "tensor of uint16": tf.constant([1, 2], tf.uint16),
    "variable": tf.Variable([1.0, 2.0]),
}


@pytest.mark.parametrize("x64", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("name", sampled([*VALUES], every=3))
def test_types_of_values(name: str, x64: bool) -> None:
    value = VALUES[name]

    def call(converter: Converter) -> Any:
        with jax.enable_x64(x64):
            return converter(lambda x: (x, x + x))(value)

    theirs, ours = both(call)
    for a, b in zip(theirs, ours, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


RESULTS: dict[str, Callable[[Any], Any]] = {
    "number of Python": lambda x: 3.0,
    "scalar of NumPy": lambda x: np.float64(2),
    "array of NumPy": lambda x: np.array([1, 2]),
    "weakly typed": lambda x: jnp.asarray(2) + 1,
    "bool": lambda x: x > 0,
    "bfloat16": lambda x: x.astype(jnp.bfloat16),
    "complex": lambda x: jax.lax.complex(x, x),
    "widened": lambda x: x.astype("float64"),
    "index": lambda x: jnp.argmax(x),
    "raw key": lambda x: jax.random.PRNGKey(0),
    "nothing": lambda x: None,
    "empty": lambda x: x[:0],
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize("x64", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("name", sampled([*RESULTS], every=3, keep=["weakly typed"]))
def test_types_of_results(name: str, x64: bool) -> None:
    f = RESULTS[name]

    def call(converter: Converter) -> Any:
        with jax.enable_x64(x64):
            return converter(lambda x: {"result": f(x)})(X)

    theirs, ours = both(call)
    assert ours.keys() == theirs.keys()
    for a, b in zip(tf.nest.flatten(theirs), tf.nest.flatten(ours), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)


# Arguments that jax2tf refuses, or for which its results are wrong.
MORE: dict[str, tuple[Any, Any]] = {
    "key": (jax.random.key(7), jnp.uint32([0, 7])),
    "float0": (np.zeros((2,), jax.dtypes.float0), np.zeros(2, bool)),
    "float beyond float32": (1e40, np.float32(np.inf)),
}


@pytest.mark.parametrize("name", MORE)
def test_values_that_the_bridge_alone_takes(name: str) -> None:
    value, expected = MORE[name]

    def pass_on(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=r"should be NumPy array, scalar, tf\.Variable"):
        jax2tf.convert(pass_on)(value)
    np.testing.assert_array_equal(convert(pass_on)(value), expected)


def test_keys_that_the_bridge_alone_gives() -> None:
    with pytest.raises(ValueError, match="safe_zip"):
        jax2tf.convert(lambda seed: jax.random.key(seed))(7)
    words = convert(lambda seed: jax.random.key(seed))(7)
    assert words.dtype == tf.uint32
    np.testing.assert_array_equal(words, [0, 7])


def test_number_that_does_not_fit_is_refused_by_both() -> None:
    with pytest.raises(OverflowError):
        jax2tf.convert(lambda x: x)(2**40)
    with pytest.raises(TypeError, match=r"argument x is 1099511627776, which does not fit int32"):
        convert(lambda x: x)(2**40)


@pytest.mark.parametrize("converter", BOTH.values(), ids=BOTH.keys())
def test_errors_have_the_same_types(converter: Converter) -> None:
    with pytest.raises(TypeError, match=r"callable"):
        converter(3)
    with pytest.raises(TypeError, match=r"is the string|not a valid JAX type"):
        converter(lambda x: x)("a text")
    with pytest.raises(ValueError, match="JAX transformation"):
        jax.jit(converter(jnp.sin))(1.0)
    with pytest.raises(ValueError, match="native_serialization_platforms"):
        converter(jnp.sin, native_serialization_platforms=["abacus"])
    with pytest.raises(ValueError, match=r"polymorphic_shapes|safe_zip"):
        converter(jnp.sin, polymorphic_shapes="(b, c)")(np.float32(1))


@pytest.mark.parametrize("name", ["enable_xla", "native_serialization"])
def test_deprecated_arguments_warn_at_the_callers_line(name: str) -> None:
    def warned(converter: Converter) -> Any:
        with pytest.warns(DeprecationWarning, match=name) as caught:
            f = converter(jnp.sin, **{name: True})
        assert f(np.float32(0)).numpy() == 0
        return caught[0].filename

    assert both(warned) == (__file__, __file__)


def test_decorator() -> None:
    def use(converter: Converter) -> Any:
        @functools.partial(converter, with_gradient=False)
        def f(x: Any) -> Any:
            return x + 1

        return f(1.0)

    theirs, ours = both(use)
    assert theirs == ours == 2


CONTAINERS = """
import jax.numpy as jnp, tensorflow as tf
m = tf.Module()
m.params = {"w": [tf.Variable(2.0), (tf.Variable(3.0), tf.Variable(4.0))]}
f = lambda p: {"sum": p["w"][0] + p["w"][1][0] * p["w"][1][1]}
for converter in (jax2tf.convert, convert, jax2tf.convert):
    print({k: v.numpy().item() for k, v in converter(f)(m.params).items()})
"""


def test_both_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """jax2tf registers TensorFlow's container wrappers as pytrees; nothing does so twice."""
    exec(CONTAINERS, {"jax2tf": jax2tf, "convert": convert})
    assert capsys.readouterr().out.splitlines() == ["{'sum': 14.0}"] * 3


@pytest.mark.slow
def test_both_in_one_process_in_the_other_order() -> None:
    """Most tests import the bridge before jax2tf, as this file does; here jax2tf is the first."""
    order = "from jax.experimental import jax2tf\nfrom jax2tf_bridge import convert\n"
    assert run_python(order + CONTAINERS).splitlines() == ["{'sum': 14.0}"] * 3


def test_jax_sees_through_wrappers_of_containers_once_something_is_converted() -> None:
    module = tf.Module()
    module.params = {"w": [tf.Variable(2.0), (tf.Variable(3.0), tf.Variable(4.0))]}
    convert(lambda x: x)
    assert [v.numpy() for v in jax.tree.leaves(module.params)] == [2, 3, 4]
    doubled = jax.tree.map(lambda v: v.numpy() * 2, module.params)
    assert doubled == {"w": [4, (6, 8)]}
    assert type(jax.tree.map(lambda v: v, module.params["w"])) is list


WITHOUT_JAX2TF = """
import sys
sys.modules["jax.experimental.jax2tf"] = None  # as in a JAX without it
import jax, tensorflow as tf
from jax2tf_bridge import call_tf
m = tf.Module()
m.params = {"w": [tf.Variable(2.0), (tf.Variable(3.0), tf.Variable(4.0))]}
assert len(jax.tree.leaves(m.params)) == 1, "importing has no side effect"
call_tf(tf.sin)
doubled = jax.tree.map(lambda v: float(v.numpy()) * 2, m.params)
print(doubled["w"] == [4, (6, 8)], type(doubled) is type(m.params))
print(jax.tree.map(lambda v: float(v.numpy()), m.params["w"]))
"""


@pytest.mark.slow
def test_wrappers_are_registered_in_a_jax_without_jax2tf() -> None:
    found = run_python(WITHOUT_JAX2TF).splitlines()
    assert found == ["True True", "[2.0, (3.0, 4.0)]"]
