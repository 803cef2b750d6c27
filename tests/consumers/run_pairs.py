"""Runs a .jaxfn file of pairs of operations, without JAX.

    python -m tests.consumers.run_pairs FUNCTION ARGUMENTS RESULTS

reads arguments from one .npz file and writes results, by their names, to another.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from jax2tf_bridge import read_function, to_tf


def main(path: str, arguments: str, results: str) -> None:
    """Runs the function in a graph, which TensorFlow optimizes."""
    function = tf.function(to_tf(read_function(path), with_gradient=False), autograph=False)
    with np.load(arguments) as arrays:
        named = function(*(tf.constant(arrays[name]) for name in arrays.files))
    np.savez(results, **{name: array.numpy() for name, array in named.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
