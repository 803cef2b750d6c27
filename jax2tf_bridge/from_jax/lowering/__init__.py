"""Lowers traced functions to StableHLO: platforms, lowering rules, gradients."""

from jax2tf_bridge.from_jax.lowering._calls import graph_call_p
from jax2tf_bridge.from_jax.lowering._effects import effect_names, refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, lower
from jax2tf_bridge.from_jax.lowering._options import ExportOptions, make_export_options
from jax2tf_bridge.from_jax.lowering._portable_functions import build_portable_function
from jax2tf_bridge.from_jax.lowering._rules import lowering_overrides
from jax2tf_bridge.from_jax.lowering._tracing import make_traced_function, out_structure

__all__ = [
    "ExportOptions",
    "LoweredModule",
    "build_portable_function",
    "effect_names",
    "graph_call_p",
    "lower",
    "lowering_overrides",
    "make_export_options",
    "make_traced_function",
    "out_structure",
    "refuse_host_callbacks",
]
