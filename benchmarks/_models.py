"""The models of the benchmarks, in JAX and some also in Keras or TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The values are arrays, or JAX's tracers.
Weights = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A function of (weights, inputs), and its arguments.

    Attributes:
      apply: the function in JAX.
      weights: float32 arrays.
      shape: the shape of the inputs, without the batch.
      polymorphic_shape: the polymorphic shape of the inputs.
      vocabulary: the number of tokens, for models of token ids; otherwise 0.
    """

    apply: Callable[..., Any]
    weights: Weights
    shape: tuple[int, ...]
    polymorphic_shape: str
    vocabulary: int = 0

    def inputs(self, batch: int) -> Any:
        """Makes the inputs of a batch; they depend on the batch size only."""
        if self.vocabulary:
            words = np.random.default_rng(0).integers(0, self.vocabulary, (batch, *self.shape))
            return words.astype(np.int32)
        return np.random.default_rng(0).standard_normal((batch, *self.shape), np.float32)


def _draw_normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[:-1])))


def mlp() -> Model:
    """Makes an MLP with layers of 784, 512, 512 and 10 units."""
    rng = np.random.default_rng(1)
    sizes = (784, 512, 512, 10)
    weights = {f"w{i}": _draw_normal(rng, a, b) for i, (a, b) in enumerate(pairwise(sizes))}
    weights |= {f"b{i}": np.zeros(b, np.float32) for i, b in enumerate(sizes[1:])}

    def apply(w: Weights, x: jax.Array) -> jax.Array:
        for i in range(2):
            x = jax.nn.relu(x @ w[f"w{i}"] + w[f"b{i}"])
        return jnp.add(x @ w["w2"], w["b2"])

    return Model(apply, weights, (784,), "(b, 784)")


