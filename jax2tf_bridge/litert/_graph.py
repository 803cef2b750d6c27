"""Replaces operations in a SavedModel's graph by calls of functions of built-in operations.

Nothing else rewrites a finished graph. LiteRT lacks operations and dtypes of TensorFlow, not of
StableHLO, so a pass over StableHLO would not see what emitters, preprocess functions and the
gradients of TensorFlow make. Emitters could not do it either: `save_litert` also reads SavedModels
without StableHLO, such as those that the bridge saves without XLA.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from jax2tf_bridge.litert._forms import copy_form, form_of
from jax2tf_bridge.to_tensorflow import FormFunctions, remove_operations

_LOCKS = ("MutexV2", "MutexLock", "ConsumeMutexLock")
"""Locks of a model's weights. LiteRT has none, and runs one call at a time."""
_LOOPS = ("StatelessWhile", "While")


def with_built_ins(graph: Any) -> None:
    """Replaces operations that LiteRT lacks by their forms, if they have one.

    Args:
      graph: a GraphDef, which is changed in place.
    """
    remove_operations(graph, _LOCKS)
    functions = FormFunctions(graph, "litert")
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    loops = {node.attr["body"].func.name for nodes in bodies for node in nodes if node.op in _LOOPS}
    for nodes in bodies:
        _replace_nodes(nodes, functions)
    for function in graph.library.function:
        if function.signature.name in loops:
            _copy_moved_variables(function, functions)
    graph.library.function.extend(functions.definitions)


def _replace_nodes(nodes: Any, functions: FormFunctions) -> None:
    makers = {node.name: node for node in nodes}
    transposed = {
        node.name
        for node in nodes
        if node.op in _ON_ELEMENTS and _is_behind_transpose(node, makers)
    }
    for node in nodes:
        is_transposed = node.name in transposed
        form = form_of(node, makers, is_behind_transpose=is_transposed)
        if form is not None:
            functions.replace(node, form, is_transposed)


_ON_ELEMENTS = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh"}
    | {"BroadcastTo", "Cast", "Ceil", "CheckNumerics", "Cos", "Cosh", "Div", "Elu"}
    | {"EnsureShape", "Erf", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Identity"}
    | {"IdentityN", "Invert", "LeakyRelu", "LeftShift", "Log", "Log1p", "LogicalNot", "Maximum"}
    | {"Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6"}
    | {"RightShift", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin"}
    | {"Sinh", "Softplus", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan", "Tanh"}
    | {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "LogicalAnd", "LogicalOr", "TruncateDiv"}
    | {"TruncateMod"}
)
"""Elementwise operations, behind which the converter may have moved a transpose before.

Bitcast is none of them. LiteRT 2.21 may overwrite its result if a reshape of it is used as well:
both share memory, and an operation on the reshape works in place.
"""


def _is_behind_transpose(node: Any, makers: Mapping[str, Any]) -> bool:
    """Returns whether a node follows a transpose, directly or after elementwise operations."""
    waiting, seen = [node], set()
    while waiting:
        for name in waiting.pop().input:
            maker = makers.get(name.partition(":")[0])
            if maker is None or maker.name in seen:
                continue
            seen.add(maker.name)
            if maker.op == "Transpose":
                return True
            if maker.op in _ON_ELEMENTS:
                waiting.append(maker)
    return False


_SAME = ("Identity", "IdentityN")


def _copy_moved_variables(function: Any, functions: FormFunctions) -> None:
    """Inserts copies of loop variables that a loop's body returns as other variables.

    LiteRT writes the results of a body into its variables one by one, so a variable that is also a
    result may already be overwritten.
    """
    arguments = {each.name: i for i, each in enumerate(function.signature.input_arg)}
    makers = {node.name: node for node in function.node_def}
    for place, result in enumerate(function.signature.output_arg):
        source = function.ret[result.name]
        while ":" in source and (maker := makers[source.partition(":")[0]]).op in _SAME:
            source = maker.input[int(source.rpartition(":")[2])]
        form = copy_form(tf.as_dtype(result.type))
        if form is None or arguments.get(source, place) == place:
            continue
        copied = function.node_def.add(name=f"litert_copy_{place}", input=[source])
        copied.op = functions.name_of(("copy", result.type), form)
        function.ret[result.name] = f"{copied.name}:{form.output}:0"
