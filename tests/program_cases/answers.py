"""JAX's answers to one call, and TensorFlow's; importing it needs neither JAX nor TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
FlatFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Reference:
    """One call and JAX's answers, flat, in the dtypes in which values cross to TensorFlow.

    Attributes:
      inputs, results: the leaves of the arguments and of the result.
      sources: the indices of the inputs that gradients are taken for.
      targets: the indices of the results that have cotangents.
      cotangents: a real array for each target.
      gradients: one for each source, by TensorFlow's convention for complex ones; empty if
        none were asked for, or the program has none, or no targets.
    """

    inputs: tuple[Array, ...]
    results: tuple[Array, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    cotangents: tuple[Array, ...]
    gradients: tuple[Array, ...]


def results_and_gradients(
    function: FlatFunction, inputs: Sequence[Any], expected: Reference, *, own: bool = False
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Computes TensorFlow's results, and its gradients if the reference has gradients.

    Args:
      function: a function from flat tensors to flat tensors.
      inputs: its arguments.
      expected: JAX's answers.
      own: whether the function consists of TensorFlow's own operations.
    """
    if not expected.gradients:
        import tensorflow as tf

        return function(*map(tf.constant, inputs)), []
    return differentiate(function, inputs, expected, own=own)


def differentiate(
    function: FlatFunction, inputs: Sequence[Any], expected: Reference, *, own: bool = False
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Computes TensorFlow's results and gradients; see `results_and_gradients`."""
    import tensorflow as tf

    tensors = [tf.constant(i) for i in inputs]
    sources = [tensors[i] for i in expected.sources]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        results = function(*tensors)
    targets = [results[i] for i in expected.targets]
    cotangents = [tf.constant(c) for c in expected.cotangents]
    # TensorFlow's own operations have no gradient for an argument that no result depends on.
    unconnected = tf.UnconnectedGradients.ZERO if own else tf.UnconnectedGradients.NONE
    gradients = tape.gradient(targets, sources, cotangents, unconnected)
    # TensorFlow's gradient of a tf.gather is tf.IndexedSlices.
    return results, [tf.convert_to_tensor(g) if own else g for g in gradients]
