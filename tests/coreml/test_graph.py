"""The graphs that coremltools reads give JAX's results in TensorFlow, in int32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature

# Private: coremltools, which save_coreml needs, is not in the environment of the fast tests.
from jax2tf_bridge.coreml._graph import make_graph
from jax2tf_bridge.frozen_graphs import ModelRuntime, freeze_signatures

RUNTIME = ModelRuntime("Core ML", "save_coreml")
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
SEED = np.array([3, 2**31 + 5], np.uint32)


def accumulate(x: Any) -> Any:
    """Has a loop whose body has a branch."""

    def step(total: Any, row: Any) -> Any:
        total = jax.lax.cond(row.sum() > 0, lambda: total + row, lambda: total - row)
        return total, total.max()

    return jax.lax.scan(step, jnp.zeros(4), x)


def search(x: Any, limit: Any) -> Any:
    """Has a loop in the body of a loop, and counts with integers."""

    def outer(state: Any) -> Any:
        i, total = state
        inner = jax.lax.fori_loop(0, i + 1, lambda j, t: t + x.sum() * j, total)
        return i + 1, inner

    return jax.lax.while_loop(lambda state: state[0] < limit, outer, (0, x[0, 0]))


def overflow(x: Any) -> Any:
    """Computes with bytes; most results exceed them."""
    places = jnp.array([0, 0, 1])
    return (
        jax.lax.reduce(x, jnp.int8(0), jax.lax.add, (0,)),
        jax.lax.reduce(x, jnp.int8(1), jax.lax.mul, (0,)),
        jax.lax.cumsum(x, 1, reverse=True),
        x.at[places].add(x),
        jax.ops.segment_sum(x.astype(jnp.uint8), places, 2),
        x * x - 7,
    )


def draw(seed: Any, x: Any) -> Any:
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.bits(key, (2,)), jnp.isnan(x)


def trace(function: Any, args: list[Any]) -> Any:
    (frozen,) = freeze_signatures(Signature(function, args=args), None, None, RUNTIME).values()
    shapes: dict[str, Any] = {name: served.shape or [1] for name, served in frozen.inputs.items()}
    return make_graph(frozen.graph, shapes)


def compare(graph: Any, function: Any, args: list[Any]) -> None:
    inputs = [np.atleast_1d(a.view(np.int32) if a.dtype == np.uint32 else a) for a in args]
    results = graph(*map(tf.constant, inputs))
    for result, expected in zip(results, jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        wanted = np.asarray(expected)
        wanted = wanted.view(np.int32) if wanted.dtype == np.uint32 else wanted
        assert result.dtype.name == wanted.dtype.name
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "args"), [(accumulate, [X]), (search, [X, np.int32(4)])], ids=["branch", "nested"]
)
def test_loops_give_the_results_of_jax(function: Any, args: list[Any]) -> None:
    compare(trace(function, args), function, args)


def test_narrow_integers_wrap_around() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (3, 4)).astype(np.int8)
    results = trace(overflow, [x])(tf.constant(x, tf.int32))
    for result, expected in zip(results, jax.jit(overflow)(x), strict=True):
        np.testing.assert_array_equal(result, expected.astype(np.int32))


@pytest.mark.costly
def test_random_numbers_are_those_of_jax_with_names_that_coremltools_finds() -> None:
    graph = trace(draw, [SEED, X])
    compare(graph, draw, [SEED, X])
    definition = graph.graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    assert [tensor.op.name for tensor in graph.inputs] == ["seed", "x"]
    assert {"output_0", "output_1"} <= nodes.keys()
    functions = {function.signature.name: function for function in definition.library.function}
    loops = [node for node in definition.node if node.op in ("While", "StatelessWhile")]
    assert loops
    for loop in loops:
        body = functions[loop.attr["body"].func.name]
        names = [argument.name for argument in body.signature.output_arg]
        count = len(loop.attr["T"].list.type)
        assert names == ["counter", "limit", *(f"identity_{i}" for i in range(2, count))]
        for node in definition.node:
            if any(tensor.partition(":")[0] == loop.name for tensor in node.input):
                assert (node.op, len(node.input)) == ("Identity", 1)
    every = [*definition.node, *(node for f in functions.values() for node in f.node_def)]
    dtypes = {
        dtype for node in every for a in node.attr.values() for dtype in (a.type, *a.list.type)
    }
    integers = {tf.as_dtype(dtype) for dtype in dtypes - {0} if tf.as_dtype(dtype).is_integer}
    assert integers == {tf.int32}
