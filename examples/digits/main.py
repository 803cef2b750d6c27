#!/usr/bin/env python3
"""Trains a net in JAX, and runs it as a SavedModel without JAX.

The demo trains a small convolutional net on the handwritten digits of scikit-learn, converts it
with a symbolic batch size, saves it with tf.saved_model.save, and runs it in a fresh process that
cannot import JAX. It fails if JAX and the SavedModel disagree, or if their accuracy is low.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the demo with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("digits-demo"),
        metavar="DIR",
        help="where the model, the picture and the rest are written (default: ./digits-demo)",
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="how long to train (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")

    # TensorFlow reads these when it starts. oneDNN is off because it prints a message on stderr,
    # and the model runs in XLA, which has its own kernels.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples.digits.demo import run

    run(options.output.resolve(), options.steps)


if __name__ == "__main__":
    main()
