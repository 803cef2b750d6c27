"""Makes the TensorFlow graphs that portable functions embed."""

from __future__ import annotations

import functools
import graphlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.calling_tf import _tf_compat
from jax2tf_bridge.calling_tf._compiled import check_no_updates
from jax2tf_bridge.calling_tf._failures import make_undetermined_size_error
from jax2tf_bridge.calling_tf._functions import FlatFunction, FunctionTrace, suspend_tracing
from jax2tf_bridge.calling_tf._values import canonical_dtype, uses_64_bits
from jax2tf_bridge.emitters import SizeAlgebra
from jax2tf_bridge.errors import UnsupportedByTargetError
from jax2tf_bridge.portable import Aval, GraphFunction
from shape_poly import Dim, make_plan, solve

_INVALID_IN_NAMES = re.compile(r"\W+", re.ASCII)


class _SizeChecks:
    """Checks of the sizes of results, for arguments of symbolic shapes.

    XLA drops assertions, but knows all sizes when it compiles. The check is therefore a reshape of
    zeros from the actual to the expected size: it fails to compile if the sizes differ, and leaves
    nothing in the program otherwise. TensorFlow's error message contains its name.
    """

    def __init__(self, name: str, arguments: Sequence[tf.Tensor], avals: Sequence[Aval]) -> None:
        """Stores the arguments of the function, which are tensors of the current graph."""
        self._name, self._arguments = name, arguments
        self._shapes = [aval.shape for aval in avals]

    def check_result(self, result: tf.Tensor, i: int, aval: Aval) -> tf.Tensor:
        """Returns the i-th result with checks: it compiles only if it has the shape of `aval`.

        Raises:
          ShapeError: a size does not follow from the sizes of the arguments.
        """
        shape = result.shape
        rank = len(aval.shape)
        if shape.rank is None:
            with tf.control_dependencies([self._check(tf.rank(result), rank, i, "rank")]):
                result = tf.ensure_shape(result, [None] * rank)
            shape = result.shape
        checks = [
            self._check(tf.shape(result)[axis], self._expect_size(size, i), i, f"size_{axis}")
            for axis, size in enumerate(aval.shape)
            if shape[axis] is None
        ]
        with tf.control_dependencies(checks):
            return tf.identity(result)

    def _check(self, size: Any, expected: Any, i: int, what: str) -> tf.Operation:
        name = _INVALID_IN_NAMES.sub("_", self._name).strip("_")
        label = f"{what}_of_result_{i}_of_{name}_is_not_as_declared"
        return tf.reshape(tf.zeros([size], tf.bool), [expected], name=label).op

    def _expect_size(self, size: Dim, i: int) -> Any:
        if isinstance(size, int):
            return size
        for argument, shape in zip(self._arguments, self._shapes, strict=True):
            if size in shape:
                return tf.shape(argument)[shape.index(size)]
        missing = size.variables() - self._values.keys()
        if missing:
            raise make_undetermined_size_error(self._name, i, size, missing)
        return size.evaluate_with(self._values, SizeAlgebra(tf.int32))

    @functools.cached_property
    def _values(self) -> Mapping[str, Any]:
        sizes = [
            [d if isinstance(d, int) else tf.shape(argument)[axis] for axis, d in enumerate(shape)]
            for argument, shape in zip(self._arguments, self._shapes, strict=True)
        ]
        plan = make_plan(self._shapes, sizes)
        return solve(plan, sizes, SizeAlgebra(tf.int32)).values


# Attributes that are removed from embedded graphs: process-local ids, names of gradients (the
# gradient is a separate graph), and the lowering of loops to v1, which XLA cannot compile.
_REMOVED_ATTRIBUTES = (
    "_gradient_op_type",
    "forward_function_name",
    "backward_function_name",
    "_construction_context",
    "_collective_manager_ids",
    "config_proto",
    "_XlaMustCompile",
    "_lower_using_switch_merge",
)


@dataclass(frozen=True)
class EmbeddedGraph:
    """A graph, and the values of its extra arguments.

    Attributes:
      function: the graph.
      values: the current values of variables, which follow the function's arguments.
    """

    function: GraphFunction
    values: tuple[np.ndarray, ...] = ()


