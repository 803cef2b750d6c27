"""Edits finished graphs: replaces operations by functions, and modules by operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._dtypes import op_spec
from jax2tf_bridge.to_tensorflow._op import call_operations

# Forms: functions that replace operations that a runtime lacks.

Kernel: TypeAlias = Callable[..., tf.Tensor]
"""Function of an operation's inputs."""


@dataclass(frozen=True)
class Form:
    """Replacement of an operation.

    Attributes:
      kernel: computes the result from the inputs.
      inputs: the dtypes of the inputs.
      output: the name of the result in the operation's definition.
    """

    kernel: Kernel
    inputs: tuple[tf.DType, ...]
    output: str


def make_form(node: Any, kernel: Kernel) -> Form:
    """Returns the form that replaces a node, an operation with one result."""
    definition = _tf_compat.find_op_definition(node.op)
    (output,) = definition.output_arg
    inputs = tuple(_argument_dtype(node, argument) for argument in list_arguments(node, definition))
    return Form(kernel, inputs, output.name)


def find_attribute(node: Any, name: str) -> Any:
    """Returns an attribute of a node; a SavedModel omits attributes with default values."""
    if name in node.attr:
        return node.attr[name]
    definition = _tf_compat.find_op_definition(node.op)
    defaults = () if definition is None else definition.attr
    empty = tf.compat.v1.AttrValue()
    return next((attr.default_value for attr in defaults if attr.name == name), empty)


def find_node_dtype(node: Any, attribute: str) -> tf.DType | None:
    """Returns the dtype in an attribute of a node; None if there is none."""
    number = find_attribute(node, attribute).type
    return tf.as_dtype(number) if number else None


def list_arguments(node: Any, definition: Any) -> list[Any]:
    """Returns the argument of the operation's definition to which each input belongs."""
    return [
        argument
        for argument in definition.input_arg
        for _ in range(find_attribute(node, argument.number_attr).i if argument.number_attr else 1)
    ]


def list_bodies(graph: Any) -> list[Any]:
    """Returns the nodes of a GraphDef, and the nodes of each of its functions."""
    return [graph.node, *(function.node_def for function in graph.library.function)]


def find_maker(tensor: str, makers: Mapping[str, Any], *operations: str) -> Any | None:
    """Returns the node that makes a tensor, if it is one of these operations.

    Args:
      tensor: the name of the tensor.
      makers: the nodes of its graph or function by name.
      *operations: the names of operations.
    """
    maker = makers.get(tensor.partition(":")[0])
    return maker if maker is not None and maker.op in operations else None


