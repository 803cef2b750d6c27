#!/usr/bin/env python3
"""Goes on training in LiteRT's interpreter, with neither JAX nor TensorFlow.

Learns a new handwriting from FOLDER/handwriting.npz, as an application on a phone would, and
writes what it learned to FOLDER/learned.npz.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_ROUNDS, _BATCH = 30, 20


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what train.py wrote")
    options = parser.parse_args()
    learn(options.folder)


def learn(folder: Path) -> None:
    """Trains, and writes the weights."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "digits.tflite"))
    classify = interpreter.get_signature_runner("classify")
    train = interpreter.get_signature_runner("train")
    with np.load(folder / "handwriting.npz") as data:
        images, labels = data["images"], data["labels"]
        test_images, test_labels = data["test_images"], data["test_labels"]
    print(f"loaded of JAX and TensorFlow: {_list_loaded() or 'none'}")
    before = _measure_accuracy(classify, test_images, test_labels)
    print(f"{before:.1%} of {len(test_labels)} slanted digits are right")
    for _ in range(_ROUNDS):
        for start in range(0, len(labels), _BATCH):
            part = slice(start, start + _BATCH)
            loss = train(images=images[part], labels=labels[part])["loss"]
    print(f"learned from {len(labels)} digits; the last loss is {float(loss):.3f}")
    after = _measure_accuracy(classify, test_images, test_labels)
    print(f"{after:.1%} of {len(test_labels)} slanted digits are right")
    np.savez(folder / "learned.npz", **interpreter.get_signature_runner("get_weights")())
    if after <= before:
        sys.exit("It has learned nothing")


def _measure_accuracy(classify: Callable[..., Any], images: Any, labels: Any) -> float:
    probabilities = classify(images=images)["probabilities"]
    return float(np.mean(np.argmax(probabilities, axis=-1) == labels))


def _list_loaded() -> str:
    return ", ".join(sorted({"jax", "tensorflow"} & set(sys.modules)))


if __name__ == "__main__":
    main()
