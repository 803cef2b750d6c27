"""Graph: operations and the functions that they call, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._nodes import Node
from jax2tf_bridge.saved_model._protobuf import Message
from jax2tf_bridge.saved_model._schema import (
    FunctionField,
    GraphField,
    LibraryField,
    MetaGraphField,
    OpField,
)

CALL_MODULE = "XlaCallModule"


class Body:
    """The operations of a graph itself, or of a function.

    Attributes:
      name: of the function; "" of the graph itself.
    """

    def __init__(self, name: str, whole: Message, parts: Sequence[Message], number: int) -> None:
        """Of NodeDefs.

        Args:
          name: of the function.
          whole: what errors are about.
          parts: messages in it that have the nodes.
          number: of the field that has them.
        """
        self.name, self._whole = name, whole
        self._parts, self._number = parts, number

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The operations in the order of the file.

        Raises:
          FileFormatError: one of them is damaged.
        """
        place = f"a node of the function {self.name}" if self.name else "a node of the graph"
        return tuple(
            Node(node) for part in self._parts for node in part.messages(self._number, place)
        )

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """The operations by their names."""
        return {node.name: node for node in self.nodes}

    def error(self, problem: str) -> FileFormatError:
        """What to raise for operations that do not belong together."""
        return self._whole.error(self._whole.start, problem)


class Function(Body):
    """A function of the library."""

    def __init__(self, name: str, message: Message) -> None:
        """Of a FunctionDef."""
        message.place = f"the function {name}"
        super().__init__(name, message, (message,), FunctionField.NODES)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of its arguments, in order."""
        return self._names(OpField.ARGUMENTS)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Which tensor each of its results is, in order.

        Raises:
          FileFormatError: it does not say so, or is damaged.
        """
        entries = self._whole.messages(FunctionField.RESULTS, "a result of a function")
        tensors = {entry.text_of(1): entry.text_of(2) for entry in entries}
        names = self._names(OpField.RESULTS)
        missing = [name for name in names if name not in tensors]
        if missing:
            raise self.error(f"it does not say what its result {missing[0]} is")
        return tuple(tensors[name] for name in names)

    def _names(self, number: int) -> tuple[str, ...]:
        signatures = self._whole.messages(FunctionField.SIGNATURE, "a function's signature")
        return tuple(
            argument.text_of(1)
            for signature in signatures
            for argument in signature.messages(number, "an argument of a function")
        )


class Graph:
    """A graph and its library.

    Attributes:
      main: the operations of the graph itself.
      functions: by name.
      gradients: the names of functions that are gradients, by the operation that they are
        registered for.
      function_gradients: the same by the function that they are the gradient of.
    """

    def __init__(self, meta_graph: Message) -> None:
        """Of a MetaGraphDef.

        Raises:
          FileFormatError: it is damaged.
        """
        parts = list(meta_graph.messages(MetaGraphField.GRAPH, "the graph"))
        self.main = Body("", meta_graph, parts, GraphField.NODES)
        self.functions: dict[str, Function] = {}
        self.gradients: dict[str, str] = {}
        self.function_gradients: dict[str, str] = {}
        for part in parts:
            for library in part.messages(GraphField.LIBRARY, "the function library"):
                self._read(library)

    def every_node(self) -> Iterator[tuple[str, Node]]:
        """Each node with the function that it is in, "" for the graph itself."""
        for body in (self.main, *self.functions.values()):
            for node in body.nodes:
                yield body.name, node

    def gradient_of(self, gradient_type: str) -> Function | None:
        """The function that is registered as the gradient of an operation."""
        return self.functions.get(self.gradients.get(gradient_type, ""))

    def _read(self, library: Message) -> None:
        for part in library.fields():
            if part.number == LibraryField.FUNCTIONS:
                message = library.message(part, "a function")
                signatures = message.messages(FunctionField.SIGNATURE, "a function's signature")
                # It is the first field: the rest is not read.
                first = next(signatures, None)
                name = "" if first is None else first.text_of(OpField.NAME)
                self.functions[name] = Function(name, message)
            elif part.number == LibraryField.GRADIENTS:
                # GradientDef has the function first, and RegisteredGradient the gradient.
                entry = library.message(part, "a gradient's entry")
                self.function_gradients[entry.text_of(1)] = entry.text_of(2)
            elif part.number == LibraryField.REGISTERED_GRADIENTS:
                entry = library.message(part, "a registered gradient")
                self.gradients[entry.text_of(2)] = entry.text_of(1)
