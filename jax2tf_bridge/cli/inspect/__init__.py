"""`jax2tf-bridge inspect`: tells what is in a file or a SavedModel, as text, JSON or a page."""
