"""Rewrites graphs so that they take the values of variables instead of their handles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

_Value: TypeAlias = tuple[int, Any]
"""Dtype and shape of a variable as protocol buffers."""

# For each operation that calls functions: the attributes that name the functions, the number of
# inputs before their arguments, and the attributes with the input types and the result types.
_CALLS: Mapping[str, tuple[tuple[str, ...], int, str, str]] = {
    "PartitionedCall": (("f",), 0, "Tin", "Tout"),
    "StatefulPartitionedCall": (("f",), 0, "Tin", "Tout"),
    "If": (("then_branch", "else_branch"), 1, "Tin", "Tout"),
    "StatelessIf": (("then_branch", "else_branch"), 1, "Tin", "Tout"),
    "Case": (("branches",), 1, "Tin", "Tout"),
    "StatelessCase": (("branches",), 1, "Tin", "Tout"),
    "While": (("cond", "body"), 0, "T", "T"),
    "StatelessWhile": (("cond", "body"), 0, "T", "T"),
}
# For each operation that reads a variable: the same operation on its value, the attribute with its
# dtype, and the attributes to remove.
_READS = {
    "ReadVariableOp": ("Identity", "T", ("dtype",)),
    "ResourceGather": ("Gather", "Tparams", ("dtype", "batch_dims")),
    "VariableShape": ("Shape", "T", ()),
}
_OUTPUT_NAMES = {"ReadVariableOp": "value"}


class NotAValueError(Exception):
    """An operation needs the variable itself; `operation` is its type."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation


@dataclass
class _GraphScope:
    """A graph or a function of its library.

    Attributes:
      nodes: the nodes.
      typed: the tensors that were handles and are values now, by reference.
      of_function: whether it is a function, whose references name the output of the node.
      renamed: the new references of results that were renamed.
    """

    nodes: Sequence[Any]
    typed: dict[str, _Value]
    of_function: bool
    renamed: dict[str, str] = field(default_factory=dict)

    def reference(self, node: Any, i: int, result: str) -> str:
        return f"{node.name}:{result}:{i}" if self.of_function else f"{node.name}:{i}"

    def value(self, reference: str) -> _Value | None:
        if not self.of_function and ":" not in reference:
            reference += ":0"
        return self.typed.get(reference)


def replace_variables(graph_def: Any, variables: Mapping[str, tf.TensorSpec]) -> None:
    """Replaces the placeholders of variables by placeholders of their values, in place.

    Args:
      graph_def: a tf.compat.v1.GraphDef; its functions are rewritten as well.
      variables: the types of the values, by the name of the placeholder.

    Raises:
      NotAValueError: an operation does not just read a variable.
    """
    types = {
        f"{name}:0": (spec.dtype.as_datatype_enum, spec.shape.as_proto())
        for name, spec in variables.items()
    }
    for node in graph_def.node:
        if node.name in variables:
            dtype, shape = types[f"{node.name}:0"]
            node.attr["dtype"].type = dtype
            node.attr["shape"].shape.CopyFrom(shape)
    _Rewriter(graph_def.library).rewrite(_GraphScope(graph_def.node, types, of_function=False))


