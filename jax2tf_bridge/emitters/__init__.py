"""Converts StableHLO to a graph of operations of TensorFlow or another runtime."""

from jax2tf_bridge.emitters._call_operations import make_operations, read, rewrite_program
from jax2tf_bridge.emitters._ops import (
    Builder,
    NoOperationError,
    building,
    find_source_line,
    make_line_scope,
)
from jax2tf_bridge.emitters._sizes import SizeAlgebra, largest_constant
from jax2tf_bridge.emitters.formulas.converter_forms import copy, expm1, lgamma, log1p, next_after

__all__ = [
    "Builder",
    "NoOperationError",
    "SizeAlgebra",
    "building",
    "copy",
    "expm1",
    "find_source_line",
    "largest_constant",
    "lgamma",
    "log1p",
    "make_line_scope",
    "make_operations",
    "next_after",
    "read",
    "rewrite_program",
]
