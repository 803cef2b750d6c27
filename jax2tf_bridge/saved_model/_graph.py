"""Reads operations and the functions that they call, on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._schema import (
    AttributeField,
    FunctionField,
    GraphField,
    LibraryField,
    ListField,
    MetaGraphField,
    NodeField,
    OpField,
)
from jax2tf_bridge.saved_model._tensors import Shape, name_dtype, read_shape
from jax2tf_bridge.serialization import BYTES, ProtoField, ProtoMessage

_NUMBERS = frozenset({AttributeField.INTEGER, AttributeField.FLAG})
_NO_LINKS: tuple[tuple[str, ...], str] = ((), "")
_MISSING = ProtoMessage(b"", "an attribute")


class Node:
    """Operation of a graph or of a function.

    Attributes are read on demand; modules and constants are never copied. A graph has many nodes,
    so reading `calls` and `gradient_type` does not store the other attributes.

    Attributes:
      message: the NodeDef.
      name: the name within its graph or function.
      op: the kind, such as "XlaCallModule", or the name of a function that it calls.
      inputs: the data inputs as the graph writes them: "name", "name:0", "name:output:0".
      controls: the names of the nodes that must run before it.
    """

    __slots__ = ("_attributes", "_links", "controls", "inputs", "message", "name", "op")

    def __init__(self, message: ProtoMessage) -> None:
        """Reads a NodeDef.

        Raises:
          FileFormatError: it is damaged. All methods raise this if an attribute is damaged.
        """
        self.message = message
        self.name = self.op = ""
        self._attributes: dict[str, ProtoMessage] | None = None
        self._links: tuple[tuple[str, ...], str] | None = None
        inputs: list[str] = []
        controls: list[str] = []
        for field in message.fields():
            if field.number == NodeField.INPUTS:
                text = message.text(field)
                if text.startswith("^"):
                    controls.append(text[1:])
                else:
                    inputs.append(text)
            elif field.number == NodeField.NAME:
                self.name = message.text(field)
            elif field.number == NodeField.OP:
                self.op = message.text(field)
        self.inputs, self.controls = tuple(inputs), tuple(controls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.op}>"

    @property
    def attributes(self) -> Mapping[str, ProtoMessage]:
        """AttrValue messages by name."""
        if self._attributes is None:
            self._attributes = self._read_attributes()
        return self._attributes

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the functions in all attributes."""
        return self._read_links()[0]

    @property
    def gradient_type(self) -> str:
        """Type that its gradient is registered for; "" for the gradient of the operation."""
        return self._read_links()[1]

    def view(self, name: str) -> memoryview:
        """Returns a view of an attribute's bytes in the file; empty if it is missing."""
        value = self._get_attribute(name)
        field = value.last(AttributeField.BYTES)
        return memoryview(b"") if field is None else value.view(field)

    def text(self, name: str) -> str:
        """Reads a string attribute; "" if it is missing."""
        return self._get_attribute(name).text_of(AttributeField.BYTES)

    def number(self, name: str) -> int:
        """Reads an int or bool attribute; 0 if it is missing."""
        value, number = self._get_attribute(name), 0
        for field in value.fields():
            if field.number in _NUMBERS:
                number = value.integer(field)
        return number

    def dtype(self, name: str) -> str:
        """Reads a dtype attribute."""
        return name_dtype(self._get_attribute(name).integer_of(AttributeField.TYPE))

    def shape(self, name: str) -> Shape:
        """Reads a shape attribute; () if it is missing."""
        value = self._get_attribute(name)
        field = value.last(AttributeField.SHAPE)
        return () if field is None else read_shape(value.message(field, "a shape"))

    def tensor(self, name: str) -> ProtoMessage | None:
        """Returns the TensorProto of an attribute; None if it is missing."""
        value = self._get_attribute(name)
        field = value.last(AttributeField.TENSOR)
        return None if field is None else value.message(field, f"the constant {self.name}")

    def texts(self, name: str) -> tuple[str, ...]:
        """Reads an attribute that is a list of strings; () if it is missing."""
        return tuple(values.text(field) for values, field in self._iter_list(name, ListField.BYTES))

    def dtypes(self, name: str) -> tuple[str, ...]:
        """Reads an attribute that is a list of dtypes; () if it is missing."""
        entries = self._iter_list(name, ListField.TYPES)
        return tuple(name_dtype(n) for values, field in entries for n in values.integers(field))

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """Reads an attribute that is a list of shapes; () if it is missing."""
        entries = self._iter_list(name, ListField.SHAPES)
        return tuple(read_shape(values.message(field, "a shape")) for values, field in entries)

    def functions(self, name: str) -> tuple[str, ...]:
        """Returns the names of the functions in an attribute, one or a list."""
        return tuple(_iter_functions(self._get_attribute(name)))

    def error(self, problem: str) -> FileFormatError:
        """Makes an error for a node that does not fit its graph."""
        return self.message.error(self.message.start, f"{self.name} {problem}")

    def _get_attribute(self, name: str) -> ProtoMessage:
        return self.attributes.get(name, _MISSING)

    def _read_attributes(self) -> dict[str, ProtoMessage]:
        place = f"an attribute of {self.name}"
        return dict(
            self.message.entry(field, place)
            for field in self.message.fields()
            if field.number == NodeField.ATTRIBUTES
        )

    def _read_links(self) -> tuple[tuple[str, ...], str]:
        if self._links is None:
            attributes = self._read_attributes() if self._attributes is None else self._attributes
            calls = tuple(name for value in attributes.values() for name in _iter_functions(value))
            gradient_type = attributes.get("_gradient_op_type", _MISSING).text_of(
                AttributeField.BYTES
            )
            # Most nodes have neither, so they share one tuple.
            self._links = (calls, gradient_type) if calls or gradient_type else _NO_LINKS
        return self._links

    def _iter_list(self, name: str, number: int) -> Iterator[tuple[ProtoMessage, ProtoField]]:
        value = self._get_attribute(name)
        for values in value.messages(AttributeField.LIST, value.place):
            for field in values.fields():
                if field.number == number:
                    yield values, field


