"""Node: an operation of a graph, with the attributes that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._protobuf import BYTES, Field, Message
from jax2tf_bridge.saved_model._schema import AttributeField, ListField, NodeField
from jax2tf_bridge.saved_model._tensors import Shape, dtype_name, read_shape

_NUMBERS = frozenset({AttributeField.INTEGER, AttributeField.FLAG})
_NO_LINKS: tuple[tuple[str, ...], str] = ((), "")


class Node:
    """An operation of a graph or of a function.

    Attributes are read when they are asked for; modules and constants are never copied. A graph has
    many nodes: of those that are asked for `calls` and `gradient_type` alone nothing else is kept.

    Attributes:
      message: the NodeDef.
      name: within its graph or function.
      op: its kind, as "XlaCallModule", or the name of a function that it calls.
      inputs: its data inputs, as the graph writes them: "name", "name:0", "name:output:0".
      controls: the names of the nodes that have to run before it.
    """

    __slots__ = ("_attributes", "_links", "controls", "inputs", "message", "name", "op")

    def __init__(self, message: Message) -> None:
        """Reads a NodeDef.

        Raises:
          FileFormatError: it is damaged. So do all methods if an attribute is.
        """
        self.message = message
        self.name = self.op = ""
        self._attributes: dict[str, Message] | None = None
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
    def attributes(self) -> Mapping[str, Message]:
        """The attributes by name, as AttrValue messages."""
        if self._attributes is None:
            self._attributes = self._read_attributes()
        return self._attributes

    @property
    def calls(self) -> tuple[str, ...]:
        """The names of the functions in all attributes."""
        return self._follow()[0]

    @property
    def gradient_type(self) -> str:
        """The operation as which its gradient is registered; "" if it has its own."""
        return self._follow()[1]

    def view(self, name: str) -> memoryview:
        """The bytes of an attribute, where they are in the file; none if it is not there."""
        value = self.attributes.get(name)
        field = None if value is None else value.last(AttributeField.BYTES)
        return memoryview(b"") if value is None or field is None else value.view(field)

    def text(self, name: str) -> str:
        """An attribute that is a text; "" if it is not there."""
        value = self.attributes.get(name)
        return "" if value is None else value.text_of(AttributeField.BYTES)

    def number(self, name: str) -> int:
        """An attribute that is a number or a truth value; 0 if it is not there."""
        found = 0
        if (value := self.attributes.get(name)) is not None:
            for field in value.fields():
                if field.number in _NUMBERS:
                    found = value.integer(field)
        return found

    def dtype(self, name: str) -> str:
        """An attribute that is a dtype."""
        value = self.attributes.get(name)
        return dtype_name(0 if value is None else value.integer_of(AttributeField.TYPE))

    def shape(self, name: str) -> Shape:
        """An attribute that is a shape; () if it is not there."""
        value = self.attributes.get(name)
        field = None if value is None else value.last(AttributeField.SHAPE)
        return () if value is None or field is None else read_shape(value.message(field, "a shape"))

    def tensor(self, name: str) -> Message | None:
        """An attribute that is a TensorProto; None if it is not there."""
        value = self.attributes.get(name)
        field = None if value is None else value.last(AttributeField.TENSOR)
        if value is None or field is None:
            return None
        return value.message(field, f"the constant {self.name}")

    def texts(self, name: str) -> tuple[str, ...]:
        """An attribute that is a list of texts; () if it is not there."""
        return tuple(values.text(field) for values, field in self._list(name, ListField.BYTES))

    def dtypes(self, name: str) -> tuple[str, ...]:
        """An attribute that is a list of dtypes; () if it is not there."""
        found = self._list(name, ListField.TYPES)
        return tuple(dtype_name(n) for values, field in found for n in values.integers(field))

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """An attribute that is a list of shapes; () if it is not there."""
        found = self._list(name, ListField.SHAPES)
        return tuple(read_shape(values.message(field, "a shape")) for values, field in found)

    def functions(self, name: str) -> tuple[str, ...]:
        """The functions that an attribute names, one or a list."""
        value = self.attributes.get(name)
        return () if value is None else tuple(_functions(value))

    def error(self, problem: str) -> FileFormatError:
        """What to raise for a node that does not fit its graph."""
        return self.message.error(self.message.start, f"{self.name} {problem}")

    def _read_attributes(self) -> dict[str, Message]:
        place = f"an attribute of {self.name}"
        return dict(
            self.message.entry(field, place)
            for field in self.message.fields()
            if field.number == NodeField.ATTRIBUTES
        )

    def _follow(self) -> tuple[tuple[str, ...], str]:
        """The functions in all attributes, and the operation that its gradient is registered as."""
        if self._links is None:
            attributes = self._read_attributes() if self._attributes is None else self._attributes
            calls = tuple(name for value in attributes.values() for name in _functions(value))
            named = attributes.get("_gradient_op_type")
            gradient = "" if named is None else named.text_of(AttributeField.BYTES)
            self._links = (calls, gradient) if calls or gradient else _NO_LINKS
        return self._links

    def _list(self, name: str, number: int) -> Iterator[tuple[Message, Field]]:
        """The fields of a number in an attribute's list."""
        if (value := self.attributes.get(name)) is not None:
            for values in value.messages(AttributeField.LIST, value.place):
                for field in values.fields():
                    if field.number == number:
                        yield values, field


def _functions(value: Message) -> Iterator[str]:
    """The names of the functions in an attribute."""
    for field in value.fields():
        if field.number == AttributeField.FUNCTION:
            yield value.message(field, value.place).text_of(1)
        elif field.number == AttributeField.LIST and field.kind == BYTES:
            values = value.message(field, value.place)
            for function in values.messages(ListField.FUNCTIONS, value.place):
                yield function.text_of(1)
