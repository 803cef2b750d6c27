"""The steps of the demo: train, convert and save, run in a fresh process, compare."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from examples.digits import model, picture, train
from jax2tf_bridge import convert

_GRADIENT_IMAGES = 64
_MAX_DIFFERENCE = 1e-4
_MIN_ACCURACY = 0.85


def run(output: Path, steps: int) -> None:
    """Runs all steps, prints the results, and writes the files to `output`.

    Ends the process with a message if JAX and the served model disagree or their accuracy is low.
    """
    output.mkdir(parents=True, exist_ok=True)

    print(f"JAX {jax.__version__}, TensorFlow {tf.__version__}")
    training, held_out = train.digits()
    _print_step(f"Training on {len(training.labels)} digits; {len(held_out.labels)} are held out")
    params = train.train(training, held_out, steps)

    start = time.monotonic()
    path = output / "digits" / "1"
    _print_step("Converting and saving, with a symbolic batch size")
    save(params, path)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"   {size / 1e6:.1f} MB in {time.monotonic() - start:.1f} s")

    _print_step("Answering in a fresh process, in which JAX cannot be imported")
    held_out_path = output / "held_out.npz"
    np.savez(
        held_out_path,
        images=held_out.images,
        labels=held_out.labels,
        differentiated=_GRADIENT_IMAGES,
    )
    answers = _serve(path, held_out_path, output / "answers.npz")
    compare(params, held_out, answers, output)
    request = output / "request.json"
    request.write_text(json.dumps({"instances": held_out.images[:3].tolist()}))
    _print_step("Done")
    _print_paths(output, path, request)


def save(params: model.Params, path: Path) -> None:
    """Writes the model as a SavedModel, with its weights as variables and with its gradient.

    The default signature takes float32 images of (b, 8, 8), for any b, and returns logits,
    probabilities and digit.
    """
    predict = convert(model.predict, polymorphic_shapes=[None, "(b, 8, 8)"])
    module = tf.Module()
    module.params = jax.tree_util.tree_map(tf.Variable, params)
    images = tf.TensorSpec((None, 8, 8), tf.float32, "images")
    module.predict = tf.function(
        lambda images: predict(module.params, images), input_signature=[images], autograph=False
    )
    shutil.rmtree(path, ignore_errors=True)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.predict})


def _serve(path: Path, held_out: Path, answers: Path) -> dict[str, Any]:
    """Runs serve.py in its own process; returns its answers."""
    script = Path(__file__).with_name("serve.py")
    process = subprocess.run(
        [sys.executable, str(script), str(path), str(held_out), str(answers)],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        sys.exit(f"The fresh process failed:\n{process.stderr}")
    with np.load(answers) as arrays:
        return dict(arrays)


def compare(
    params: model.Params, held_out: train.Digits, answers: dict[str, Any], output: Path
) -> None:
    """Prints the differences between JAX and the SavedModel, and draws the picture.

    Ends the demo if they disagree, if their accuracy is low, or if JAX was loaded.
    """
    report = json.loads(str(answers["report"]))
    if report["loaded_of_blocked"]:
        sys.exit(f"The fresh process loaded {report['loaded_of_blocked']}")
    print(
        f"   TensorFlow {report['tensorflow']}, {report['modules']} modules loaded, "
        f"none of {', '.join(report['blocked'])}"
    )
    jax_answers = {
        k: np.asarray(v) for k, v in jax.jit(model.predict)(params, held_out.images).items()
    }
    jax_accuracy = train.accuracy(jax_answers["logits"], held_out)
    tf_accuracy = train.accuracy(answers["logits"], held_out)
    difference = float(np.abs(jax_answers["logits"] - answers["logits"]).max())
    print(
        f"   accuracy on the held-out digits: JAX {jax_accuracy:.2%}, SavedModel {tf_accuracy:.2%}"
    )
    print(f"   largest difference of the logits: {_format_difference(difference)}")
    gradient_difference = _compare_gradients(params, held_out, answers)
    picture.draw(
        output / "digits.png",
        held_out.images,
        held_out.labels,
        jax_answers["probabilities"],
        answers["probabilities"],
        "Handwritten digits: trained in JAX, answered by TensorFlow without it",
        f"{len(held_out.labels)} held-out images · JAX {jax_accuracy:.1%} right, SavedModel "
        f"{tf_accuracy:.1%} · largest difference of the logits {_format_difference(difference)} · "
        "top row: the hardest",
    )
    if max(difference, gradient_difference) > _MAX_DIFFERENCE:
        sys.exit(f"The two differ by more than {_MAX_DIFFERENCE}")
    if min(jax_accuracy, tf_accuracy) < _MIN_ACCURACY:
        sys.exit(f"Less than {_MIN_ACCURACY:.0%} of the held-out digits are right")


def _compare_gradients(
    params: model.Params, held_out: train.Digits, answers: dict[str, Any]
) -> float:
    """Prints and returns the largest difference of the gradients from JAX's."""
    images, labels = held_out.images[:_GRADIENT_IMAGES], held_out.labels[:_GRADIENT_IMAGES]
    by_weight, by_image = jax.grad(model.loss, argnums=(0, 1))(params, images, labels)
    expected = {
        f"d {layer}/{name}": gradient
        for layer, gradients in by_weight.items()
        for name, gradient in gradients.items()
    }
    to_weights = max(_max_difference(answers[key], value) for key, value in expected.items())
    to_images = _max_difference(answers["d images"], by_image)
    print(
        f"   largest difference of the gradients: by the images {_format_difference(to_images)}, "
        f"by the {len(expected)} weights {_format_difference(to_weights)}"
    )
    return max(to_weights, to_images)


def _max_difference(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def _format_difference(difference: float) -> str:
    return f"{difference:.0e}" if difference else "0"


def _print_paths(output: Path, path: Path, request: Path) -> None:
    base = shlex.quote(str(path.parent))
    print(f"""   the model    {path}
   the picture  {output / "digits.png"}

   TensorFlow Serving would serve it with:
     tensorflow_model_server --rest_api_port=8501 --model_name=digits \\
       --model_base_path={base} --xla_cpu_compilation_enabled=true
   and answer:
     curl -d @{shlex.quote(str(request))} http://localhost:8501/v1/models/digits:predict""")


def _print_step(text: str) -> None:
    print(f"\n== {text}", flush=True)
