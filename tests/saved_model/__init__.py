"""Tests of jax2tf_bridge.saved_model."""
