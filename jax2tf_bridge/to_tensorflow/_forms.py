"""Forms: functions that replace nodes of a finished GraphDef, for runtimes that lack operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf_bridge.to_tensorflow._tf_compat import find_op_definition

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
    definition = find_op_definition(node.op)
    (output,) = definition.output_arg
    inputs = tuple(_argument_dtype(node, argument) for argument in list_arguments(node, definition))
    return Form(kernel, inputs, output.name)


def find_attribute(node: Any, name: str) -> Any:
    """Returns an attribute of a node; a SavedModel omits attributes with default values."""
    if name in node.attr:
        return node.attr[name]
    definition = find_op_definition(node.op)
    defaults = () if definition is None else definition.attr
    empty = tf.compat.v1.AttrValue()
    return next((each.default_value for each in defaults if each.name == name), empty)


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
        self._taken = {function.signature.name for function in graph.library.function}
        self._prefix = prefix
        self._names: dict[tuple[Any, ...], str] = {}
        self.definitions: list[Any] = []

    def replace(self, node: Any, form: Form, *key: Any) -> None:
        """Turns a node into a call of the function of a form.

        Args:
          node: the node, which is changed in place.
          form: its form.
          *key: what the form depends on besides the node's operation and attributes.
        """
        attributes = {k: v.SerializeToString() for k, v in node.attr.items() if k[0] != "_"}
        # The name of a function in place of an operation's is a call of the function.
        node.op = self.name_of((node.op, *key, *sorted(attributes.items())), form)
        for name in attributes:
            del node.attr[name]

    def name_of(self, key: tuple[Any, ...], form: Form) -> str:
        """Returns the name of the function for a key; it contains the key's first part."""
        if key not in self._names:
            name = f"{self._prefix}_{len(self._names)}_{key[0]}"
            assert name not in self._taken, "TensorFlow names functions otherwise"
            self._names[key] = name
            self.definitions += _definitions(name, form)
        return self._names[key]


def _definitions(name: str, form: Form) -> list[Any]:
    """Makes the definition of a function with this name, and of those that it calls."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return form.kernel(*tensors)

    specs = [tf.TensorSpec(None, dtype) for dtype in form.inputs]
    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    definition = concrete.function_def
    definition.signature.name = name
    # Others find the result by the name that it has in the operation's definition.
    (result,) = definition.signature.output_arg
    definition.ret[form.output] = definition.ret.pop(result.name)
    result.name = form.output
    return [definition, *concrete.graph.as_graph_def().library.function]
