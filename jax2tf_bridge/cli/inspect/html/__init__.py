"""Makes the pages of `jax2tf-bridge inspect --html`."""
