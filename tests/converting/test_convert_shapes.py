"""convert(): polymorphic_shapes of every form, and shapes that break them."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import ShapeError, StructureError
from tests.sampling import sampled

X = np.ones((2, 3), np.float32)


def total(x: Any) -> Any:
    return jnp.sum(x, axis=-1)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "b, 3",
        "(b, 3)",
        "(b, _)",
        "(b, ...)",
        "...",
        "b, c",
        "(_, 3)",
        ["(b, _)"],
        ("(b, _)",),
        [None],
        "2*b, 3",
        "(b, a + 1)",
    ],
    ids=str,
)
def test_forms(spec: Any) -> None:
    f = convert(total, polymorphic_shapes=spec)
    np.testing.assert_allclose(f(X), [3, 3])


def test_one_string_for_every_argument() -> None:
    f = convert(lambda x, y: x + y, polymorphic_shapes="(b, _)")
    for batch in (1, 2):
        x = np.ones((batch, 3), np.float32)
        np.testing.assert_allclose(f(x, x), 2 * x)


def test_prefixes_of_pytrees() -> None:
    def f(params: Any, x: Any) -> Any:
        return x[0] @ params["w"] + params["b"] + x[1]

    g = convert(f, polymorphic_shapes=[None, ("(n, _)", "n, 2")])
    h = convert(f, polymorphic_shapes=[{"w": "(_, _)", "b": None}, "(n, _)"])
    params = {"w": X.T, "b": np.float32(1)}
    for call in (g, h):
        for n in (2, 4):
            x = (np.ones((n, 3), np.float32), np.ones((n, 2), np.float32))
            np.testing.assert_allclose(call(params, x), f(params, x))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("b + 2", [(3,), (5,)]),
        ("3*b", [(3,), (6,)]),
        ("b, 2*b", [(1, 2), (3, 6)]),
        ("b, b + 1", [(1, 2), (4, 5)]),
        ("a, b, a*b", [(2, 3, 6)]),
        ("b, floordiv(b, 2)", [(4, 2), (5, 2)]),
        ("b, mod(b, 3)", [(4, 1), (5, 2)]),
    ],
)
def test_expressions(spec: str, shapes: Any) -> None:
    f = tf.function(convert(lambda x: x * 2, polymorphic_shapes=spec), autograph=False)
    for shape in shapes:
        x = np.ones(shape, np.float32)
        np.testing.assert_allclose(f(x), 2 * x)


@pytest.mark.parametrize("spec", ["b*b, 3", "b, max(3, c)"])
def test_expressions_that_jax_does_not_solve(spec: str) -> None:
    with pytest.raises(ValueError, match="Cannot solve for values of dimension variables"):
        convert(total, polymorphic_shapes=spec)(np.ones((4, 3), np.float32))


def test_shapes_of_results_follow_from_static_arguments() -> None:
    f = convert(
        lambda x, y: (jnp.concatenate([x, y]), x.reshape(-1)),
        polymorphic_shapes=["(a, k)", "(b, k)"],
    )
    function = tf.function(f, autograph=False)
    joined, flat = function.get_concrete_function(
        tf.TensorSpec((2, 3)), tf.TensorSpec((5, 3))
    ).structured_outputs
    assert joined.shape.as_list() == [7, 3]
    assert flat.shape.as_list() == [6]
    joined, flat = function.get_concrete_function(
        tf.TensorSpec((None, 3)), tf.TensorSpec((5, 3))
    ).structured_outputs
    assert joined.shape.as_list() == [None, 3]
    assert flat.shape.as_list() == [None]


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            "(b, c, d)",
            ShapeError,
            r"argument x has shape \(2, 3\).*'\(b, c, d\)': the entry has 3 dimensions",
        ),
        (
            "(b, 4)",
            ShapeError,
            r"argument x has shape \(2, 3\).*'\(b, 4\)': dimension 1 is 3 and not 4",
        ),
        ("(b, 3", ShapeError, r"The argument x .*'\(b, 3'"),
        ("(b, 3 $)", ShapeError, r"The argument x .*'\(b, 3 \$\)'"),
        (["b, _", None], StructureError, "one entry for the positional argument"),
        ({"w": "b, _"}, StructureError, "has an entry 'w', but no argument has this name"),
        (3, StructureError, "must be None, a string, a dict by the names of arguments, or a seq"),
        ([{"a": "b, _"}], StructureError, "argument x is {'a': 'b, _'}, which is not a prefix"),
    ],
    ids=str,
)
def test_wrong_specifications(spec: Any, error: Any, message: str) -> None:
    f = convert(total, polymorphic_shapes=spec)
    with pytest.raises(error, match=message) as caught:
        f(X)
    assert isinstance(caught.value, (ValueError, TypeError))


def test_wrong_specification_names_the_path() -> None:
    f = convert(lambda p: p["w"][1], polymorphic_shapes=[{"w": [None, "(b, 4)"]}])
    with pytest.raises(ShapeError, match=r"The argument p\['w'\]\[1\] has shape \(2, 3\)"):
        f({"w": [X, X]})


def test_open_dimension_without_a_variable() -> None:
    f = tf.function(convert(total), input_signature=[tf.TensorSpec((None, 3))])
    with pytest.raises(
        ShapeError, match=r"The argument x has shape \(\?, 3\).*polymorphic_shapes=\['\(b, 3\)'\]"
    ):
        f(X)


def test_open_dimension_of_a_keyword_argument() -> None:
    f = convert(lambda *, x: total(x))
    with pytest.raises(ShapeError, match=r"The argument x has shape \(\?, 3\)"):
        tf.function(lambda x: f(x=x), input_signature=[tf.TensorSpec((None, 3))])(X)


def trip(*arrays: Any) -> Any:
    """XLA's shape refinement stumbles here before it comes to JAX's check."""
    return [x * 2 for x in arrays]


NO_MATCH = "Input shapes do not match the (polymorphic shapes spec|symbolic shape constr)"
BROKEN: dict[str, Any] = {
    "(b, b)": ("(b, b)", (), [(2, 3)], "b is 2"),
    "2*b": ("(2*b,)", (), [(3,)], "Division had remainder 1 when computing the value of b"),
    "two arguments": ("(b,)", (), [(3,), (4,)], "b is 3"),
    "constraint": ("(b,)", ("b >= 4",), [(3,)], "b >= 4 of trip"),
    "modulo": ("(b,)", ("mod(b, 4) == 0",), [(6,)], r"mod\(b, 4\) == 0 of trip"),
    "size 0": ("(b,)", (), [(0,)], "Expected value >= 1 for dimension variable b. Got: 0"),
}


MODES = ["eager", "graph", "jit_compile", "open graph"]
BROKEN_IN_EACH_MODE = [(name, mode) for name in BROKEN for mode in MODES]


# Each is broken eagerly, and each mode has one that a size alone breaks, and one of two sizes.
@pytest.mark.parametrize(
    "case",
    sampled(
        BROKEN_IN_EACH_MODE,
        every=100,
        keep=lambda case: case[1] == "eager" or case[0] in ("two arguments", "modulo"),
    ),
    ids=str,
)
def test_shapes_that_break_the_specification(case: tuple[str, str]) -> None:
    """The texts in full, and after loading, are in to_tensorflow/test_shape_checks.py."""
    name, mode = case
    spec, constraints, shapes, detail = BROKEN[name]
    f = convert(trip, polymorphic_shapes=spec, polymorphic_constraints=constraints)
    if mode == "open graph":
        f = tf.function(
            f, input_signature=[tf.TensorSpec([None] * len(s)) for s in shapes], autograph=False
        )
    elif mode != "eager":
        f = tf.function(f, jit_compile=mode == "jit_compile" or None)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(*(np.ones(s, np.float32) for s in shapes))
    # TensorFlow puts brackets around each piece of an assertion's message.
    text = str(caught.value).replace("] [", " ")
    assert re.search(f"{NO_MATCH}[^$]*{detail}", text)
    assert "stablehlo" not in text


@pytest.mark.parametrize("mode", ["eager", "graph", "jit_compile"])
def test_argument_expectation_and_finding_are_named(mode: str) -> None:
    f = convert(lambda p, q: p["x"] + q, polymorphic_shapes=[None, "(b, 2*b)"])
    if mode != "eager":
        f = tf.function(f, autograph=False, jit_compile=mode == "jit_compile")
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"q: expected shape \(b, 2\*b\), got \(2, 5\): 2\*b is 4 for b = 2",
    ):
        f({"x": 1.0}, np.ones((2, 5), np.float32))


def test_constraints_that_hold() -> None:
    f = convert(
        lambda x: x[:4] + x[4:8],
        polymorphic_shapes="(b,)",
        polymorphic_constraints=["b >= 8", "b <= 10", "mod(b, 2) == 0"],
    )
    assert f(np.ones(8, np.float32)).shape == (4,)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"constraint b <= 10 of .*: b is 12$"):
        f(np.ones(12, np.float32))


def test_constraint_that_cannot_be_read() -> None:
    with pytest.raises(
        ShapeError,
        match=r"polymorphic_constraints=\['b > = 4'\] cannot be read: The constraint .* column 5: ",
    ):
        convert(total, polymorphic_shapes="(b,)", polymorphic_constraints=["b > = 4"])(X[0])


def test_polymorphic_calls_export_once() -> None:
    traces = []

    def traced(x: Any) -> Any:
        traces.append(x.shape)
        return x + 1

    f = convert(traced, polymorphic_shapes="(b, _)")
    for batch in range(1, 9):
        assert f(np.zeros((batch, 3), np.float32)).shape == (batch, 3)
    assert [str(shape) for shape in traces] == ["(b, 3)"]


def test_static_shapes_export_for_each() -> None:
    traces: list[Any] = []

    def traced(x: Any) -> Any:
        traces.append(x.shape)
        return x

    f = convert(traced)
    for batch in (1, 2, 1, 2):
        f(np.zeros((batch, 3), np.float32))
    assert traces == [(1, 3), (2, 3)]


def test_poly_shape_of_jax2tf() -> None:
    jax2tf = pytest.importorskip("jax.experimental.jax2tf", reason="this JAX has no jax2tf")
    with pytest.warns(DeprecationWarning, match="PolyShape"):
        shape = jax2tf.PolyShape("b", ...)
    assert convert(total, polymorphic_shapes=[shape])(X).shape == (2,)


@pytest.mark.parametrize(
    ("shapes", "constraints", "first", "second"),
    [
        (["(b,)", "(min(b, 8),)"], [], 20, 8),
        (["(b,)", "(mod(b, 4),)"], [], 6, 2),
        (["(b,)", "(floordiv(8, b - 1),)"], ["b >= 2"], 3, 4),
    ],
    ids=str,
)
def test_sizes_that_follow_without_being_linear(
    shapes: list[str], constraints: list[str], first: int, second: int
) -> None:
    """With the first unknown while tracing, nothing is known against the second."""
    f = convert(
        lambda x, y: x.sum() + y.sum(),
        polymorphic_shapes=shapes,
        polymorphic_constraints=constraints,
    )
    specs = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([second], tf.float32)]
    traced = tf.function(f, input_signature=specs, autograph=False)
    assert float(traced(tf.ones(first), tf.ones(second))) == first + second
