"""Functions that older JAX exported."""
