"""Train steps with state of every kind, and what JAX computes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax2tf_bridge import Signature

STEPS = (1, 10, 200)
"""Numbers of steps after which losses and weights are compared."""

_RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Training:
    """A model that learns.

    Attributes:
      name: its name.
      state: weights and everything else that a step changes.
      train: maps state, inputs and labels to ({"loss": ...}, new state).
      predict: maps state and inputs to outputs.
      x, y: inputs and labels.
      shapes: their polymorphic shapes.
    """

    name: str
    state: Any
    train: Callable[[Any, Any, Any], Any]
    predict: Callable[[Any, Any], Any]
    x: Any
    y: Any
    shapes: tuple[str, str]

    def signatures(self) -> dict[str, Signature]:
        """Makes the signatures "train" and "predict"."""
        return {
            "train": Signature(
                self.train,
                args=[self.x, self.y],
                polymorphic_shapes=list(self.shapes),
                updates_params=True,
            ),
            "predict": Signature(self.predict, args=[self.x], polymorphic_shapes=self.shapes[0]),
        }

    def record(self, path: Path, weight_names: Iterable[str]) -> None:
        """Trains in JAX, and writes inputs, losses, weights and outputs for `consume_steps`.

        Args:
          path: the file to write.
          weight_names: the outputs of the signature get_weights, in the order of the leaves.
        """
        names = list(weight_names)
        step, predict = jax.jit(self.train), jax.jit(self.predict)
        state, arrays = self.state, {"x": self.x, "y": self.y}
        for number in range(1, max(STEPS) + 1):
            outputs, state = step(state, self.x, self.y)
            if number in STEPS:
                arrays[f"{number}/loss"] = np.asarray(outputs["loss"])
                arrays[f"{number}/predict"] = np.asarray(predict(state, self.x))
                for name, leaf in zip(names, jax.tree_util.tree_leaves(state), strict=True):
                    leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
                    arrays[f"{number}/weight {name}"] = np.asarray(leaf)
        np.savez(path, **arrays)


def is_key(leaf: Any) -> bool:
    """Returns whether an array holds PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def compute_outputs(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"]) @ params["out"]


def make_dense_training(name: str, optimizer: optax.GradientTransformation) -> Training:
    """Makes a regression that an optimizer trains."""
    params = {
        "hidden": {
            "kernel": _RNG.normal(size=(4, 8)).astype(np.float32),
            "bias": np.zeros(8, np.float32),
        },
        "out": _RNG.normal(size=(8, 1)).astype(np.float32),
    }

    def train(state: Any, x: Any, y: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            return jnp.mean((compute_outputs(params, x) - y) ** 2)

        loss, gradients = jax.value_and_grad(compute_loss)(state["params"])
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"loss": loss}, {"params": params, "optimizer": optimizer_state}

    x = _RNG.normal(size=(16, 4)).astype(np.float32)
    return Training(
        name,
        {"params": params, "optimizer": optimizer.init(params)},
        train,
        lambda state, x: compute_outputs(state["params"], x),
        x,
        np.sin(x.sum(1, keepdims=True)),
        ("(b, 4)", "(b, 1)"),
    )


class ConvNet(nn.Module):
    """Convolution, running statistics, dropout."""

    train: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        # A bias before BatchNorm would have gradients of noise alone.
        x = nn.Conv(4, (3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not self.train)(x)
        x = nn.Dropout(0.2, deterministic=not self.train)(nn.relu(x))
        return nn.Dense(3)(x.mean(axis=(1, 2)))


def make_conv_training() -> Training:
    """Makes a classifier with running statistics and a key that advances."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    x = _RNG.normal(size=(8, 6, 6, 1)).astype(np.float32)
    variables = ConvNet().init(jax.random.key(0), x)

    def train(state: Any, x: Any, y: Any) -> Any:
        key, dropout = jax.random.split(state["key"])

        def compute_loss(params: Any) -> Any:
            scores, changed = ConvNet(train=True).apply(
                {"params": params, "batch_stats": state["batch_stats"]},
                x,
                mutable=["batch_stats"],
                rngs={"dropout": dropout},
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, y)
            return losses.mean(), changed["batch_stats"]

        (loss, statistics), gradients = jax.value_and_grad(compute_loss, has_aux=True)(
            state["params"]
        )
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"])
        return {"loss": loss}, {
            "params": optax.apply_updates(state["params"], updates),
            "batch_stats": statistics,
            "optimizer": optimizer_state,
            "key": key,
        }

    def predict(state: Any, x: Any) -> Any:
        return ConvNet().apply({"params": state["params"], "batch_stats": state["batch_stats"]}, x)

    state = {
        **variables,
        "optimizer": optimizer.init(variables["params"]),
        "key": jax.random.key(1),
    }
    y = _RNG.integers(0, 3, 8).astype(np.int32)
    return Training("conv", state, train, predict, x, y, ("(b, 6, 6, 1)", "(b,)"))


TRAININGS = (
    make_dense_training("momentum", optax.sgd(0.02, momentum=0.9)),
    make_dense_training("adam", optax.adam(optax.linear_schedule(1e-2, 1e-3, 100))),
    make_conv_training(),
)
