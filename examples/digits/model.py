"""A small convolutional net in plain JAX, with its loss, and Adam to train it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# {"conv1": {"kernel": (3, 3, 1, 32), "bias": (32,)}, ...}, all float32.
Params = dict[str, dict[str, jax.Array]]

_LAYERS = {
    "conv1": (3, 3, 1, 32),
    "conv2": (3, 3, 32, 64),
    "dense1": (4 * 4 * 64, 128),
    "dense2": (128, 10),
}
_MAX_PIXEL = 16.0


class Adam(NamedTuple):
    """The state of Adam: the moments of the gradients, and the number of steps."""

    mean: Params
    square: Params
    steps: jax.Array

    @staticmethod
    def zero(params: Params) -> Adam:
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
        return Adam(zeros, zeros, jnp.zeros((), jnp.int32))


def init(key: jax.Array) -> Params:
    """Makes the initial weights: He's normal distribution, and biases of 0."""
    params = {}
    for name, shape in _LAYERS.items():
        key, layer_key = jax.random.split(key)
        scale = (2.0 / np.prod(shape[:-1])) ** 0.5
        params[name] = {
            "kernel": scale * jax.random.normal(layer_key, shape),
            "bias": jnp.zeros(shape[-1]),
        }
    return params


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Maps images of (b, 8, 8), with pixels from 0 to 16, to scores of the digits, (b, 10)."""
    x = images[..., None] / _MAX_PIXEL
    x = jax.nn.relu(_conv(x, params["conv1"]))
    x = jax.nn.relu(_conv(x, params["conv2"]))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ params["dense1"]["kernel"] + params["dense1"]["bias"])
    return x @ params["dense2"]["kernel"] + params["dense2"]["bias"]


def predict(params: Params, images: jax.Array) -> dict[str, jax.Array]:
    """The function to serve: logits, probabilities and the most likely digit."""
    scores = logits(params, images)
    return {
        "logits": scores,
        "probabilities": jax.nn.softmax(scores),
        "digit": jnp.argmax(scores, axis=1),
    }


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy."""
    log_probabilities = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


@jax.jit
def train_step(
    params: Params, adam: Adam, images: jax.Array, labels: jax.Array, rate: float
) -> tuple[Params, Adam, jax.Array]:
    """Makes a step of Adam on a batch; returns the new weights, the new state and the old loss."""
    value, gradient = jax.value_and_grad(loss)(params, images, labels)
    tree_map = jax.tree_util.tree_map
    steps = adam.steps + 1
    mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, adam.mean, gradient)
    square = tree_map(lambda s, g: 0.999 * s + 0.001 * g * g, adam.square, gradient)
    scale = rate * jnp.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
    params = tree_map(lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, Adam(mean, square, steps), value


def _conv(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    """Applies a convolution that keeps the size of the image; NHWC."""
    out = jax.lax.conv_general_dilated(
        x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out + layer["bias"]
