"""TensorFlow functions that the tests embed as graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
KERNEL = np.array([[0.5, -1.0], [1.5, 0.25]], np.float32)


class Layers(tf.Module):  # type: ignore[misc]
    """Variables read in nested functions and in a loop, for batches of any size.

    Attributes:
      kernel, scale: the variables.
      loop: whether it has a loop. TensorFlow's gradient of a loop stores values whose sizes XLA
        must know, so it may not compile for open sizes.
    """

    def __init__(self, *, loop: bool = True) -> None:
        super().__init__()
        self.loop = loop
        self.kernel, self.scale = tf.Variable(KERNEL), tf.Variable(0.5)

    @tf.function(autograph=False)
    def dense(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ self.kernel)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")], autograph=False)
    def __call__(self, x: tf.Tensor) -> Any:
        """Computes the layers for rows of size 2."""
        x = self.dense(x)

        def body(i: tf.Tensor, x: tf.Tensor) -> Any:
            return i + 1, x * self.scale + tf.gather(self.kernel, i)

        if self.loop:
            _, x = tf.while_loop(lambda i, _: i < 2, body, [0, x], maximum_iterations=2)
        else:
            for i in range(2):
                _, x = body(tf.constant(i), x)
        return x * self.scale


def layers(x: Any, np: Any = np) -> Any:
    """Computes the same as Layers, in NumPy or jax.numpy."""
    x = np.tanh(x @ KERNEL)
    for i in range(2):
        x = x * 0.5 + KERNEL[i]
    return x * 0.5
