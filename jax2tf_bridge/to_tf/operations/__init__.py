"""StableHLO as TensorFlow's own operations, for consumers without XLA."""

from jax2tf_bridge.to_tf.operations._call_operations import make_operations, read

__all__ = ["make_operations", "read"]