def make_embedded_graph(
    function: FlatFunction, avals: Sequence[Aval], results: Sequence[Aval]
) -> EmbeddedGraph:
    """Makes the graph of the function, with the current values of its variables.

    Args:
      function: the function to embed.
      avals: the avals of its arguments; sizes may be symbolic.
      results: the results that the caller expects.

    Raises:
      ShapeError: a size of a result does not follow from the sizes of the arguments.
      CallTfError: the function raised.
      UnsupportedByTargetError: the function changes variables, or captures other resources.
    """
    trace = function.get_trace(avals)
    check_no_updates(function.name, trace)
    if trace.concrete.captured_inputs:
        return _embed_graph(function.name, trace, avals, results)
    return function.get_or_make(
        ("graph", *avals, *results, uses_64_bits()),
        lambda: _embed_graph(function.name, trace, avals, results),
    )


def _embed_graph(
    name: str, trace: FunctionTrace, avals: Sequence[Aval], results: Sequence[Aval]
) -> EmbeddedGraph:
    concrete = trace.concrete
    graph_def = concrete.graph.as_graph_def()
    inputs = [tensor.op.name for tensor in concrete.inputs]
    captures = list(zip(inputs[len(trace.specs) :], concrete.captured_inputs, strict=True))
    values, constants = _read_captures(name, concrete, captures)
    specs = {place: tf.TensorSpec(value.shape, value.dtype) for place, value in values.items()}
    try:
        _replace_variables(graph_def, specs)
    except _NotAValueError as e:
        raise _make_not_constant_error(name, f"a tf.Variable that {e} uses") from e
    _drop_control_inputs(graph_def, inputs)
    passed = {place: value for place, value in values.items() if _is_jax_dtype(value)}
    constants |= {place: value for place, value in values.items() if place not in passed}
    with suspend_tracing(), tf.Graph().as_default() as graph:
        arguments = [
            tf.compat.v1.placeholder(spec.dtype, spec.shape, f"x{i}")
            for i, spec in enumerate([*trace.specs, *(specs[place] for place in passed)])
        ]
        replacements = dict(zip(inputs, arguments, strict=False))
        replacements |= dict(zip(passed, arguments[len(trace.specs) :], strict=True))
        replacements |= {place: tf.constant(value) for place, value in constants.items()}
        imported = tf.graph_util.import_graph_def(
            graph_def,
            input_map={f"{place}:0": tensor for place, tensor in replacements.items()},
            return_elements=[tensor.name for tensor in concrete.outputs[: len(results)]],
            name="f",
        )
        checks = _SizeChecks(name, arguments[: len(avals)], avals)
        for i, (result, aval) in enumerate(zip(imported, results, strict=True)):
            tf.identity(checks.check_result(result, i, aval), f"y{i}")
    portable = GraphFunction(name, _strip_graph(graph.as_graph_def()))
    return EmbeddedGraph(portable, tuple(passed.values()))


def _drop_control_inputs(graph_def: Any, placeholders: Sequence[str]) -> None:
    control_inputs = {f"^{place}" for place in placeholders}
    for node in graph_def.node:
        node.input[:] = [reference for reference in node.input if reference not in control_inputs]


