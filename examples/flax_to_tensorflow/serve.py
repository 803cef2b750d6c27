#!/usr/bin/env python3
"""Serves the two files of train.py with TensorFlow, without JAX and Flax.

Publishes FOLDER/served/1 from the function and its weights. After another training, it publishes
the next version from the new weights only: the function is not exported again. Then it loads the
model as a server would, and fails if the answers differ from Flax's.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

_MAX_DIFFERENCE = 1e-5


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what train.py wrote")
    options = parser.parse_args()
    # TensorFlow reads this when it starts.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    serve(options.folder)


def serve(folder: Path) -> None:
    """Publishes the next version, and checks its answers."""
    import tensorflow as tf

    from jax2tf_bridge import latest_version, publish

    root, weights = folder / "served", folder / "weights.msgpack"
    if latest_version(root) is None:
        published = publish(root, folder / "net.jaxfn", params=weights)
    else:
        published = publish(root, params=weights)
    print(f"{published.path}, TensorFlow {tf.__version__}")
    print(f"of JAX and Flax there are loaded: {_list_loaded() or 'none'}")
    _compare(Path(published.path), folder / "held_out.npz")


def _compare(path: Path, held_out: Path) -> None:
    import numpy as np
    import tensorflow as tf

    model = tf.saved_model.load(str(path))
    signature = model.signatures["serving_default"]
    with np.load(held_out) as data:
        images, labels, expected = data["images"], data["labels"], data["probabilities"]
    answers = signature(images=tf.constant(images))
    accuracy = np.mean(answers["digit"].numpy() == labels)
    difference = float(np.abs(answers["probabilities"].numpy() - expected).max())
    print(f"{accuracy:.1%} of {len(labels)} held-out digits are right")
    print(f"largest difference from Flax: {difference:.0e}")
    if not difference <= _MAX_DIFFERENCE:
        sys.exit(f"The two differ by more than {_MAX_DIFFERENCE}")


def _list_loaded() -> str:
    """Lists the loaded JAX packages; TensorFlow itself may import JAX if it is installed."""
    return ", ".join(sorted({"jax", "jaxlib", "flax"} & set(sys.modules)))


if __name__ == "__main__":
    main()
