"""`jax2tf-bridge weights`."""
