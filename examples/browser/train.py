#!/usr/bin/env python3
"""Trains a net on handwritten digits in JAX, and writes it for a web page.

FOLDER/tfjs has the model for TensorFlow.js, and FOLDER/digits.tflite for LiteRT.js.
FOLDER/index.html and FOLDER/page.js are the page.
FOLDER/held_out.json has digits that the net has not seen, with the probabilities that JAX computes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written")
    parser.add_argument(
        "--steps", type=int, default=200, help="how long to train (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    sys.path.insert(0, str(HERE.parents[1]))
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, options.steps)


def write(folder: Path, steps: int) -> None:
    """Trains the net, and writes the files."""
    from examples.digits import model
    from examples.digits.train import digits, train
    from jax2tf_bridge import Signature, save_litert, save_tfjs

    data, held_out = digits()
    params = train(data, held_out, steps)
    images = held_out.images[:100]
    open_sizes = Signature(model.predict, args=[images[:1]], polymorphic_shapes="(b, 8, 8)")
    print(save_tfjs(folder / "tfjs", open_sizes, params=params, overwrite=True))
    one_image = Signature(model.predict, args=[images[:1]])  # LiteRT.js has fixed sizes only
    print(save_litert(folder / "digits.tflite", one_image, params=params))
    probabilities = jax.jit(model.predict)(params, images)["probabilities"]
    expected = {
        "images": images.ravel().tolist(),
        "labels": held_out.labels[:100].tolist(),
        "probabilities": np.asarray(probabilities).ravel().tolist(),
    }
    (folder / "held_out.json").write_text(json.dumps(expected))
    for name in ("index.html", "page.js"):
        shutil.copyfile(HERE / name, folder / name)


if __name__ == "__main__":
    main()
