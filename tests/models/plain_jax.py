"""Models in JAX without a library: quantised, in two precisions, and with large tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.model import Built, integers, model, normal


@jax.custom_vjp
def _rounded(x: Any) -> Any:
    return jnp.clip(jnp.round(x), -127, 127)


def _rounded_forward(x: Any) -> tuple[Any, None]:
    return _rounded(x), None


def _rounded_backward(_: None, cotangent: Any) -> tuple[Any]:
    return (cotangent,)


_rounded.defvjp(_rounded_forward, _rounded_backward)


@jax.custom_vjp
def _integer_product(x: Any, weights: Any) -> Any:
    """Multiplies whole numbers, in int8 with sums in int32; differentiated as if of floats."""
    product = jax.lax.dot_general(
        x.astype(jnp.int8), weights, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
    )
    return product.astype(jnp.float32)


def _product_forward(x: Any, weights: Any) -> tuple[Any, Any]:
    return _integer_product(x, weights), weights


def _product_backward(weights: Any, cotangent: Any) -> tuple[Any, Any]:
    back = cotangent @ weights.astype(jnp.float32).T
    return back, np.zeros(weights.shape, jax.dtypes.float0)


_integer_product.defvjp(_product_forward, _product_backward)


# Not quick: activations next to a half round otherwise than in JAX where XLA is told not to fuse.
@model("JAX", "(b, 784)", tolerance=1e-3, gradient_tolerance=1e-2)
def quantised_dense() -> Built:
    """Three dense layers with int8 weights; activations are quantised row by row as they come."""
    sizes = (784, 1024, 1024, 10)
    params = {
        f"layer{i}": {
            "weights": integers(a, b, below=255, seed=i).astype(np.int16).__sub__(127).astype("i1"),
            "scale": (0.5 + np.abs(normal(b, seed=i))) / np.float32(60 * np.sqrt(a)),
            "bias": normal(b, seed=i),
        }
        for i, (a, b) in enumerate(pairwise(sizes))
    }

    def scores(params: Any, x: Any) -> Any:
        for i in range(3):
            layer = params[f"layer{i}"]
            step = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127 + 1e-9
            product = _integer_product(_rounded(x / jax.lax.stop_gradient(step)), layer["weights"])
            x = product * step * layer["scale"] + layer["bias"]
            x = jax.nn.relu(x) if i < 2 else x
        return x

    return Built(scores, params, (normal(2, 784),), [(normal(b, 784),) for b in (1, 7)])


def _dense(params: Any, name: str, a: int, b: int, seed: int) -> None:
    params[name] = {"kernel": normal(a, b, seed=seed) / np.float32(np.sqrt(a)), "bias": normal(b)}


def _apply(layer: Any, x: Any) -> Any:
    return x @ layer["kernel"].astype(x.dtype) + layer["bias"].astype(x.dtype)


@model("JAX", "(b, 12, 512)", "(b, n, 256)", "(b,)", tolerance=5e-2, gradient_tolerance=0.2)
def dual_encoder() -> Built:
    """Pictures and texts compared each with each: weights in float32, computed in bfloat16.

    The calls have more than 40 words each: XLA in TF 2.17 gets the gradients of bfloat16 products
    with fewer rows wrong on CPU (docs/models.md).
    """
    params: dict[str, Any] = {"temperature": np.float32(2.0)}
    for seed, (side, width) in enumerate((("picture", 512), ("text", 256))):
        for layer, (a, b) in enumerate(((width, 768), (768, 768), (768, 512))):
            _dense(params.setdefault(side, {}), f"layer{layer}", a, b, 10 * seed + layer)

    def encoded(layers: Any, x: Any, weights: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        for i in range(3):
            x = _apply(layers[f"layer{i}"], jax.nn.gelu(x) if i else x)
        x = (x.astype(jnp.float32) * weights[..., None]).sum(axis=1)
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(params: Any, pictures: Any, texts: Any, lengths: Any) -> dict[str, Any]:
        real = (jnp.arange(texts.shape[1])[None] < lengths[:, None]).astype(jnp.float32)
        a = encoded(params["picture"], pictures, jnp.ones(pictures.shape[:2]))
        b = encoded(params["text"], texts, real)
        scores = jnp.exp(params["temperature"]) * a @ b.T
        rows, columns = (jnp.diag(jax.nn.log_softmax(scores, axis)) for axis in (0, 1))
        return {"scores": scores, "loss": -(rows + columns).mean() / 2}

    def arguments(b: int, n: int) -> Any:
        lengths = 1 + np.arange(b, dtype=np.int32) % n
        return normal(b, 12, 512), normal(b, n, 256), lengths

    return Built(loss, params, arguments(2, 5), [arguments(6, 8), arguments(5, 9)])


@model("JAX", "(b, 13)", {"user": "(b,)", "item": "(b,)", "history": "(b, n)"}, quick=True)
def recommender() -> Built:
    """Embeddings of users, items and what users saw, crossed pairwise, and dense layers."""
    sizes = {"user": 20_000, "item": 50_000}
    params: dict[str, Any] = {
        name: normal(rows, 32) / np.float32(6) for name, rows in sizes.items()
    }
    layers = {"bottom0": (13, 256), "bottom1": (256, 32), "top0": (42, 256), "top1": (256, 1)}
    for seed, (name, (a, b)) in enumerate(layers.items()):
        _dense(params, name, a, b, seed)

    def odds(params: Any, numbers: Any, ids: Any) -> Any:
        x = _apply(params["bottom1"], jax.nn.relu(_apply(params["bottom0"], numbers)))
        user, item = params["user"][ids["user"]], params["item"][ids["item"]]
        seen = (ids["history"] > 0).astype(jnp.float32)[..., None]
        past = (params["item"][ids["history"]] * seen).sum(axis=1) / jnp.maximum(seen.sum(1), 1)
        vectors = jnp.stack([x, user, item, past, user * item], axis=1)
        crossed = jnp.einsum("bid,bjd->bij", vectors, vectors)
        rows, columns = np.triu_indices(5, 1)
        x = jnp.concatenate([x, crossed[:, rows, columns]], axis=1)
        x = _apply(params["top1"], jax.nn.relu(_apply(params["top0"], x)))
        return jax.nn.sigmoid(x[:, 0])

    def arguments(b: int, n: int) -> Any:
        ids = {name: integers(b, below=rows) for name, rows in sizes.items()}
        return normal(b, 13), {**ids, "history": integers(b, n, below=50_000)}

    return Built(odds, params, arguments(2, 4), [arguments(1, 7), arguments(6, 3)])
