"""Reads and writes JAX's own format of exported functions, without JAX."""
