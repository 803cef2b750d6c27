"""`jax2tf-bridge save` and `publish`: write the function in a file as a SavedModel."""
