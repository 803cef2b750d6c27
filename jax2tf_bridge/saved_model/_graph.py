"""Reads a graph and its functions: what calls what, and the nodes that are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax2tf_bridge.saved_model._schema import (
    AttributeField,
    FunctionField,
    GraphField,
    LibraryField,
    ListField,
    MetaGraphField,
    NodeField,
)
from jax2tf_bridge.saved_model._wire import BYTES, Field, Message

CALL_MODULE = "XlaCallModule"
_WITH_ATTRIBUTES = frozenset({CALL_MODULE, "Const", "PreventGradient", "VarHandleOp"})
_GRADIENT_TYPE = "_gradient_op_type"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph or of a function.

    Attributes:
      name, op: its name, and the operation.
      inputs: where they come from, as TensorFlow writes it.
      calls: the names of the functions that its attributes have.
      gradient_type: the operation as which its gradient is registered; "" for its own.
      attributes: by name, of the operations that are looked at; empty for others.
      size: how many bytes it takes in the file.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    calls: tuple[str, ...]
    gradient_type: str
    attributes: Mapping[str, Message]
    size: int


@dataclass(frozen=True)
class Graph:
    """A graph and its library.

    Attributes:
      nodes: of the graph itself.
      functions: the nodes of each function by its name.
      gradients: the functions that are gradients, by the operation that they are registered for.
      function_gradients: the same by the function that they are the gradient of.
    """

    nodes: tuple[Node, ...]
    functions: Mapping[str, tuple[Node, ...]]
    gradients: Mapping[str, str]
    function_gradients: Mapping[str, str]

    def every_node(self) -> Iterator[tuple[str, Node]]:
        """Each node with the function that it is in, "" for the graph itself."""
        for node in self.nodes:
            yield "", node
        for name, nodes in self.functions.items():
            for node in nodes:
                yield name, node


def read_graph(meta_graph: Message) -> Graph:
    """The graph of a MetaGraphDef."""
    nodes: list[Node] = []
    functions: dict[str, tuple[Node, ...]] = {}
    gradients: dict[str, str] = {}
    function_gradients: dict[str, str] = {}
    for graph in meta_graph.messages(MetaGraphField.GRAPH, "the graph"):
        for field in graph.fields():
            if field.number == GraphField.NODES:
                nodes.append(read_node(graph.message(field, "a node of the graph")))
            elif field.number == GraphField.LIBRARY:
                library = graph.message(field, "the function library")
                for part in library.fields():
                    if part.number == LibraryField.FUNCTIONS:
                        name, inner = _function(library.message(part, "a function"))
                        functions[name] = inner
                    elif part.number == LibraryField.GRADIENTS:
                        # GradientDef has the function first, and RegisteredGradient the gradient.
                        entry = library.message(part, "a gradient's entry")
                        function_gradients[entry.text_of(1)] = entry.text_of(2)
                    elif part.number == LibraryField.REGISTERED_GRADIENTS:
                        entry = library.message(part, "a registered gradient")
                        gradients[entry.text_of(2)] = entry.text_of(1)
    return Graph(tuple(nodes), functions, gradients, function_gradients)


def _function(message: Message) -> tuple[str, tuple[Node, ...]]:
    name = ""
    nodes = []
    for field in message.fields():
        if field.number == FunctionField.SIGNATURE:
            name = message.message(field, "a function's signature").text_of(1)
        elif field.number == FunctionField.NODES:
            nodes.append(read_node(message.message(field, "a node of a function")))
    return name, tuple(nodes)


def read_node(message: Message) -> Node:
    """A NodeDef."""
    name = op = ""
    inputs: list[str] = []
    entries: list[Field] = []
    for field in message.fields():
        if field.number == NodeField.ATTRIBUTES:
            entries.append(field)
        elif field.number == NodeField.INPUTS:
            inputs.append(message.text(field))
        elif field.number == NodeField.NAME:
            name = message.text(field)
        elif field.number == NodeField.OP:
            op = message.text(field)
    calls: list[str] = []
    attributes: dict[str, Message] = {}
    gradient_type = ""
    for entry in entries:
        key, value = message.entry(entry, "an attribute of a node")
        calls += _called(value)
        if key == _GRADIENT_TYPE:
            gradient_type = value.text_of(AttributeField.BYTES)
        if op in _WITH_ATTRIBUTES:
            attributes[key] = value
    return Node(
        name,
        op,
        tuple(inputs),
        tuple(calls),
        gradient_type,
        attributes,
        message.end - message.start,
    )


def _called(value: Message) -> Iterator[str]:
    """The names of the functions in an attribute."""
    for field in value.fields():
        if field.number == AttributeField.FUNCTION:
            yield value.message(field, "a function's name").text_of(1)
        elif field.number == AttributeField.LIST and field.kind == BYTES:
            yield from _listed(value.message(field, "a list"))


def _listed(values: Message) -> Iterator[str]:
    for field in values.fields():
        if field.number == ListField.FUNCTIONS:
            yield values.message(field, "a function's name").text_of(1)
