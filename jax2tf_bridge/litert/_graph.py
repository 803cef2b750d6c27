"""Replaces operations in a SavedModel's graph by calls of functions of built-in operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge.litert._forms import Form, copy_form, form_of

_CALL = "PartitionedCall"
_OUTPUT = re.compile(r"^([^:]+):\w+:(\d+)$")


def with_built_ins(graph: Any) -> None:
    """Replaces operations that LiteRT lacks by their forms, if they have one.

    Args:
      graph: a GraphDef, which is changed in place.
    """
    functions = _Functions(graph)
    _remove_locks(graph.node)
    for function in graph.library.function:
        _remove_control_outputs(function, _remove_locks(function.node_def))
    bodies = [_Body(graph.node, {}), *(_Body(f.node_def, f.ret) for f in graph.library.function)]
    loops = {
        node.attr["body"].func.name for body in bodies for node in body.nodes if node.op in _LOOPS
    }
    for body in bodies:
        replaced = set()
        makers = {node.name: node for node in body.nodes}
        transposed = {
            node.name
            for node in body.nodes
            if node.op in _ON_ELEMENTS and _is_behind_transpose(node, makers)
        }
        for node in body.nodes:
            is_transposed = node.name in transposed
            form = form_of(node, makers, is_behind_transpose=is_transposed)
            if form is not None:
                attributes = {k: v.SerializeToString() for k, v in node.attr.items() if k[0] != "_"}
                key = (node.op, is_transposed, *sorted(attributes.items()))
                _make_call(node, functions.name_of(key, form), form)
                replaced.add(node.name)
        body.rename_results(replaced)
    for function in graph.library.function:
        if function.signature.name in loops:
            _copy_moved_variables(function, functions)
    graph.library.function.extend(functions.definitions)


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


_LOCKS = ("MutexV2", "MutexLock", "ConsumeMutexLock")


def _remove_locks(nodes: Any) -> set[str]:
    """Removes the lock of a model's weights: LiteRT has none, and runs one call at a time.

    Returns the names of the nodes that it removed.
    """
    removed = {node.name for node in nodes if node.op in _LOCKS}
    if not removed:
        return removed
    kept = [node for node in nodes if node.name not in removed]
    for node in kept:
        inputs = [n for n in node.input if n.removeprefix("^").partition(":")[0] not in removed]
        del node.input[:]
        node.input.extend(inputs)
    del nodes[:]
    nodes.extend(kept)
    return removed


def _remove_control_outputs(function: Any, removed: set[str]) -> None:
    names = [name for name, node in function.control_ret.items() if node in removed]
    for name in names:
        del function.control_ret[name]
    kept = [name for name in function.signature.control_output if name not in names]
    del function.signature.control_output[:]
    function.signature.control_output.extend(kept)


class _Functions:
    """Cache of the functions that were made for the forms in a graph."""

    def __init__(self, graph: Any) -> None:
        self._taken = {function.signature.name for function in graph.library.function}
        self._names: dict[tuple[Any, ...], str] = {}
        self.definitions: list[Any] = []

    def name_of(self, key: tuple[Any, ...], form: Form) -> str:
        """Returns the name of the function for a key; it contains the key's first part."""
        if key not in self._names:
            name = f"litert_{len(self._names)}_{key[0]}"
            assert name not in self._taken, "TensorFlow names functions otherwise"
            self._names[key] = name
            self.definitions += _definitions(name, form)
        return self._names[key]


@dataclass(frozen=True)
class _Body:
    """Nodes and results of a graph or a function, by name."""

    nodes: Any
    returned: Any

    def rename_results(self, called: set[str]) -> None:
        """Renames the results of nodes that became calls, as calls name their results."""
        if not called:
            return
        references = [(node.input, i) for node in self.nodes for i in range(len(node.input))]
        for holder, key in (*references, *((self.returned, key) for key in list(self.returned))):
            match = _OUTPUT.match(holder[key])
            if match is not None and match[1] in called:
                holder[key] = f"{match[1]}:output:{match[2]}"


def _make_call(node: Any, function: str, form: Form) -> None:
    node.op = _CALL
    for name in [n for n in node.attr if not n.startswith("_")]:
        del node.attr[name]
    node.attr["Tin"].list.type.extend([dtype.as_datatype_enum for dtype in form.inputs])
    node.attr["Tout"].list.type.append(form.result.as_datatype_enum)
    node.attr["f"].func.name = function


_LOOPS = ("StatelessWhile", "While")
_SAME = ("Identity", "IdentityN")


def _copy_moved_variables(function: Any, functions: _Functions) -> None:
    """Inserts copies of loop variables that a loop's body returns as other variables.

    LiteRT writes the results of a body into its variables one by one, so a variable that is also a
    result may already be overwritten.
    """
    arguments = [argument.name for argument in function.signature.input_arg]
    dtypes = [tf.as_dtype(argument.type) for argument in function.signature.input_arg]
    makers = {node.name: node for node in function.node_def}
    for place, result in enumerate(function.signature.output_arg):
        source = function.ret[result.name]
        while (match := _OUTPUT.match(source)) and makers[match[1]].op in _SAME:
            source = makers[match[1]].input[int(match[2])]
        if source not in arguments or arguments.index(source) == place:
            continue
        dtype = dtypes[arguments.index(source)]
        form = copy_form(dtype)
        if form is None:
            continue
        copied = function.node_def.add(name=f"litert_copy_{place}", input=[source])
        _make_call(copied, functions.name_of(("copy", dtype), form), form)
        function.ret[result.name] = f"{copied.name}:output:0"


def _definitions(name: str, form: Form) -> list[Any]:
    """Makes the definition of a function with this name, and of those that it calls."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return form.kernel(*tensors)

    specs = [tf.TensorSpec(None, dtype) for dtype in form.inputs]
    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    definition = concrete.function_def
    definition.signature.name = name
    return [definition, *concrete.graph.as_graph_def().library.function]
