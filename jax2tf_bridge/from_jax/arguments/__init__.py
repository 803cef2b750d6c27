"""A user's function and its arguments: checked, named, and as JAX takes them."""
