"""Rewrites functions that an older JAX exported."""

from jax2tf_bridge.from_jax.archives._calls import is_retired, rewrite_calls

__all__ = [
    "is_retired",
    "rewrite_calls",
]