class _Rewriter:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions = {f.signature.name: f for f in library.function}
        self._specialized: dict[Any, tuple[str, dict[int, _Value]]] = {}

    def rewrite(self, scope: _GraphScope) -> None:
        """Rewrites the users of values, and the users of their results, until none is left."""
        has_changed = True
        rewritten: set[str] = set()
        while has_changed:
            has_changed = False
            for node in scope.nodes:
                values = {
                    i: value
                    for i, reference in enumerate(_iterate_data_inputs(node))
                    if (value := scope.value(reference)) is not None
                }
                if values and node.name not in rewritten:
                    rewritten.add(node.name)
                    has_changed = True
                    self._rewrite_node(scope, node, values)

    def _rewrite_node(self, scope: _GraphScope, node: Any, values: Mapping[int, _Value]) -> None:
        for key in [k for k in node.attr if k.startswith(("_handle", "_read_only_resource"))]:
            del node.attr[key]
        if node.op == "Identity":
            node.attr["T"].type = values[0][0]
            node.attr.pop("_output_shapes", None)
            scope.typed[scope.reference(node, 0, "output")] = values[0]
        elif node.op in _READS and not (node.op == "ResourceGather" and node.attr["batch_dims"].i):
            self._rewrite_read(scope, node, values[0])
        elif node.op in _CALLS:
            self._rewrite_call(scope, node, values)
        else:
            raise NotAValueError(node.op)

    def _rewrite_read(self, scope: _GraphScope, node: Any, value: _Value) -> None:
        old = node.op
        node.op, attribute, removed = _READS[old]
        for key in removed:
            node.attr.pop(key, None)
        node.attr[attribute].type = value[0]
        if scope.of_function and old in _OUTPUT_NAMES:
            old_reference = f"{node.name}:{_OUTPUT_NAMES[old]}:0"
            _replace_inputs(scope.nodes, old_reference, f"{node.name}:output:0")
            scope.renamed[old_reference] = f"{node.name}:output:0"

    def _rewrite_call(self, scope: _GraphScope, node: Any, values: Mapping[int, _Value]) -> None:
        keys, first, in_types, out_types = _CALLS[node.op]
        if any(i < first for i in values):
            raise NotAValueError(node.op)
        arguments = {i - first: value for i, value in values.items()}
        for i, (dtype, _) in arguments.items():
            node.attr[in_types].list.type[i] = dtype
        results: dict[int, _Value] = {}
        for callee in iterate_callees(node, keys):
            callee.name, callee_results = self._specialize(callee.name, arguments)
            results |= callee_results
        if in_types == out_types:  # a loop's results have the types of its arguments
            results = arguments
        node.attr.pop("_output_shapes", None)
        shapes = node.attr["output_shapes"].list.shape if "output_shapes" in node.attr else ()
        for i, value in results.items():
            node.attr[out_types].list.type[i] = value[0]
            if i < len(shapes):
                shapes[i].CopyFrom(value[1])
            scope.typed[scope.reference(node, i, "output")] = value

    def _specialize(self, name: str, values: Mapping[int, _Value]) -> tuple[str, dict[int, _Value]]:
        """Specializes a function to these values; returns its name and the results that are values.

        Each combination is made once.
        """
        key = name, tuple(sorted((i, str(argument_value)) for i, argument_value in values.items()))
        if key in self._specialized:
            return self._specialized[key]
        if name not in self._functions:
            raise NotAValueError(name)
        function = self._library.function.add()
        function.CopyFrom(self._functions[name])
        function.signature.name = f"{name}_of_values_{len(self._specialized)}"
        function.resource_arg_unique_id.clear()
        typed = {}
        for i, argument_value in values.items():
            argument = function.signature.input_arg[i]
            argument.type = argument_value[0]
            argument.ClearField("handle_data")
            function.arg_attr[i].attr.pop("_output_shapes", None)
            typed[argument.name] = argument_value
        scope = _GraphScope(function.node_def, typed, of_function=True)
        self.rewrite(scope)
        results: dict[int, _Value] = {}
        for i, result in enumerate(function.signature.output_arg):
            reference = function.ret[result.name]
            if reference in scope.renamed:
                function.ret[result.name] = scope.renamed[reference]
            elif (value := scope.value(reference)) is not None:
                result.type = value[0]
                result.ClearField("handle_data")
                results[i] = value
        self._specialized[key] = function.signature.name, results
        return self._specialized[key]


def _iterate_data_inputs(node: Any) -> Iterator[str]:
    return (reference for reference in node.input if not reference.startswith("^"))


def _replace_inputs(nodes: Sequence[Any], old: str, new: str) -> None:
    for node in nodes:
        for i, reference in enumerate(node.input):
            if reference == old:
                node.input[i] = new


def iterate_callees(node: Any, keys: Iterable[str]) -> Iterator[Any]:
    """Yields the functions that attributes of a node name; an attribute may have a list."""
    for key in keys:
        value = node.attr[key]
        if value.WhichOneof("value") == "func":
            yield value.func
        else:
            yield from value.list.func
