"""The page of `jax2tf-bridge inspect --html`."""
