"""convert() over pytrees of every registered kind, as arguments and as results."""

import collections
import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert, export
from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.to_tensorflow import to_tf
from tests.checking_types import Strict

X = np.array([1.0, 2.0], np.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Params:
    kernel: Any
    bias: Any
    units: int = dataclasses.field(default=1, metadata={"static": True})


class Point(NamedTuple):
    x: Any
    y: Any


class Box:
    """A custom node without keys."""

    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


jax.tree_util.register_pytree_node(
    Box, lambda b: ((b.content,), b.label), lambda label, children: Box(children[0], label)
)


def test_tensors_in_a_type_that_checks_for_arrays() -> None:
    """With sizes that stay open, where JAX would make it of numbers."""
    result = convert(lambda s: Strict(2 * s.x), polymorphic_shapes="b")(Strict(X))
    assert type(result) is Strict
    assert result.x.numpy().tolist() == [2, 4]


TREES: dict[str, Any] = {
    "dataclass": Params(X, [X]),
    "named tuple": Point(X, (X, X)),
    "None": (X, None, [None]),
    "empty": {"a": X, "b": {}, "c": [], "d": ()},
    "OrderedDict": collections.OrderedDict(z=X, a=X + 1),
    "defaultdict": collections.defaultdict(list, {"z": X, "a": X + 1}),
    "custom node": Box({"a": X}, "label"),
    "nested": {"a": [Point(X, None), Params(X, Box((X,), "l"))], "b": ({"c": X},)},
    "integer keys": {1: X, 0: X + 1},
    "bare": X,
}


def shift(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x * 2, tree)


def structure(tree: Any) -> Any:
    return jax.tree_util.tree_structure(tree)


def assert_same(tree: Any, expected: Any) -> None:
    assert structure(tree) == structure(expected)
    for a, b in zip(
        jax.tree_util.tree_leaves(tree), jax.tree_util.tree_leaves(expected), strict=True
    ):
        assert isinstance(a, tf.Tensor)
        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_arguments_and_results(tree: Any) -> None:
    assert_same(convert(shift)(tree), shift(tree))
    assert_same(to_tf(export(shift)(tree))(tree), shift(tree))


@pytest.mark.parametrize("name", ["dataclass", "OrderedDict", "nested"])
def test_in_a_graph_with_gradient(name: str) -> None:
    tree = TREES[name]
    f = convert(lambda t: sum(jnp.sum(x * x) for x in jax.tree_util.tree_leaves(t)))

    @tf.function(autograph=False)
    def gradient() -> Any:
        leaves, definition = jax.tree_util.tree_leaves(tree), structure(tree)
        leaves = [tf.constant(leaf) for leaf in leaves]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            loss = f(definition.unflatten(leaves))
        return tape.gradient(loss, leaves)

    for found, leaf in zip(gradient(), jax.tree_util.tree_leaves(tree), strict=True):
        np.testing.assert_allclose(found, 2 * leaf)


def test_keyword_arguments() -> None:
    def f(x: Any, *rest: Any, scale: Any, **options: Any) -> Any:
        return {"sum": x + sum(rest) * scale, "b": options["b"]["c"], "a": options["a"]}

    result = convert(f)(X, X, X, scale=2.0, b={"c": X}, a=None)
    assert list(result) == ["a", "b", "sum"]
    np.testing.assert_allclose(result["sum"], X + 2 * X * 2)
    assert result["a"] is None
    in_graph = tf.function(convert(f), autograph=False)(X, X, scale=2.0, b={"c": X}, a=3.0)
    np.testing.assert_allclose(in_graph["a"], 3)


def test_order_of_keyword_arguments_does_not_matter() -> None:
    traces = []

    def f(**kwargs: Any) -> Any:
        traces.append(list(kwargs))
        return kwargs["a"] - kwargs["b"]

    g = convert(f)
    assert float(g(a=3.0, b=1.0)) == float(g(b=1.0, a=3.0)) == 2
    assert len(traces) == 1


def test_no_arguments() -> None:
    f = convert(lambda: {"one": jnp.ones(2)})
    np.testing.assert_allclose(f()["one"], [1, 1])
    np.testing.assert_allclose(tf.function(f)()["one"], [1, 1])


@pytest.mark.parametrize("result", [None, (), {}, [None, {}]], ids=str)
def test_no_results(result: Any) -> None:
    f = convert(lambda x: result)
    assert f(X) == result

    @tf.function(autograph=False)
    def in_graph(x: Any) -> Any:
        assert f(x) == result
        return x

    in_graph(X)


def test_structure_is_part_of_the_signature() -> None:
    traces = []

    def f(tree: Any) -> Any:
        traces.append(tree)
        return jax.tree_util.tree_leaves(tree)[0]

    g = convert(f)
    for tree in ([X], (X,), {"a": X}, [X], Params(X, None), Params(X, None, units=2)):
        g(tree)
    assert len(traces) == 5


def module_with(value: Any) -> Any:
    module = tf.Module()
    module.attribute = value
    return module


WRAPPED: dict[str, Any] = {
    "list": [tf.Variable(X), X],
    "dict": {"b": tf.Variable(X), "a": [X]},
    "tuple": (tf.Variable(X), {"a": (tf.Variable(X),)}),
    "named tuple": Point(tf.Variable(X), [tf.Variable(X)]),
    "OrderedDict": collections.OrderedDict(z=tf.Variable(X), a=X),
}


@pytest.mark.parametrize("value", WRAPPED.values(), ids=WRAPPED.keys())
def test_containers_that_tensorflow_wrapped(value: Any) -> None:
    plain = jax.tree_util.tree_map(np.asarray, value, is_leaf=lambda x: isinstance(x, tf.Variable))
    # A copy: TensorFlow wraps what lies within in place.
    wrapped = module_with(jax.tree_util.tree_map(lambda x: x, value)).attribute
    assert type(wrapped) is not type(value)
    expected = shift(plain)
    f = convert(shift)
    assert_same(f(wrapped), expected)
    assert_same(tf.function(f, autograph=False)(wrapped), expected)
    # Within other containers, and others within them.
    nested = {"a": (wrapped, [X])}
    assert_same(f(nested), {"a": (expected, [2 * X])})
    inner = module_with([Box(wrapped, "l")]).attribute
    assert_same(f(inner)[0].content, expected)
    g = to_tf(export(shift)(plain))
    assert_same(g(wrapped), expected)


def test_wrapped_defaultdict_keeps_its_kind() -> None:
    wrapped = module_with(collections.defaultdict(list, {"a": tf.Variable(X)})).attribute
    result = convert(shift)(wrapped)
    assert isinstance(result, collections.defaultdict)
    assert result.default_factory is list


UNSORTABLE = {1: X, "a": X}


def return_unsortable(x: Any) -> Any:
    return {"heads": [{int(key) if key == "1" else key: x for key in ("1", "a")}]}


@pytest.mark.parametrize("way", [convert, export], ids=["convert", "export"])
@pytest.mark.parametrize(
    ("f", "argument", "place"),
    [
        (lambda batch: batch, [UNSORTABLE], "The argument batch[0]"),
        (return_unsortable, X, "The result['heads'][0] of return_unsortable"),
        (jax.jit(return_unsortable), X, "The result['heads'][0] of return_unsortable"),
    ],
    ids=["argument", "result", "result of a jitted function"],
)
def test_keys_that_jax_cannot_sort(way: Any, f: Any, argument: Any, place: str) -> None:
    message = (
        f"{place} is a dict with keys that JAX cannot sort: 1 (int), 'a' (str). Write them as "
        "strings: '1', 'a'."
    )
    with pytest.raises(StructureError, match=f"^{re.escape(message)}$"):
        way(f)(argument)
    with pytest.raises(StructureError, match=re.escape("argument batch['x'] is a dict")):
        way(lambda *, batch: batch)(batch={"x": UNSORTABLE})


def test_keys_within_a_function_that_jax_cannot_sort() -> None:
    with pytest.raises(ValueError, match="Comparator") as caught:
        export(lambda x: jax.jit(shift)({1: x, "a": x}))(X)
    assert "write all of them as strings" in caught.value.__notes__[-1]


def test_flax_parameters() -> None:
    flax = pytest.importorskip("flax", reason="flax is not installed")
    import flax.linen as nn

    model = nn.Dense(3)
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))
    frozen = flax.core.freeze(params)
    for tree in (params, frozen):
        f = convert(model.apply, polymorphic_shapes=[None, "(b, _)"])
        expected: Any = model.apply(tree, X[None])
        np.testing.assert_allclose(f(tree, X[None]), expected, rtol=1e-6)
    result = convert(shift)(frozen)
    assert isinstance(result, flax.core.FrozenDict)


# Flax calls it where JAX is 0.8.
@pytest.mark.filterwarnings("ignore:jax.* is deprecated; use jax.:DeprecationWarning")
def test_flax_nnx_state() -> None:
    pytest.importorskip("flax", reason="flax is not installed")
    from flax import nnx

    definition, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))

    def apply(state: Any, x: Any) -> Any:
        return nnx.merge(definition, state)(x)

    f = convert(apply, polymorphic_shapes=[None, "(b, _)"])
    np.testing.assert_allclose(f(state, X[None]), apply(state, X[None]), rtol=1e-6)
    doubled = convert(shift)(state)
    assert structure(doubled) == structure(state)

    jitted = nnx.jit(lambda x: x * 2)
    np.testing.assert_allclose(convert(jitted, polymorphic_shapes="(b,)")(X), 2 * X)


def test_equinox_module() -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    expected = model(X)
    np.testing.assert_allclose(convert(model)(X), expected, rtol=1e-5)
    arrays, static = eqx.partition(model, eqx.is_array)
    f = convert(lambda a, x: eqx.combine(a, static)(x))
    np.testing.assert_allclose(f(arrays, X), expected, rtol=1e-5)
    assert isinstance(convert(shift)(arrays), eqx.nn.MLP)
