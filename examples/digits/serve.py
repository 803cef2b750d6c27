"""Runs a SavedModel in a process that cannot import JAX and the bridge.

main.py starts it as `serve.py MODEL HELD_OUT ANSWERS`; it needs only TensorFlow and NumPy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_BLOCKED = ("jax", "jaxlib", "jax2tf_bridge", "shape_poly")


class _Blocker(MetaPathFinder):
    """Makes imports of some packages fail, as if they were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname.split(".")[0] in _BLOCKED:
            raise ModuleNotFoundError(f"{fullname} is blocked in this process", name=fullname)


def _check_that_jax_is_blocked() -> None:
    try:
        import jax  # noqa: F401
    except ModuleNotFoundError:
        return
    raise AssertionError("jax could be imported")


def _list_loaded_blocked() -> list[str]:
    return sorted(name for name in sys.modules if name.split(".")[0] in _BLOCKED)


def serve(model_path: str, held_out_path: str, answers_path: str) -> None:
    """Loads the model, runs it on the held-out images, and differentiates it.

    Writes to `answers_path` (.npz): logits and probabilities (n, 10), digit (n,); the gradients
    of the mean loss on the first images with respect to them ("d images") and to each weight of
    the model ("d conv1/kernel", ...); and "report", a JSON text.
    """
    import numpy as np
    import tensorflow as tf

    # TensorFlow warns that only first-order gradients were saved, which is intended.
    tf.get_logger().setLevel("ERROR")
    model = tf.saved_model.load(model_path)
    held_out = np.load(held_out_path)
    images = tf.constant(held_out["images"])
    signature = model.signatures["serving_default"]
    answers: dict[str, Any] = {k: v.numpy() for k, v in signature(images=images).items()}
    # The batch size is symbolic, so other sizes must work too.
    for size in (1, 7):
        part = signature(images=images[:size])["logits"].numpy()
        np.testing.assert_allclose(part, answers["logits"][:size], rtol=1e-4, atol=1e-4)

    gradient_images = images[: int(held_out["differentiated"])]
    labels = tf.constant(held_out["labels"][: len(gradient_images)])
    with tf.GradientTape() as tape:
        tape.watch(gradient_images)
        scores = model.predict(gradient_images)["logits"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        loss = tf.reduce_mean(losses)
    weights = {
        f"{layer}/{name}": variable
        for layer, variables in model.params.items()
        for name, variable in variables.items()
    }
    gradients = tape.gradient(loss, {"images": gradient_images, **weights})
    answers |= {f"d {name}": gradient.numpy() for name, gradient in gradients.items()}

    report = {
        "tensorflow": tf.__version__,
        "modules": len(sys.modules),
        "blocked": list(_BLOCKED),
        "loaded_of_blocked": _list_loaded_blocked(),
    }
    np.savez(answers_path, report=np.array(json.dumps(report)), **answers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="the SavedModel")
    parser.add_argument("held_out", metavar="HELD_OUT", help="the digits, as main.py writes them")
    parser.add_argument("answers", metavar="ANSWERS", help="where the answers are written")
    options = parser.parse_args()
    sys.meta_path.insert(0, _Blocker())
    _check_that_jax_is_blocked()
    serve(options.model, options.held_out, options.answers)
