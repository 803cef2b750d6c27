"""Weights as state dicts, and the files that hold them; neither JAX nor TensorFlow is needed."""
