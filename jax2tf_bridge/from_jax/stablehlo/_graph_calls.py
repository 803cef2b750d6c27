"""Calls of TensorFlow graphs: embeds graphs in a lowered module, and extracts them again.

During lowering the graph is an attribute of the call, so it survives JAX's caches, nested lowering
and lowering in other threads. After lowering, the graphs move into a list of the portable function,
and the calls refer to them by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax2tf_bridge.errors import NotExportableError
from jax2tf_bridge.from_jax import _jax_compat_lowering
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.from_jax.stablehlo._operations import make_integer
from jax2tf_bridge.portable import CALL_TF_TARGET, GraphFunction

_CONFIG = "tf.backend_config"
_NAME, _GRAPH = "name", "graph"
_API_VERSION = 2

graph_call_p = Primitive("call_tf_graph")
"""A JAX primitive that calls a GraphFunction.

Parameters: `function`; `avals`, JAX's abstract values of the results; and `has_side_effects`,
whether the call is kept if its results are unused.
"""
graph_call_p.multiple_results = True


@graph_call_p.def_abstract_eval
def _infer_avals(*args: Any, avals: Sequence[Any], **params: Any) -> list[Any]:
    return list(avals)


def _raise_not_exportable(ctx: Any, *args: Any, function: GraphFunction, **params: Any) -> Any:
    raise NotExportableError(
        f"JAX cannot run the TensorFlow function {function.name} as a graph (call_tf_graph=True); "
        "TensorFlow can. Lower it with jax2tf_bridge.convert or jax2tf_bridge.export; or leave "
        "out call_tf_graph, so that XLA compiles the function as part of the JAX program; or call "
        "it outside of jax.jit, scan, cond and while_loop."
    )


mlir.register_lowering(graph_call_p, _raise_not_exportable)


def _lower(
    ctx: Any,
    *operands: Any,
    function: GraphFunction,
    avals: Sequence[Any],
    has_side_effects: bool,
) -> Sequence[Any]:
    if not avals:
        return []
    results = _jax_compat_lowering.lower_to_custom_call(ctx, CALL_TF_TARGET, *operands)
    attributes = results[0].owner.attributes
    attributes["api_version"] = make_integer(_API_VERSION, 32)
    attributes["has_side_effect"] = ir.BoolAttr.get(has_side_effects)
    attributes[_CONFIG] = ir.DictAttr.get(
        {
            _NAME: ir.StringAttr.get(function.name),
            _GRAPH: ir.StringAttr.get(function.graph),
        }
    )
    return results


def graph_call_rules() -> tuple[tuple[Any, Any], ...]:
    """Returns the lowering rules for exports as (primitive, rule) pairs.

    Without these rules, lowering a call raises an error.
    """
    if not _jax_compat_lowering.can_make_custom_calls():
        return ()
    return ((graph_call_p, _lower),)


def take_graph_functions(module: StableHloModule) -> tuple[GraphFunction, ...]:
    """Moves the graphs out of a lowered module; the calls then refer to them by index.

    Returns:
      The distinct graphs, in the order of their first call.
    """
    indices: dict[GraphFunction, int] = {}
    for call, target in module.custom_call_operations():
        if target != CALL_TF_TARGET or _CONFIG not in call.attributes:
            continue
        config: Any = ir.DictAttr(call.attributes[_CONFIG])
        if _GRAPH not in config:
            continue
        name, graph = ir.StringAttr(config[_NAME]), ir.StringAttr(config[_GRAPH])
        function = GraphFunction(name.value, bytes(graph.value_bytes))
        index = indices.setdefault(function, len(indices))
        with call.context, ir.Location.unknown():
            call.attributes[_CONFIG] = ir.DictAttr.get(
                {
                    "called_index": make_integer(index),
                    "has_token_input_output": ir.BoolAttr.get(False),
                }
            )
    return tuple(indices)
