"""Lowers traced functions to StableHLO: platforms, lowering rules, gradients."""

from jax2tf_bridge.from_jax.lowering._effects import DROP, refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import (
    LoweredModule,
    build_portable_function,
    effect_names,
    lower,
)
from jax2tf_bridge.from_jax.lowering._tracing import (
    make_traced_function,
    out_structure,
    trace_with_wide_dtypes,
)
from jax2tf_bridge.from_jax.lowering._vjp import VjpExport

__all__ = [
    "DROP",
    "LoweredModule",
    "VjpExport",
    "build_portable_function",
    "effect_names",
    "lower",
    "make_traced_function",
    "out_structure",
    "refuse_host_callbacks",
    "trace_with_wide_dtypes",
]