def conv() -> Model:
    """Makes a conv net for 28x28 images: three convolutions, two with stride 2, a dense layer."""
    rng = np.random.default_rng(2)
    weights = {
        "c0": _draw_normal(rng, 3, 3, 1, 32),
        "c1": _draw_normal(rng, 3, 3, 32, 64),
        "c2": _draw_normal(rng, 3, 3, 64, 64),
        "d": _draw_normal(rng, 7 * 7 * 64, 10),
    }

    def apply(w: Weights, x: jax.Array) -> jax.Array:
        for i, stride in enumerate((1, 2, 2)):
            x = jax.lax.conv_general_dilated(
                x,
                w[f"c{i}"],
                (stride, stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jax.nn.relu(x)
        return jnp.matmul(x.reshape(x.shape[0], -1), w["d"])

    return Model(apply, weights, (28, 28, 1), "(b, 28, 28, 1)")


def transformer(layers: int = 6, width: int = 256, heads: int = 4) -> Model:
    """Makes a pre-norm transformer for inputs of (b, 64, width)."""
    rng = np.random.default_rng(3)
    weights: Weights = {}
    for i in range(layers):
        weights[f"qkv{i}"] = _draw_normal(rng, width, 3 * width)
        weights[f"out{i}"] = _draw_normal(rng, width, width)
        weights[f"up{i}"] = _draw_normal(rng, width, 4 * width)
        weights[f"down{i}"] = _draw_normal(rng, 4 * width, width)

    def norm(x: jax.Array) -> jax.Array:
        centered = x - x.mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6)

    def attention(x: jax.Array, qkv: Any, out: Any) -> jax.Array:
        b, length, _ = x.shape
        q, k, v = jnp.split((x @ qkv).reshape(b, length, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(np.sqrt(width // heads))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return jnp.matmul(mixed.reshape(b, length, -1), out)

    def apply(w: Weights, x: jax.Array) -> jax.Array:
        for i in range(layers):
            x = x + attention(norm(x), w[f"qkv{i}"], w[f"out{i}"])
            x = x + jax.nn.gelu(norm(x) @ w[f"up{i}"]) @ w[f"down{i}"]
        return x

    return Model(apply, weights, (64, width), f"(b, 64, {width})")


def text(words: int = 10_000, width: int = 128) -> Model:
    """Makes a text classifier for 64 tokens: embedding, width-5 convolution, max, dense layer."""
    rng = np.random.default_rng(4)
    weights = {
        "embedding": rng.standard_normal((words, width), np.float32),
        "c": _draw_normal(rng, 5, width, width),
        "cb": np.zeros(width, np.float32),
        "d": _draw_normal(rng, width, 10),
        "db": np.zeros(10, np.float32),
    }

    def apply(w: Weights, x: jax.Array) -> jax.Array:
        y = jnp.asarray(w["embedding"])[x]
        y = jax.lax.conv_general_dilated(
            y, w["c"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        y = jax.nn.relu(y + w["cb"]).max(axis=1)
        return jnp.add(y @ w["d"], w["db"])

    return Model(apply, weights, (64,), "(b, 64)", vocabulary=words)


MODELS: dict[str, Callable[[], Model]] = {
    "MLP": mlp,
    "conv net": conv,
    "transformer": transformer,
    "text": text,
}


def write_keras_model(name: str, model: Model) -> Any:
    """Writes a model in Keras as a user would, with the same weights."""
    keras: Any = importlib.import_module("keras")
    inputs = keras.Input(model.shape, dtype="int32" if model.vocabulary else "float32")
    layers, w = keras.layers, model.weights
    if name == "transformer":
        return _make_keras_transformer(inputs, model)
    stacks = {
        "MLP": [
            layers.Dense(512, activation="relu"),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ],
        "conv net": [
            *(
                layers.Conv2D(size, 3, stride, "same", activation="relu", use_bias=False)
                for size, stride in ((32, 1), (64, 2), (64, 2))
            ),
            layers.Flatten(),
            layers.Dense(10, use_bias=False),
        ],
        "text": [
            layers.Embedding(*w["embedding"].shape) if name == "text" else None,
            layers.Conv1D(128, 5, padding="same", activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(10),
        ],
    }
    y = inputs
    for layer in stacks[name]:
        y = layer(y)
    keras_model = keras.Model(inputs, y)
    ordered = (
        [w[key] for i in range(3) for key in (f"w{i}", f"b{i}")] if name == "MLP" else w.values()
    )
    keras_model.set_weights(list(ordered))
    return keras_model


def _make_keras_transformer(inputs: Any, model: Model, heads: int = 4) -> Any:
    keras: Any = importlib.import_module("keras")
    layers = keras.layers
    width = model.shape[-1]
    y, weights = inputs, []
    for i in range(sum(key.startswith("qkv") for key in model.weights)):
        qkv, out, up, down = (model.weights[f"{key}{i}"] for key in ("qkv", "out", "up", "down"))
        norms = [
            layers.LayerNormalization(center=False, scale=False, epsilon=1e-6) for _ in range(2)
        ]
        attention = layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        normed = norms[0](y)
        y = y + attention(normed, normed)
        hidden = layers.Dense(4 * width, use_bias=False)(norms[1](y))
        hidden = keras.activations.gelu(hidden, approximate=True)
        y = y + layers.Dense(width, use_bias=False)(hidden)
        weights += np.split(qkv.reshape(width, heads, -1), 3, axis=-1)
        weights += [out.reshape(heads, -1, width), up, down]
    keras_model = keras.Model(inputs, y)
    keras_model.set_weights(weights)
    return keras_model


def write_tensorflow_model(name: str) -> Callable[..., Any]:
    """Writes the MLP or the conv net in TensorFlow as a user would."""
    import tensorflow as tf

    def tf_mlp(w: Any, x: Any) -> Any:
        for i in range(2):
            x = tf.nn.relu(tf.matmul(x, w[f"w{i}"]) + w[f"b{i}"])
        return tf.matmul(x, w["w2"]) + w["b2"]

    def tf_conv(w: Any, x: Any) -> Any:
        for i, stride in enumerate((1, 2, 2)):
            x = tf.nn.relu(tf.nn.conv2d(x, w[f"c{i}"], stride, "SAME"))
        return tf.matmul(tf.reshape(x, (-1, 7 * 7 * 64)), w["d"])

    return {"MLP": tf_mlp, "conv net": tf_conv}[name]
