"""MetaGraph: a graph of a SavedModel with its signatures and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from jax2tf_bridge.saved_model._graph import Graph
from jax2tf_bridge.saved_model._objects import (
    Capture,
    Objects,
    Variable,
    read_captures,
    read_objects,
    variables_of_nodes,
)
from jax2tf_bridge.saved_model._protobuf import Message
from jax2tf_bridge.saved_model._schema import (
    MetaGraphField,
    MetaInfoField,
    SaverField,
    SignatureField,
    TensorInfoField,
)
from jax2tf_bridge.saved_model._tensors import TensorType, typed

_INTERNAL = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
"""The names of TensorFlow's own signatures, which initialize and train."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature: which tensor of the graph it is, and its type."""

    tensor: str
    type: TensorType


@dataclass(frozen=True)
class GraphSignature:
    """A signature: what it takes and gives, by name, and which inputs have a default."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    defaults: Set[str]


class MetaGraph:
    """A graph of the model. Its parts are read when they are asked for.

    Attributes:
      tensorflow: the version that wrote it; "" if it does not say.
      tags: by which it is asked for.
      restore: the node that restores its variables; "" without any.
    """

    def __init__(self, message: Message) -> None:
        """Of a MetaGraphDef.

        Raises:
          FileFormatError: it is damaged. So do all methods if what they read is.
        """
        self._message = message
        self.tensorflow = self.restore = ""
        self.tags: list[str] = []
        for part in message.fields():
            if part.number == MetaGraphField.META_INFO:
                info = message.message(part, "the graph's information")
                for field in info.fields():
                    if field.number == MetaInfoField.TAGS:
                        self.tags.append(info.text(field))
                    elif field.number == MetaInfoField.TENSORFLOW_VERSION:
                        self.tensorflow = info.text(field)
            elif part.number == MetaGraphField.SAVER:
                saver = message.message(part, "how variables are restored")
                self.restore = saver.text_of(SaverField.RESTORE)

    @cached_property
    def graph(self) -> Graph:
        """Its nodes and functions."""
        return Graph(self._message)

    @cached_property
    def objects(self) -> Objects | None:
        """What hangs on the loaded object; None in models of TensorFlow 1."""
        return read_objects(self._message)

    @cached_property
    def signatures(self) -> Mapping[str, GraphSignature]:
        """The signatures by name, without those that are TensorFlow's own."""
        found = {}
        for field in self._message.fields():
            if field.number == MetaGraphField.SIGNATURES:
                name, signature = self._message.entry(field, "a signature")
                if name not in _INTERNAL:
                    found[name] = _signature(signature)
        return found

    def captures(self, function: str) -> tuple[Capture | None, ...]:
        """What a function takes after its arguments; None for what is no tensor of a function."""
        return read_captures(self._message, function)

    def variables(self) -> tuple[Variable, ...]:
        """The variables."""
        if self.objects is not None:
            return self.objects.variables
        return variables_of_nodes(self.graph.main.nodes)

    def assets(self) -> Iterator[str]:
        """The names of the files that it has to have in assets/."""
        for asset in self._message.messages(MetaGraphField.ASSETS, "an asset"):
            yield asset.text_of(2)


def _signature(message: Message) -> GraphSignature:
    inputs: dict[str, TensorInfo] = {}
    outputs: dict[str, TensorInfo] = {}
    defaults: set[str] = set()
    for field in message.fields():
        if field.number in (SignatureField.INPUTS, SignatureField.OUTPUTS):
            name, info = message.entry(field, "an entry of a signature")
            found = inputs if field.number == SignatureField.INPUTS else outputs
            kind = typed(info, TensorInfoField.DTYPE, TensorInfoField.SHAPE)
            found[name] = TensorInfo(info.text_of(TensorInfoField.NAME), kind)
        elif field.number == SignatureField.DEFAULTS:
            name, _ = message.entry(field, "an entry of a signature")
            defaults.add(name)
    return GraphSignature(inputs, outputs, defaults)
