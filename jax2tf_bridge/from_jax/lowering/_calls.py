"""Lowering rules that write calls: of TensorFlow graphs, and of composites.

During lowering a graph is an attribute of its call, so it survives JAX's caches, nested lowering
and lowering in other threads. After lowering, the graphs move into a list of the portable function,
and the calls refer to them by index.

A composite has a name, attributes and a decomposition. Exports for XLA write the decomposition.
Exports for targets without XLA keep the composite, which becomes TensorFlow's own operation if
there is one, and its decomposition otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax2tf_bridge._operations import COMPOSITES
from jax2tf_bridge.bytecode import STOP_GRADIENT
from jax2tf_bridge.errors import NotExportableError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    can_make_custom_calls,
    lower_by_platform,
    lower_fun,
    lower_to_custom_call,
)
from jax2tf_bridge.from_jax.stablehlo import (
    StableHloModule,
    make_int_attribute,
    replace_by_operation,
)
from jax2tf_bridge.portable import CALL_TF_TARGET, GraphFunction

_CONFIG = "tf.backend_config"
_NAME, _GRAPH = "name", "graph"
_API_VERSION = 2


def _make_primitive(name: str) -> Primitive:
    # The parameter `avals` has JAX's abstract values of the results.
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *args, avals, **params: list(avals))
    return primitive


graph_call_p = _make_primitive("call_tf_graph")
"""A JAX primitive that calls a GraphFunction.

