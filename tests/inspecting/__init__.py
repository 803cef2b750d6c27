"""Tests of jax2tf_bridge.inspecting."""
