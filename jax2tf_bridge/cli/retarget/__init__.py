"""`jax2tf-bridge retarget`: writes a function or a SavedModel for another TensorFlow release."""