Parameters: `function`; `avals`, JAX's abstract values of the results; and `has_side_effects`,
whether the call is kept if its results are unused.
"""


def _raise_not_exportable(ctx: Any, *args: Any, function: GraphFunction, **params: Any) -> Any:
    raise NotExportableError(
        f"JAX cannot run the TensorFlow function {function.name} as a graph (call_tf_graph=True); "
        "TensorFlow can. Lower it with jax2tf_bridge.convert or jax2tf_bridge.export; or leave "
        "out call_tf_graph, so that XLA compiles the function as part of the JAX program; or call "
        "it outside of jax.jit, scan, cond and while_loop."
    )


mlir.register_lowering(graph_call_p, _raise_not_exportable)


def _lower_graph_call(
    ctx: Any,
    *operands: Any,
    function: GraphFunction,
    avals: Sequence[Any],
    has_side_effects: bool,
) -> Sequence[Any]:
    if not avals:
        return []
    results = lower_to_custom_call(ctx, CALL_TF_TARGET, *operands)
    attributes = results[0].owner.attributes
    attributes["api_version"] = make_int_attribute(_API_VERSION, 32)
    attributes["has_side_effect"] = ir.BoolAttr.get(has_side_effects)
    attributes[_CONFIG] = ir.DictAttr.get(
        {
            _NAME: ir.StringAttr.get(function.name),
            _GRAPH: ir.StringAttr.get(function.graph),
        }
    )
    return results


def make_graph_call_rules() -> tuple[tuple[Any, Any], ...]:
    """Returns the lowering rules for exports as (primitive, rule) pairs.

    Without these rules, lowering a call raises an error.
    """
    return ((graph_call_p, _lower_graph_call),) if can_make_custom_calls() else ()


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
                    "called_index": make_int_attribute(index),
                    "has_token_input_output": ir.BoolAttr.get(False),
                }
            )
    return tuple(indices)


Attributes = Mapping[str, bool | int]
# Converts an equation's parameters; returns None if the composite cannot express them.
_ToAttributes = Callable[[Mapping[str, Any]], Attributes | None]

SIZES = "sizes"
"""Attribute with the number of leading operands that are sizes, for the decomposition only."""

_by_rule_p = _make_primitive("jax2tf_ordinary")
"""Primitive that is lowered by its parameter `rule`, whatever overrides the export has."""


def _lower_by_rule(
    ctx: Any, *operands: Any, rule: Rule, params: tuple[tuple[str, Any], ...], avals: Any
) -> Sequence[Any]:
    return rule(ctx, *operands, **dict(params))


mlir.register_lowering(_by_rule_p, _lower_by_rule)


def make_composite_rules(rules: Mapping[Any, Rule]) -> dict[Any, Rule]:
    """Returns the rules that write composites.

    `rules` are the other overrides of the export, which lower the decompositions.
    """
    partial = functools.partial
    return {
        primitive: partial(
            _lower_to_composite,
            row.name,
            _pick_parameters(*row.parameters, unless=row.unless),
            rules.get(primitive) or partial(lower_by_platform, primitive, {}),
        )
        for row in COMPOSITES.values()
        if row.primitive and (primitive := _find_lax_primitive(row.primitive)) is not None
    }


def _lower_to_composite(
    name: str,
    to_attributes: _ToAttributes,
    fallback: Rule,
    ctx: Any,
    *operands: Any,
    **params: Any,
) -> Sequence[Any]:
    attributes = to_attributes(params)
    if attributes is None:
        return fallback(ctx, *operands, **params)
    avals = tuple(ctx.avals_out)
    sizes = [d for aval in (*ctx.avals_in, *avals) for d in aval.shape if not isinstance(d, int)]
    # Sizes in two exports may have equal names but different constraints.
    scope = getattr(sizes[0], "scope", None) if sizes else None
    call = _make_decomposition(name, fallback, scope, tuple(sorted(params.items())), avals)
    results = [*lower_fun(call)(ctx, *operands)]
    return _replace_by_composite(results, name, attributes, len(operands))


@functools.lru_cache(maxsize=256)
def _make_decomposition(
    name: str, rule: Rule, scope: Any, params: tuple[tuple[str, Any], ...], avals: tuple[Any, ...]
) -> Callable[..., Any]:
    """Returns the function that becomes the decomposition; equal calls in a module share one."""

    def decomposition(*args: Any) -> Any:
        return _by_rule_p.bind(*args, rule=rule, params=params, avals=avals)

    decomposition.__name__ = name
    return jax.jit(decomposition)


def _replace_by_composite(
    results: Sequence[Any], name: str, attributes: Attributes, n_operands: int
) -> Sequence[Any]:
    call = results[0].owner
    call = getattr(call, "operation", call)
    if call.name != "func.call" or len(call.results) != len(results):
        if name == STOP_GRADIENT:
            raise NotExportableError(
                "The installed JAX lowers jax.lax.stop_gradient in an unknown way, so TensorFlow "
                "would differentiate through it. Export with a target that has XLA, or with "
                "another release of JAX."
            )
        return results  # JAX inlined the decomposition, which is equivalent
    n_sizes = len(call.operands) - n_operands
    all_attributes = {**attributes, **({SIZES: n_sizes} if n_sizes else {})}
    with call.context:
        mlir_attributes: dict[str, ir.Attribute] = {
            key: ir.BoolAttr.get(value) if isinstance(value, bool) else make_int_attribute(value)
            for key, value in all_attributes.items()
        }
        composite_attributes = {
            "name": ir.StringAttr.get(name),
            "composite_attributes": ir.DictAttr.get(mlir_attributes),
            "decomposition": call.attributes["callee"],
            "version": make_int_attribute(1, 32),
        }
        operation = "stablehlo.composite"
        composite = replace_by_operation(call, operation, call.operands, composite_attributes)
    return list(composite.results)


def _find_lax_primitive(name: str) -> Any:
    if name == "stop_gradient":
        return _find_stop_gradient()
    return getattr(lax, f"{name}_p", None) or getattr(lax.linalg, f"{name}_p")


def _find_stop_gradient() -> Any:
    """Finds the primitive of jax.lax.stop_gradient, which has no public name in JAX."""
    equations = jax.make_jaxpr(lax.stop_gradient)(np.float32(0)).jaxpr.eqns
    primitives = {equation.primitive.name: equation.primitive for equation in equations}
    return primitives.get("stop_gradient")


def _pick_parameters(*names: str, unless: str = "") -> _ToAttributes:
    """Makes a function that returns these parameters; None without them, or if `unless` is set."""

    def pick(params: Mapping[str, Any]) -> Attributes | None:
        if params.get(unless) not in (None, False) or not params.keys() >= {*names}:
            return None
        values = {n: params[n] for n in names}
        return {
            n: bool(v) if isinstance(v, (bool, np.bool_)) else int(v) for n, v in values.items()
        }

    return pick
