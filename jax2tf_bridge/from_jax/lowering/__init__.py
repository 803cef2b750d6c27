"""Lowers traced functions to StableHLO: platforms, lowering rules, gradients."""

from jax2tf_bridge.from_jax.lowering._calls import graph_call_p as graph_call_p
from jax2tf_bridge.from_jax.lowering._effects import name_effects as name_effects
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks as refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule as LoweredModule
from jax2tf_bridge.from_jax.lowering._lowering import lower as lower
from jax2tf_bridge.from_jax.lowering._options import ExportOptions as ExportOptions
from jax2tf_bridge.from_jax.lowering._options import make_export_options as make_export_options
from jax2tf_bridge.from_jax.lowering._portable_functions import (
    build_portable_function as build_portable_function,
)
from jax2tf_bridge.from_jax.lowering._rules import (
    make_lowering_overrides as make_lowering_overrides,
)
from jax2tf_bridge.from_jax.lowering._tracing import get_out_structure as get_out_structure
from jax2tf_bridge.from_jax.lowering._tracing import make_traced_function as make_traced_function
