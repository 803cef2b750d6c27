"""Batch normalization against its formulas, and its gradient against TensorFlow's."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.to_tensorflow.operations.running import run

_TEXT = """
func.func @main(%x: tensor<?x3x2xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>, %ct: tensor<?x3x2xf32>)
    -> (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<?x3x2xf32>,
        tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>) {
  %y, %m, %v = "stablehlo.batch_norm_training"(%x, %s, %o)
      <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}>
      : (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>)
      -> (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>)
  %i = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v)
      <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}>
      : (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
      -> tensor<?x3x2xf32>
  %dx, %ds, %do = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %ct)
      <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}>
      : (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<?x3x2xf32>)
      -> (tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>)
  return %y, %m, %v, %i, %dx, %ds, %do : tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>,
      tensor<?x3x2xf32>, tensor<?x3x2xf32>, tensor<3xf32>, tensor<3xf32>
}
"""


def test_training_inference_and_gradient() -> None:
    rng = np.random.default_rng(0)
    x, ct = (rng.normal(size=(4, 3, 2)).astype("f4") for _ in range(2))
    scale, offset = np.array([1, 2, -3], "f4"), np.array([0.5, 0, 4], "f4")
    y, mean, variance, again, *gradients = run(_TEXT, x, scale, offset, ct, symbols="bb")
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 2)), rtol=1e-5)
    np.testing.assert_array_equal(y, again)

    tensors = [tf.constant(x), tf.constant(scale), tf.constant(offset)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        moments = tf.nn.moments(tensors[0], (0, 2), keepdims=True)
        s, o = (tf.reshape(t, [3, 1]) for t in tensors[1:])
        expected = tf.nn.batch_normalization(tensors[0], *moments, o, s, 1e-3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    for found, wanted in zip(gradients, tape.gradient(expected, tensors, ct), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
