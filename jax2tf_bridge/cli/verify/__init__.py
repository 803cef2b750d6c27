"""`jax2tf-bridge verify`: compares a SavedModel with the JAX function that it came from."""