def find_constant(tensor: str, makers: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the value of a tensor; None if it is computed."""
    maker = find_maker(tensor, makers, "Const")
    return None if maker is None else tf.make_ndarray(maker.attr["value"].tensor)


def run_node(node: Any, operands: Sequence[tf.Tensor], **dtypes: tf.DType) -> tf.Tensor:
    """Computes the operation of a node of other operands; `dtypes` replace attributes."""
    attributes = {name: value for name, value in node.attr.items() if name[0] != "_"}
    for name, dtype in dtypes.items():
        attributes[name] = tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)
    graph = tf.compat.v1.get_default_graph()
    (result,) = graph.create_op(node.op, operands, attrs=attributes).outputs
    return result


def _argument_dtype(node: Any, argument: Any) -> tf.DType:
    by_attribute = argument.type_attr and find_node_dtype(node, argument.type_attr)
    return by_attribute or tf.as_dtype(argument.type)


class FormFunctions:
    """Functions that the nodes of a graph call in place of operations.

    Args:
      graph: the GraphDef.
      prefix: the beginning of their names.
    """

    def __init__(self, graph: Any, prefix: str) -> None:
        self._used_names = {function.signature.name for function in graph.library.function}
        self._prefix = prefix
        self._names: dict[tuple[Any, ...], str] = {}
        self.definitions: list[Any] = []

    def replace(self, node: Any, form: Form, *key: Any) -> None:
        """Turns a node into a call of the function of a form.

        Args:
          node: the node, which is changed in place.
          form: its form.
          *key: other values that determine the form, besides the operation and its attributes.
        """
        attributes = {k: v.SerializeToString() for k, v in node.attr.items() if k[0] != "_"}
        # A node whose operation is the name of a function calls that function.
        node.op = self.name_of((node.op, *key, *sorted(attributes.items())), form)
        for name in attributes:
            del node.attr[name]

    def name_of(self, key: tuple[Any, ...], form: Form) -> str:
        """Returns the name of the function for a key; it contains the key's first part."""
        if key not in self._names:
            name = f"{self._prefix}_{len(self._names)}_{key[0]}"
            assert name not in self._used_names, "TensorFlow gives functions other names"
            self._names[key] = name
            self.definitions += _make_definitions(name, form)
        return self._names[key]


def _make_definitions(name: str, form: Form) -> list[Any]:
    """Makes the definitions of a function with this name, and of the functions that it calls."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return form.kernel(*tensors)

    specs = [tf.TensorSpec(None, dtype) for dtype in form.inputs]
    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    definition = concrete.function_def
    definition.signature.name = name
    # Other nodes find the result by its name in the operation's definition.
    (result,) = definition.signature.output_arg
    definition.ret[form.output] = definition.ret.pop(result.name)
    result.name = form.output
    return [definition, *concrete.graph.as_graph_def().library.function]


# Modules: XlaCallModule ops of SavedModels become TensorFlow's own operations.

_CALL_MODULE = "XlaCallModule"
_CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")


def replace_call_modules(
    saved_model: bytes,
    functions: Mapping[tuple[str, str], PortableFunction],
    *,
    for_converters: bool = False,
) -> bytes:
    """Replaces XlaCallModule ops by calls of functions that use TensorFlow's own operations.

    Args:
      saved_model: the bytes of saved_model.pb.
      functions: the function that each XlaCallModule op calls. A key is the name of the function
        that contains the op ("" for the graph itself), and the name of the op.
      for_converters: whether to remove checks that converters refuse: Assert, EnsureShape and
        PreventGradient.

    Raises:
      ModuleError: TensorFlow cannot express an operation of a module.
    """
    message_class = _tf_compat.saved_model_message()
    if message_class is None:
        raise ModuleError(
            f"The installed TensorFlow {tf.__version__} lacks the SavedModel message that 2.15 to "
            "2.22 have. Retarget the SavedModel with one of these releases."
        )
    model = message_class()
    model.ParseFromString(saved_model)
    for meta_graph in model.meta_graphs:
        _replace_call_modules(meta_graph, functions)
        if for_converters:
            _remove_checks(meta_graph)
    return bytes(model.SerializeToString(deterministic=True))


def _replace_call_modules(
    meta_graph: Any, functions: Mapping[tuple[str, str], PortableFunction]
) -> None:
    library = meta_graph.graph_def.library
    operations = meta_graph.meta_info_def.stripped_op_list
    used_names = {function.signature.name for function in library.function}
    callers: dict[tuple[bytes, ...], Any] = {}
    for place, node in list(_iter_nodes(meta_graph.graph_def)):
        if node.op != _CALL_MODULE:
            continue
        # Ops with the same module share one function.
        key = (node.attr["module"].s, *node.attr["platforms"].list.s)
        if key not in callers:
            caller = _build_caller(functions[place, node.name])
            _rename_functions(caller.graph_def, f"operations_{len(callers)}", used_names)
            library.function.extend(caller.graph_def.library.function)
            names = {operation.name for operation in operations.op}
            caller_ops = caller.meta_info_def.stripped_op_list.op
            operations.op.extend(op for op in caller_ops if op.name not in names)
            callers[key] = caller
        call = next(n for n in callers[key].graph_def.node if n.op in _CALL_OPS)
        node.op = call.op
        for name in list(node.attr):
            if not name.startswith("_"):
                del node.attr[name]
        for name, value in call.attr.items():
            if not name.startswith("_"):
                node.attr[name].CopyFrom(value)
    if callers:
        meta_graph.meta_info_def.tensorflow_version = tf.__version__
        newest = next(iter(callers.values())).graph_def.versions.producer
        meta_graph.graph_def.versions.producer = newest
    _drop_from_list(operations, {_CALL_MODULE})


_IDENTITIES = frozenset({"EnsureShape", "PreventGradient"})
"""Operations that return their input or fail."""


def _remove_checks(meta_graph: Any) -> None:
    """Removes Assert operations, and turns other checks into Identity."""
    remove_operations(meta_graph.graph_def, ("Assert",))
    for _, node in _iter_nodes(meta_graph.graph_def):
        if node.op in _IDENTITIES:
            node.op = "Identity"
            for name in [n for n in node.attr if n != "T" and not n.startswith("_")]:
                del node.attr[name]
    _drop_from_list(meta_graph.meta_info_def.stripped_op_list, {"Assert", *_IDENTITIES})


def _drop_from_list(operations: Any, names: Collection[str]) -> None:
    remaining = [operation for operation in operations.op if operation.name not in names]
    del operations.op[:]
    operations.op.extend(remaining)


def remove_operations(graph: Any, kinds: Collection[str]) -> None:
    """Removes operations whose results no others use, and control inputs that name them.

    Args:
      graph: a GraphDef, which is changed in place.
      kinds: the kinds of operations.
    """
    for nodes in list_bodies(graph):
        control_inputs = {f"^{node.name}" for node in nodes if node.op in kinds}
        if not control_inputs:
            continue
        remaining = [node for node in nodes if node.op not in kinds]
        for node in remaining:
            node.input[:] = [name for name in node.input if name not in control_inputs]
        del nodes[:]
        nodes.extend(remaining)
    for function in graph.library.function:
        names = {node.name for node in function.node_def}
        for name in [n for n, node in function.control_ret.items() if node not in names]:
            del function.control_ret[name]
            function.signature.control_output.remove(name)


def _iter_nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yields (function name, node) for all nodes; the name is "" for the graph itself."""
    for node in graph.node:
        yield "", node
    for function in graph.library.function:
        for node in function.node_def:
            yield function.signature.name, node


def _build_caller(portable: PortableFunction) -> Any:
    """Builds a graph with one op that calls the function, and the functions that the op needs."""
    specs = [op_spec(aval, f"An argument of {portable.name}") for aval in portable.in_avals]

    def call(*args: tf.Tensor) -> list[tf.Tensor]:
        return call_operations(portable, args)

    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    with tf.Graph().as_default() as graph:
        concrete(*(tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs))
        return tf.compat.v1.train.export_meta_graph(graph=graph, strip_default_attrs=True)


def _rename_functions(graph: Any, prefix: str, used_names: set[str]) -> None:
    """Renames the functions of a graph to unique names, and adds these to `used_names`."""
    names = {}
    for function in graph.library.function:
        old = function.signature.name
        new = f"{prefix}_{old.strip('_')}"
        while new in used_names:
            new += "_"
        used_names.add(new)
        names[old] = function.signature.name = new
    for _, node in _iter_nodes(graph):
        for value in node.attr.values():
            for callee in (value.func, *value.list.func):
                if callee.name in names:  # else setting it would replace another value
                    callee.name = names[callee.name]
