"""Lowers traced functions to StableHLO: platforms, lowering rules, gradients."""

from jax2tf_bridge.from_jax.lowering._calls import graph_call_p
from jax2tf_bridge.from_jax.lowering._effects import name_effects, refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, lower
from jax2tf_bridge.from_jax.lowering._options import ExportOptions, make_export_options
from jax2tf_bridge.from_jax.lowering._portable_functions import build_portable_function
from jax2tf_bridge.from_jax.lowering._rules import make_lowering_overrides
from jax2tf_bridge.from_jax.lowering._tracing import get_out_structure, make_traced_function

__all__ = [
    "ExportOptions",
    "LoweredModule",
    "build_portable_function",
    "get_out_structure",
    "graph_call_p",
    "lower",
    "make_export_options",
    "make_lowering_overrides",
    "make_traced_function",
    "name_effects",
    "refuse_host_callbacks",
]
