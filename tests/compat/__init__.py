"""jax2tf_bridge.compat, with the libraries that it is for."""
