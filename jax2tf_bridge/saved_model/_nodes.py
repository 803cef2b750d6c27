"""Reads the nodes that are looked at: modules and constants."""

from __future__ import annotations

from collections.abc import Iterator

from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.saved_model._graph import Node
from jax2tf_bridge.saved_model._saved_model import CalledModule, GraphConstant
from jax2tf_bridge.saved_model._schema import AttributeField, ListField
from jax2tf_bridge.saved_model._tensors import TensorType, dtype_name, read_shape, tensor_type
from jax2tf_bridge.saved_model._wire import Message
from jax2tf_bridge.serialization.jax_exported._modules import stablehlo_version


def called_module(number: int, function: str, node: Node) -> CalledModule:
    """What an XlaCallModule node says."""
    attributes = node.attributes
    module = memoryview(b"")
    if (value := attributes.get("module")) is not None:
        field = value.last(AttributeField.BYTES)
        if field is not None:
            module = value.view(field)
    dtypes = tuple(_dtypes(attributes.get("Tout")))
    shapes = [read_shape(shape) for shape in _messages(attributes.get("Sout"), ListField.SHAPES)]
    shapes += [None] * (len(dtypes) - len(shapes))
    version = attributes.get("version")
    return CalledModule(
        number=number,
        function=function,
        node=node.name,
        module=module,
        calling_convention_version=0
        if version is None
        else version.integer_of(AttributeField.INTEGER),
        platforms=tuple(text.lower() for text in _texts(attributes.get("platforms"))),
        disabled_checks=tuple(
            DisabledSafetyCheck(text) for text in _texts(attributes.get("disabled_checks"))
        ),
        arguments=tuple(_dtypes(attributes.get("Tin"))),
        results=tuple(map(TensorType, dtypes, shapes)),
        functions=node.calls,
        has_tokens=_flag(attributes.get("has_token_input_output")),
        uses_shardy=_flag(attributes.get("use_shardy_partitioner")),
        stablehlo_version=stablehlo_version(module),
    )


def graph_constant(function: str, node: Node) -> GraphConstant | None:
    """What a Const node holds; None if it holds nothing."""
    value = node.attributes.get("value")
    field = None if value is None else value.last(AttributeField.TENSOR)
    if value is None or field is None:
        return None
    tensor = value.message(field, "a constant of the graph")
    return GraphConstant(function, node.name, tensor_type(tensor), len(tensor))


def prevented(node: Node) -> str:
    """What a PreventGradient node says; "" of others."""
    message = node.attributes.get("message") if node.op == "PreventGradient" else None
    return "" if message is None else message.text_of(AttributeField.BYTES)


def _flag(value: Message | None) -> bool:
    return value is not None and value.integer_of(AttributeField.FLAG) != 0


def _texts(value: Message | None) -> Iterator[str]:
    for values in _lists(value):
        for field in values.fields():
            if field.number == ListField.BYTES:
                yield values.text(field)


def _dtypes(value: Message | None) -> Iterator[str]:
    for values in _lists(value):
        for field in values.fields():
            if field.number == ListField.TYPES:
                yield from map(dtype_name, values.integers(field))


def _messages(value: Message | None, number: int) -> Iterator[Message]:
    for values in _lists(value):
        yield from values.messages(number, "a list")


def _lists(value: Message | None) -> Iterator[Message]:
    if value is not None:
        yield from value.messages(AttributeField.LIST, "a list")
