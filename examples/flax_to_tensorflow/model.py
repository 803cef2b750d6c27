"""A small convolutional net in Flax with batch normalization, and its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

# {"params": {"conv": {"kernel": ..., "bias": ...}, ...}, "batch_stats": {"norm": {"mean": ...}}}
Variables = Mapping[str, Any]

_BATCH = 64
_LEARNING_RATE, _MOMENTUM = 0.05, 0.9
_MAX_PIXEL = 16.0


class Net(nn.Module):
    """Maps images of (b, 8, 8), with pixels from 0 to 16, to scores of the digits, (b, 10)."""

    train: bool = False

    @nn.compact
    def __call__(self, images: ArrayLike) -> jax.Array:
        x = jnp.asarray(images)[..., None] / _MAX_PIXEL
        x = nn.Conv(32, (3, 3), strides=(2, 2), name="conv")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not self.train, name="norm")(x))
        x = nn.relu(nn.Dense(64, name="hidden")(x.reshape(x.shape[0], -1)))
        scores: jax.Array = nn.Dense(10, name="head")(x)
        return scores


class State(NamedTuple):
    """The variables, and the momentum of the parameters."""

    variables: Variables
    momentum: Any


def predict(variables: Variables, images: ArrayLike) -> dict[str, jax.Array]:
    """The function to serve; its first argument is the variables."""
    scores: Any = Net().apply(variables, images)
    return {"probabilities": jax.nn.softmax(scores), "digit": jnp.argmax(scores, axis=1)}


def train(images: np.ndarray, labels: np.ndarray, steps: int, seed: int) -> Variables:
    """Trains with gradient descent with momentum; returns the variables."""
    variables = Net(train=True).init(jax.random.key(seed), images[:1])
    state = State(variables, jax.tree_util.tree_map(jnp.zeros_like, variables["params"]))
    rng = np.random.default_rng(seed)
    for step in range(steps):
        batch = rng.choice(len(labels), _BATCH, replace=False)
        rate = _LEARNING_RATE * (1 + np.cos(np.pi * step / steps)) / 2
        state = _train_step(state, images[batch], labels[batch], rate)
    return state.variables


@jax.jit
def _train_step(state: State, images: jax.Array, labels: jax.Array, rate: float) -> State:
    def loss(params: Any) -> tuple[jax.Array, Any]:
        variables = {**state.variables, "params": params}
        scores, updated = Net(train=True).apply(variables, images, mutable=["batch_stats"])
        label_scores = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
        return -label_scores.mean(), updated

    params = state.variables["params"]
    gradient, updated = jax.grad(loss, has_aux=True)(params)
    tree_map = jax.tree_util.tree_map
    momentum = tree_map(lambda m, g: _MOMENTUM * m + g, state.momentum, gradient)
    params = tree_map(lambda p, m: p - rate * m, params, momentum)
    return State({"params": params, **updated}, momentum)
