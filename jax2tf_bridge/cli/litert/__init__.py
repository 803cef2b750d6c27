"""`jax2tf-bridge litert`."""
