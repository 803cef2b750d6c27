#!/usr/bin/env python3
"""Trains a Flax net on handwritten digits, and writes it as two files.

FOLDER/net.jaxfn is the function, for any batch size and with its gradient; it is written once.
FOLDER/weights.msgpack has its variables, and is written after each training. TensorFlow is not
needed. FOLDER/held_out.npz has images and Flax's answers, which serve.py compares with its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import numpy as np

_HELD_OUT = 360


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written")
    parser.add_argument(
        "--steps", type=int, default=400, help="how long to train (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of another training (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, options.steps, options.seed)


def write(folder: Path, steps: int, seed: int) -> None:
    """Trains the net, and writes the files."""
    from sklearn.datasets import load_digits

    from examples.flax_to_tensorflow import model
    from jax2tf_bridge import export, write_function, write_weights

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images[order].astype(np.float32)
    labels = data.target[order].astype(np.int32)
    variables = model.train(images[_HELD_OUT:], labels[_HELD_OUT:], steps, seed)

    function = folder / "net.jaxfn"
    if not function.exists():
        shapes = [None, "(b, 8, 8)"]
        portable = export(model.predict, polymorphic_shapes=shapes)(variables, images[:1])
        write_function(function, portable, vjp_order=1)
        print(f"{function}: {portable.name}, {function.stat().st_size} bytes")
    weights = folder / "weights.msgpack"
    write_weights(weights, variables)
    print(f"{weights}: {weights.stat().st_size} bytes")

    held_out = images[:_HELD_OUT]
    answers = jax.jit(model.predict)(variables, held_out)
    np.savez(
        folder / "held_out.npz",
        images=held_out,
        labels=labels[:_HELD_OUT],
        probabilities=answers["probabilities"],
    )
    accuracy = np.mean(np.asarray(answers["digit"]) == labels[:_HELD_OUT])
    print(
        f"Flax with JAX {jax.__version__}: {accuracy:.1%} of {_HELD_OUT} held-out digits are right"
    )


if __name__ == "__main__":
    main()
