"""Functions of arrays with six and more axes become graphs whose arrays have at most five."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature

# Private: coremltools, which save_coreml needs, is not in the environment of the fast tests.
from jax2tf_bridge.coreml._graph import make_graph
from jax2tf_bridge.errors import UnsupportedByTargetError
from jax2tf_bridge.frozen_graphs import ModelRuntime, freeze_signatures

X = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
Function = Callable[[Any], Any]


def split(x: Any) -> Any:
    """Returns the axes batch, row, its place, column, its place and channel."""
    return x.reshape(-1, 2, 2, 3, 2, 3)


def patches(x: Any) -> Any:
    return split(x).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 6, 12)


def reversed_axes(x: Any) -> Any:
    return split(x).transpose(5, 4, 3, 2, 1, 0).reshape(36, -1)


def reductions(x: Any) -> Any:
    y = split(x)
    kept = y.max((1, 5), keepdims=True)
    return y.mean((2, 4)), (y > 0).all((0, 1)), kept.reshape(-1, 12), jnp.prod(y, 5)


def slices(x: Any) -> Any:
    y = split(x)
    start = (x[0, 0, 0, 0] > 9).astype(jnp.int32)
    moved = jax.lax.dynamic_slice(y, (0, start, 0, start, 0, 0), (1, 2, 1, 2, 2, 3))
    return y[0], y[:, 1], y[:, :, :, 1:, 0, ::-2], y[..., -1, 1], jnp.ravel(moved)


def joined(x: Any) -> Any:
    y = split(x)
    rows = jnp.concatenate([y, y[:, :1] + 1], 1)
    channels = jnp.concatenate([y, y], 5)
    stacked = jnp.stack([y, -y], 3)
    return rows.reshape(-1, 36), channels.sum(0), stacked[:, 1, :, 1, 0], jnp.stack([y, y])[1, :, 1]


def taken(x: Any) -> Any:
    y = split(x)
    places = jnp.argsort(x[0, 0, :3, 0])
    rows = jnp.take(y, places, axis=3).reshape(-1, 9)
    return rows, jnp.flip(y, (1, 5)).reshape(-1, 3), jax.lax.expand_dims(y, (3,)).sum((1, 3, 4))


def updated(x: Any) -> Any:
    y = split(x)
    place = jnp.argmax(x[0, 0, :3, 0])
    rows = jax.lax.dynamic_update_slice(y, -y[:1, :, :, :1], (0, 0, 0, place, 0, 0))
    return rows[0], y.at[:, jnp.array([1, 0, 1])].add(1.0).sum(3), y.at[0, place % 2].max(0.5)[0]


def broadcast(x: Any) -> Any:
    y, column = split(x), jnp.arange(1.0, 3.0).reshape(2, 1, 1, 1, 1)
    product = y * column + y[:, :, :1] - y[0, 0, 0, 0, 0]
    return product.sum(0), jnp.where(product > column, 1.0, y[:1]).max(5), jnp.squeeze(y[:1], 0)


def products(x: Any) -> Any:
    y = split(x)
    return jax.nn.softmax(y @ y.swapaxes(4, 5)).sum((0, 1)), (y[:, :1] @ jnp.ones((3, 4))).sum(1)


def cached(x: Any) -> Any:
    """Has a loop over an array with the axes layer, kind, batch, place, head and number."""
    cache = jnp.zeros((2, 2, x.shape[0], 4, 2, 3))

    def step(cache: Any, row: Any) -> Any:
        layers = []
        for i in range(2):
            new = jnp.stack([row.reshape(-1, 1, 2, 3), cache[i, 1, :, :1] + i])
            layers.append(jax.lax.dynamic_update_slice(cache[i], new, (0, 0, i, 0, 0)))
        cache = jnp.stack(layers)
        return jax.lax.cond(row[0, 0] > 0, lambda: cache, lambda: cache * 2), cache.sum((0, 3, 5))

    cache, sums = jax.lax.scan(step, cache, x[:, :, :2].reshape(4, -1, 6))
    return cache[1, 0], sums


def convert(function: Function, shape: str | None) -> Any:
    signature = Signature(function, args=[X], polymorphic_shapes=shape)
    runtime = ModelRuntime("Core ML", "save_coreml")
    (frozen,) = freeze_signatures(signature, None, None, runtime).values()
    return make_graph(frozen.graph, {"x": X.shape})


def list_ranks(graph: Any) -> list[int | None]:
    tensors = [tensor for op in graph.get_operations() for tensor in op.outputs]
    return [tensor.shape.rank for tensor in tensors]


def moved(x: Any) -> Any:
    return patches(x), reversed_axes(x), joined(x), taken(x)


def computed(x: Any) -> Any:
    return reductions(x), broadcast(x), products(x)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *((function, "(b, 4, 6, 3)") for function in (moved, computed, slices, cached)),
        (slices, None),
        pytest.param(cached, None, marks=pytest.mark.slow),
        pytest.param(updated, "(b, 4, 6, 3)", marks=pytest.mark.slow),
    ],
)
def test_results_are_those_of_jax_with_five_axes(function: Function, shape: str | None) -> None:
    graph = convert(function, shape)
    assert max(rank or 0 for rank in list_ranks(graph.graph)) <= 5
    for definition in graph.graph.as_graph_def().library.function:
        for loop in definition.node_def:
            for proto in loop.attr["output_shapes"].list.shape:
                assert len(proto.dim) <= 5
    results = graph(tf.constant(X))
    for result, expected in zip(results, jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_an_operation_without_a_form_is_named_with_its_line() -> None:
    with pytest.raises(UnsupportedByTargetError) as caught:
        convert(lambda x: jnp.cumsum(split(x), 3).sum(0), None)
    assert "Core ML has arrays of at most 5 axes, and Cumsum at " in str(caught.value)
    assert "test_ranks.py" in str(caught.value)
    assert "has (2, 2, 2, 3, 2, 3)" in str(caught.value)


def test_inputs_and_outputs_have_at_most_five_axes() -> None:
    expected = "Core ML has arrays of at most 5 axes, and the output output_0 has 6. Reshape it"
    with pytest.raises(UnsupportedByTargetError, match=expected):
        convert(split, None)
