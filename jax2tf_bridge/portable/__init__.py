"""The portable function and what it is made of. Imports neither jax nor tensorflow."""
