"""`jax2tf-bridge serve-check`: runs a model in other TensorFlow releases."""
