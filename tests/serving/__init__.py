"""Tests of saved models in TensorFlow Serving."""