def _read_captures(
    name: str, concrete: Any, captures: Sequence[tuple[str, Any]]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Reads the captured variables and tensors of a function, by placeholder."""
    values: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    with suspend_tracing():
        for place, tensor in captures:
            variable = next((v for v in concrete.variables if v.handle is tensor), None)
            if variable is not None:
                values[place] = variable.numpy()
            elif tensor.dtype in (tf.resource, tf.variant):
                raise _make_not_constant_error(
                    name, f"a resource that is not a tf.Variable ({tensor!r:.80})"
                )
            else:
                constants[place] = tensor.numpy()
    return values, constants


def _is_jax_dtype(value: np.ndarray) -> bool:
    """Returns whether JAX keeps the dtype; it lacks strings and may narrow 64-bit values."""
    try:
        return bool(canonical_dtype(tf.as_dtype(value.dtype)) == tf.as_dtype(value.dtype))
    except TypeError:
        return False


def _make_not_constant_error(name: str, what: str) -> UnsupportedByTargetError:
    return UnsupportedByTargetError(
        f"The TensorFlow function {name} cannot be embedded as a graph (call_tf_graph=True): "
        f"it captures {what}. Pass it as an argument; or call the TensorFlow function around "
        "the converted one.",
        operation="",
        source=None,
    )


def _strip_graph(graph_def: Any) -> bytes:
    """Removes process-local parts of a graph: devices, gradients and function names.

    New function names contain a hash of the graph. Graphs of several processes can therefore be
    part of one program without name conflicts.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    reached: dict[str, Any] = {}
    pending = [graph_def.node]
    while pending:
        for node in pending.pop():
            for name in (
                node.op,
                *(callee.name for callee in _iter_callees(node, sorted(node.attr))),
            ):
                if name in library and name not in reached:
                    reached[name] = library[name]
                    pending.append(library[name].node_def)
    del graph_def.library.gradient[:], graph_def.library.registered_gradients[:]
    del graph_def.library.function[:]
    functions = [*reached.values()]
    nodes = [*graph_def.node, *(n for function in functions for n in function.node_def)]
    for part in (*functions, *nodes):
        for key in _REMOVED_ATTRIBUTES:
            part.attr.pop(key, None)
    for node in nodes:
        node.device = ""
        node.ClearField("experimental_debug_info")
        node.ClearField("experimental_type")
        _tf_compat.drop_defaults(node)
    names = {name: f"f{i}" for i, name in enumerate(reached)}
    _rename(nodes, functions, names)
    content = b"".join(
        part.SerializeToString(deterministic=True) for part in (graph_def, *functions)
    )
    digest = hashlib.sha256(content).hexdigest()[:32]
    final = {name: f"call_tf_{digest}_{name}" for name in names.values()}
    _rename(nodes, functions, final)
    graph_def.library.function.extend(functions)
    return bytes(graph_def.SerializeToString(deterministic=True))


def _rename(nodes: Sequence[Any], functions: Sequence[Any], names: Mapping[str, str]) -> None:
    for function in functions:
        function.signature.name = names[function.signature.name]
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for callee in _iter_callees(node, node.attr):
            callee.name = names.get(callee.name, callee.name)


# The rest rewrites graphs so that they take the values of variables instead of their handles.

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


class _NotAValueError(Exception):
    """An operation needs the variable itself; its argument is the operation's type."""


@dataclass
class _GraphScope:
    """A graph or a function of its library.

    Attributes:
      nodes: the nodes.
      value_types: the types of the tensors that were handles and are now values, by reference.
      is_function: whether it is a function, whose references name the output of the node.
      new_references: the new references of results that were renamed.
    """

    nodes: Sequence[Any]
    value_types: dict[str, _Value]
    is_function: bool
    new_references: dict[str, str] = field(default_factory=dict)

    def reference(self, node: Any, i: int, result: str) -> str:
        return f"{node.name}:{result}:{i}" if self.is_function else f"{node.name}:{i}"

    def value(self, reference: str) -> _Value | None:
        if not self.is_function and ":" not in reference:
            reference += ":0"
        return self.value_types.get(reference)


def _replace_variables(graph_def: Any, variables: Mapping[str, tf.TensorSpec]) -> None:
    """Replaces the placeholders of variables by placeholders of their values, in place.

    Args:
      graph_def: a tf.compat.v1.GraphDef; its functions are rewritten as well.
      variables: the types of the values, by the name of the placeholder.

    Raises:
      _NotAValueError: an operation does not just read a variable.
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
    _Rewriter(graph_def.library).rewrite(_GraphScope(graph_def.node, types, is_function=False))


class _Rewriter:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions = {f.signature.name: f for f in library.function}
        self._specialized: dict[Any, tuple[str, dict[int, _Value]]] = {}

    def rewrite(self, scope: _GraphScope) -> None:
        """Rewrites the nodes that use values, and those that use their results."""
        for node in _sort_nodes(scope.nodes):
            values = {
                i: value
                for i, reference in enumerate(_iter_data_inputs(node))
                if (value := scope.value(reference)) is not None
            }
            if values:
                self._rewrite_node(scope, node, values)

    def _rewrite_node(self, scope: _GraphScope, node: Any, values: Mapping[int, _Value]) -> None:
        for key in [k for k in node.attr if k.startswith(("_handle", "_read_only_resource"))]:
            del node.attr[key]
        if node.op == "Identity":
            node.attr["T"].type = values[0][0]
            node.attr.pop("_output_shapes", None)
            scope.value_types[scope.reference(node, 0, "output")] = values[0]
        elif node.op in _READS and not (node.op == "ResourceGather" and node.attr["batch_dims"].i):
            self._rewrite_read(scope, node, values[0])
        elif node.op in _CALLS:
            self._rewrite_call(scope, node, values)
        else:
            raise _NotAValueError(node.op)

    def _rewrite_read(self, scope: _GraphScope, node: Any, value: _Value) -> None:
        old = node.op
        node.op, attribute, old_attributes = _READS[old]
        for key in old_attributes:
            node.attr.pop(key, None)
        node.attr[attribute].type = value[0]
        if scope.is_function and old in _OUTPUT_NAMES:
            old_reference = f"{node.name}:{_OUTPUT_NAMES[old]}:0"
            _replace_inputs(scope.nodes, old_reference, f"{node.name}:output:0")
            scope.new_references[old_reference] = f"{node.name}:output:0"

    def _rewrite_call(self, scope: _GraphScope, node: Any, values: Mapping[int, _Value]) -> None:
        keys, first, in_types, out_types = _CALLS[node.op]
        if any(i < first for i in values):
            raise _NotAValueError(node.op)
        arguments = {i - first: value for i, value in values.items()}
        for i, (dtype, _) in arguments.items():
            node.attr[in_types].list.type[i] = dtype
        results: dict[int, _Value] = {}
        for callee in _iter_callees(node, keys):
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
            scope.value_types[scope.reference(node, i, "output")] = value

    def _specialize(self, name: str, values: Mapping[int, _Value]) -> tuple[str, dict[int, _Value]]:
        """Specializes a function to these values; cached.

        Returns:
          The name of the new function, and the types of the results that are values now.
        """
        key = name, tuple(sorted((i, str(argument_value)) for i, argument_value in values.items()))
        if key in self._specialized:
            return self._specialized[key]
        if name not in self._functions:
            raise _NotAValueError(name)
        function = self._library.function.add()
        function.CopyFrom(self._functions[name])
        function.signature.name = f"{name}_of_values_{len(self._specialized)}"
        function.resource_arg_unique_id.clear()
        value_types = {}
        for i, argument_value in values.items():
            argument = function.signature.input_arg[i]
            argument.type = argument_value[0]
            argument.ClearField("handle_data")
            function.arg_attr[i].attr.pop("_output_shapes", None)
            value_types[argument.name] = argument_value
        scope = _GraphScope(function.node_def, value_types, is_function=True)
        self.rewrite(scope)
        results: dict[int, _Value] = {}
        for i, result in enumerate(function.signature.output_arg):
            reference = function.ret[result.name]
            if reference in scope.new_references:
                function.ret[result.name] = scope.new_references[reference]
            elif (value := scope.value(reference)) is not None:
                result.type = value[0]
                result.ClearField("handle_data")
                results[i] = value
        self._specialized[key] = function.signature.name, results
        return self._specialized[key]


def _sort_nodes(nodes: Sequence[Any]) -> list[Any]:
    """Sorts nodes topologically: a file may have them in any order."""
    by_name = {node.name: node for node in nodes}
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for node in nodes:
        # The loops of TensorFlow 1 are cycles through NextIteration.
        inputs = () if node.op == "NextIteration" else _iter_data_inputs(node)
        sorter.add(node.name, *(reference.partition(":")[0] for reference in inputs))
    return [by_name[name] for name in sorter.static_order() if name in by_name]


def _iter_data_inputs(node: Any) -> Iterator[str]:
    return (reference for reference in node.input if not reference.startswith("^"))


def _replace_inputs(nodes: Sequence[Any], old: str, new: str) -> None:
    for node in nodes:
        for i, reference in enumerate(node.input):
            if reference == old:
                node.input[i] = new


def _iter_callees(node: Any, keys: Iterable[str]) -> Iterator[Any]:
    """Yields the functions that attributes of a node name; an attribute may have a list."""
    for key in keys:
        value = node.attr[key]
        if value.WhichOneof("value") == "func":
            yield value.func
        else:
            yield from value.list.func
