"""A net that reads digits, and its train step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

OPTIMIZER = optax.adam(3e-3)

State = dict[str, Any]
"""Weights and the optimizer's state."""


def make_state(seed: int) -> State:
    """Draws the weights of a new net."""
    random = np.random.default_rng(seed)
    params = {
        "hidden": {
            "kernel": random.normal(0, 0.15, (64, 48)).astype(np.float32),
            "bias": np.zeros(48, np.float32),
        },
        "scores": {
            "kernel": random.normal(0, 0.15, (48, 10)).astype(np.float32),
            "bias": np.zeros(10, np.float32),
        },
    }
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


def compute_scores(params: Any, images: Any) -> Any:
    """Computes scores, float32[b,10], of images, float32[b,8,8] from 0 to 16."""
    pixels = images.reshape(images.shape[0], 64) / 16
    hidden = jax.nn.relu(pixels @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["scores"]["kernel"] + params["scores"]["bias"]


def classify(state: State, images: Any) -> dict[str, Any]:
    """Computes the probability of each digit."""
    return {"probabilities": jax.nn.softmax(compute_scores(state["params"], images))}


def train(state: State, images: Any, labels: Any) -> tuple[dict[str, Any], State]:
    """Makes a step of Adam; returns the loss, and the new state."""

    def compute_loss(params: Any) -> Any:
        scores = compute_scores(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss, gradients = jax.value_and_grad(compute_loss)(state["params"])
    updates, optimizer = OPTIMIZER.update(gradients, state["optimizer"])
    params = optax.apply_updates(state["params"], updates)
    return {"loss": loss}, {"params": params, "optimizer": optimizer}


def measure_accuracy(state: State, images: Any, labels: Any) -> float:
    """Returns the share of digits that are read right."""
    answers = jnp.argmax(classify(state, jnp.asarray(images))["probabilities"], axis=-1)
    return float(np.mean(np.asarray(answers) == labels))
