"""Converts StableHLO to TensorFlow's own operations, for consumers without XLA."""

from jax2tf_bridge.to_tensorflow.operations._call_operations import (
    make_operations,
    read,
    rewrite_program,
)
from jax2tf_bridge.to_tensorflow.operations._converter_forms import copy, expm1, lgamma, next_after

__all__ = [
    "copy",
    "expm1",
    "lgamma",
    "make_operations",
    "next_after",
    "read",
    "rewrite_program",
]
