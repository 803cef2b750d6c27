"""Reads and writes the file format of jax.export, without JAX."""
