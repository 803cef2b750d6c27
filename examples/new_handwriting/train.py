#!/usr/bin/env python3
"""Trains a net on handwritten digits in JAX, and writes it as a LiteRT model that can learn.

FOLDER/digits.tflite has the signatures classify, train, get_weights and set_weights.
FOLDER/handwriting.npz has digits of somebody who writes with a slant, with which learn.py goes on.
FOLDER/weights.json has the names of the weights, for evaluate.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

_LEARNED_FROM, _TESTED_WITH = 200, 360
"""Numbers of slanted digits."""


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder)


def write(folder: Path) -> None:
    """Trains the net, and writes the files."""
    from sklearn.datasets import load_digits

    from examples.new_handwriting import model
    from jax2tf_bridge import Signature, save_litert

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images[order].astype(np.float32)
    labels = data.target[order].astype(np.int32)
    others = _LEARNED_FROM + _TESTED_WITH
    state, step = model.make_state(seed=0), jax.jit(model.train)
    random = np.random.default_rng(1)
    for _ in range(400):
        chosen = random.choice(np.arange(others, len(labels)), 64)
        _, state = step(state, images[chosen], labels[chosen])

    slanted = np.stack([slant(image) for image in images[:others]])
    np.savez(
        folder / "handwriting.npz",
        images=slanted[:_LEARNED_FROM],
        labels=labels[:_LEARNED_FROM],
        test_images=slanted[_LEARNED_FROM:],
        test_labels=labels[_LEARNED_FROM:others],
    )
    shape = "(b, 8, 8)"
    signatures = {
        "classify": Signature(model.classify, args=[images[:1]], polymorphic_shapes=shape),
        "train": Signature(
            model.train,
            args=[images[:8], labels[:8]],
            polymorphic_shapes=[shape, "(b,)"],
            updates_params=True,
        ),
    }
    written = save_litert(folder / "digits.tflite", signatures, params=state, overwrite=True)
    names = list(written.signatures["get_weights"].outputs)
    (folder / "weights.json").write_text(json.dumps(names))
    for kind, digits in (("upright", images[:others]), ("slanted", slanted)):
        accuracy = model.measure_accuracy(state, digits, labels[:others])
        print(f"{accuracy:.1%} of {others} {kind} digits are right")
    print(f"{written.path}: {written.size} bytes")


def slant(image: Any) -> Any:
    """Moves the upper rows to the right and the lower rows to the left."""
    return np.stack([np.roll(row, 2 - i // 2) for i, row in enumerate(image)])


if __name__ == "__main__":
    main()
