#!/usr/bin/env python3
"""Reads back into JAX what learn.py learned, and fails if JAX reads the digits less well."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what learn.py wrote")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    evaluate(options.folder)


def evaluate(folder: Path) -> None:
    """Compares the learned weights with new ones."""
    from examples.new_handwriting import model

    structure = jax.tree_util.tree_structure(model.make_state(seed=0))
    names = json.loads((folder / "weights.json").read_text())
    with np.load(folder / "learned.npz") as learned:
        # The names are in the order of the leaves.
        leaves = [learned[name] for name in names]
    state = jax.tree_util.tree_unflatten(structure, leaves)
    with np.load(folder / "handwriting.npz") as data:
        images, labels = data["test_images"], data["test_labels"]
    accuracy = model.measure_accuracy(state, images, labels)
    print(f"in JAX {accuracy:.1%} of {len(labels)} slanted digits are right")
    print(f"steps of Adam: {int(state['optimizer'][0].count)}")


if __name__ == "__main__":
    main()
