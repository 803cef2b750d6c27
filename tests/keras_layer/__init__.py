"""Tests of jax2tf_bridge.keras; not named as the package, which would hide Keras."""