def _iter_functions(value: ProtoMessage) -> Iterator[str]:
    for field in value.fields():
        if field.number == AttributeField.FUNCTION:
            yield value.message(field, value.place).text_of(1)
        elif field.number == AttributeField.LIST and field.kind == BYTES:
            values = value.message(field, value.place)
            for function in values.messages(ListField.FUNCTIONS, value.place):
                yield function.text_of(1)


CALL_MODULE = "XlaCallModule"


def split_reference(reference: str) -> tuple[str, int]:
    """Splits "node", "node:1" or "node:output:1" into the node and the index of its result.

    For other texts, returns a name that no node has.

    >>> [split_reference(text) for text in ("a", "a:1", "a:output:2", "a:b")]
    [('a', 0), ('a', 1), ('a', 2), ('a:b', 0)]
    """
    name, *rest = reference.split(":")
    if not rest:
        return name, 0
    if not rest[-1].isdecimal() or len(rest[-1]) > 9:
        return reference, 0
    return name, int(rest[-1])


class GraphBody:
    """Operations of the main graph or of a function.

    Attributes:
      name: the name of the function; "" for the main graph.
    """

    def __init__(
        self, name: str, whole: ProtoMessage, parts: Sequence[ProtoMessage], number: int
    ) -> None:
        """Stores messages with NodeDefs, which are read on demand.

        Args:
          name: the name of the function; "" for the main graph.
          whole: the message that errors refer to.
          parts: the messages within `whole` that contain the nodes.
          number: the number of the field with the nodes.
        """
        self.name, self._whole = name, whole
        self._parts, self._number = parts, number

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Operations in the order of the file.

        Raises:
          FileFormatError: one of them is damaged.
        """
        place = f"a node of the function {self.name}" if self.name else "a node of the graph"
        return tuple(
            Node(node) for part in self._parts for node in part.messages(self._number, place)
        )

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Operations by name."""
        return {node.name: node for node in self.nodes}

    def error(self, problem: str) -> FileFormatError:
        """Makes an error for operations that do not fit together."""
        return self._whole.error(self._whole.start, problem)


class LibraryFunction(GraphBody):
    """Function of the graph's library."""

    def __init__(self, name: str, message: ProtoMessage) -> None:
        """Stores a FunctionDef."""
        message.place = f"the function {name}"
        super().__init__(name, message, (message,), FunctionField.NODES)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return self._read_names(OpField.ARGUMENTS)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """References of the tensors that are the results, in order.

        Raises:
          FileFormatError: a result is missing, or the function is damaged.
        """
        entries = self._whole.messages(FunctionField.RESULTS, "a result of a function")
        tensors = {entry.text_of(1): entry.text_of(2) for entry in entries}
        names = self._read_names(OpField.RESULTS)
        missing = [name for name in names if name not in tensors]
        if missing:
            raise self.error(f"it does not define its result {missing[0]}")
        return tuple(tensors[name] for name in names)

    def _read_names(self, number: int) -> tuple[str, ...]:
        signatures = self._whole.messages(FunctionField.SIGNATURE, "a function's signature")
        return tuple(
            argument.text_of(1)
            for signature in signatures
            for argument in signature.messages(number, "an argument of a function")
        )


class Graph:
    """Graph and its library.

    Attributes:
      main: the operations of the main graph.
      functions: the functions by name.
      gradients: maps gradient types of operations to the names of their gradient functions.
      function_gradients: maps functions to the names of their gradient functions.
    """

    def __init__(self, meta_graph: ProtoMessage) -> None:
        """Reads the names in a MetaGraphDef's library.

        Raises:
          FileFormatError: it is damaged.
        """
        parts = list(meta_graph.messages(MetaGraphField.GRAPH, "the graph"))
        self.main = GraphBody("", meta_graph, parts, GraphField.NODES)
        self.functions: dict[str, LibraryFunction] = {}
        self.gradients: dict[str, str] = {}
        self.function_gradients: dict[str, str] = {}
        for part in parts:
            for library in part.messages(GraphField.LIBRARY, "the function library"):
                self._read(library)

    def iterate_nodes(self) -> Iterator[tuple[str, Node]]:
        """Yields each node with the name of its function, "" for the main graph."""
        for body in (self.main, *self.functions.values()):
            for node in body.nodes:
                yield body.name, node

    def find_gradient(self, gradient_type: str) -> LibraryFunction | None:
        """Returns the function that is registered as the gradient of an operation."""
        return self.functions.get(self.gradients.get(gradient_type, ""))

    def _read(self, library: ProtoMessage) -> None:
        for part in library.fields():
            if part.number == LibraryField.FUNCTIONS:
                message = library.message(part, "a function")
                signatures = message.messages(FunctionField.SIGNATURE, "a function's signature")
                # The name is the first field, so the rest is not read.
                first = next(signatures, None)
                name = "" if first is None else first.text_of(OpField.NAME)
                self.functions[name] = LibraryFunction(name, message)
            elif part.number == LibraryField.GRADIENTS:
                # GradientDef has the function first; RegisteredGradient has the gradient first.
                entry = library.message(part, "a gradient's entry")
                self.function_gradients[entry.text_of(1)] = entry.text_of(2)
            elif part.number == LibraryField.REGISTERED_GRADIENTS:
                entry = library.message(part, "a registered gradient")
                self.gradients[entry.text_of(2)] = entry.text_of(1)
