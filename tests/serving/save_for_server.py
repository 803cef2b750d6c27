"""Saves models for a TensorFlow Serving with this environment's JAX, and stores JAX's answers.

python -m tests.serving.save_for_server FOLDER

Each model is in FOLDER/NAME/1, and the text that `print(saved.serving)` prints in FOLDER/NAME.txt.
FOLDER/answers.npz has the inputs x_N, and the answers of JAX as NAME_N.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge import Signature, Target, save

RELEASE = "2.19"
SIZES = (1, 2, 7, 8, 20, 32)
_OPTIONS: dict[str, dict[str, Any]] = {
    "buckets": {"buckets": {"b": [1, 8, 32]}, "target": Target.tensorflow(RELEASE)},
    "operations": {"target": Target.tensorflow(RELEASE, xla=False)},
}


def classify(params: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(jax.nn.standardize(x) @ params["w"])
    probabilities = jax.nn.softmax(hidden @ params["head"])
    _, classes = jax.lax.top_k(probabilities, 3)
    return {"classes": classes, "probabilities": probabilities}


def main(folder: Path) -> None:
    """Saves the models."""
    rng = np.random.default_rng(0)
    params = {
        "w": rng.normal(size=(28, 64)).astype(np.float32),
        "head": rng.normal(size=(64, 10)).astype(np.float32),
    }
    inputs = [rng.normal(size=(rows, 28)).astype(np.float32) for rows in SIZES]
    arrays: dict[str, Any] = {}
    for number, x in enumerate(inputs):
        answer = jax.tree.map(np.asarray, jax.jit(classify)(params, x))
        arrays |= {f"x_{number}": x, **{f"{name}_{number}": a for name, a in answer.items()}}
    np.savez(folder / "answers.npz", **arrays)
    signature = Signature(
        classify, args=[jnp.ones((2, 28), jnp.float32)], polymorphic_shapes="(b, 28)"
    )
    for name, options in _OPTIONS.items():
        saved = save(folder / name / "1", signature, params=params, **options)
        (folder / f"{name}.txt").write_text(str(saved.serving))
    print(jax.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
