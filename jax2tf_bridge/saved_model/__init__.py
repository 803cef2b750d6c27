"""Reads and patches SavedModels; imports neither jax nor tensorflow."""
