"""Reads one graph of a SavedModel: its signatures and methods, and what they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph, read_graph
from jax2tf_bridge.saved_model._nodes import called_module, graph_constant, prevented
from jax2tf_bridge.saved_model._objects import (
    Objects,
    Variable,
    read_objects,
    variables_of_nodes,
)
from jax2tf_bridge.saved_model._reach import Reached, reached_by_functions, reached_by_tensors
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    Gradient,
    GraphConstant,
    Port,
)
from jax2tf_bridge.saved_model._schema import (
    MetaGraphField,
    MetaInfoField,
    SignatureField,
    TensorInfoField,
)
from jax2tf_bridge.saved_model._tensors import typed
from jax2tf_bridge.saved_model._wire import Message

_INIT_OP = "__saved_model_init_op"
_MOST_ENTRIES = 256
"""How many signatures and methods are looked into: each may reach the whole graph."""


class MetaGraph:
    """A graph of the model, and what was read of it.

    Attributes:
      graph: its nodes and functions.
      objects: None in models of TensorFlow 1.
      tensorflow: the version that wrote it.
      tags: by which it is asked for.
      missing: the functions that are called and are not there, as far as `entries` found any.
    """

    def __init__(self, message: Message) -> None:
        """Reads a MetaGraphDef.

        Raises:
          FileFormatError: it is damaged.
        """
        self._message = message
        self.graph: Graph = read_graph(message)
        self.objects: Objects | None = read_objects(message)
        self.tensorflow = ""
        self.tags: list[str] = []
        self.missing: dict[str, None] = {}
        for info in message.messages(MetaGraphField.META_INFO, "the graph's information"):
            for field in info.fields():
                if field.number == MetaInfoField.TAGS:
                    self.tags.append(info.text(field))
                elif field.number == MetaInfoField.TENSORFLOW_VERSION:
                    self.tensorflow = info.text(field)

    def modules(self, first: int) -> Iterator[CalledModule]:
        """The modules, numbered from `first` on."""
        number = first
        for function, node in self.graph.every_node():
            if node.op == CALL_MODULE:
                yield called_module(number, function, node)
                number += 1

    def constants(self) -> list[GraphConstant]:
        """The arrays in the graph."""
        found = (
            graph_constant(function, node)
            for function, node in self.graph.every_node()
            if node.op == "Const"
        )
        return [constant for constant in found if constant is not None]

    def variables(self) -> tuple[Variable, ...]:
        """The variables."""
        if self.objects is not None:
            return self.objects.variables
        return variables_of_nodes(self.graph.nodes)

    def assets(self) -> Iterator[str]:
        """The names of the files that it has to have in assets/."""
        for asset in self._message.messages(MetaGraphField.ASSETS, "an asset"):
            yield asset.text_of(2)

    def entries(self, modules: Sequence[CalledModule]) -> tuple[list[EntryPoint], int]:
        """The signatures, then the methods that run modules; and how many more there are.

        Args:
          modules: those of this graph.
        """
        signatures = dict(self._signatures())
        signatures.pop(_INIT_OP, None)
        methods = {} if self.objects is None else self.objects.methods
        names = list(signatures)[:_MOST_ENTRIES]
        method_names = list(methods)[: _MOST_ENTRIES - len(names)]
        more = len(signatures) + len(methods) - len(names) - len(method_names)
        by_signature = {name: self._reached_by(signatures[name]) for name in names}
        by_method = {name: reached_by_functions(self.graph, methods[name]) for name in method_names}
        derived = {
            function
            for found in (*by_signature.values(), *by_method.values())
            for function, order in found.orders.items()
            if order
        }
        entries = [
            self._entry(name, signatures[name], found, modules)
            for name, found in by_signature.items()
        ]
        for name, found in by_method.items():
            # A gradient that hangs on the object is no method to call.
            if not derived.issuperset(methods[name]):
                entry = self._entry(name, None, found, modules)
                if entry.modules:
                    entries.append(entry)
        return entries, more

    def _signatures(self) -> Iterator[tuple[str, Message]]:
        for field in self._message.fields():
            if field.number == MetaGraphField.SIGNATURES:
                yield self._message.entry(field, "a signature")

    def _reached_by(self, signature: Message) -> Reached:
        outputs = _entries(signature, SignatureField.OUTPUTS)
        return reached_by_tensors(
            self.graph, [info.text_of(TensorInfoField.NAME) for _, info in outputs]
        )

    def _entry(
        self, name: str, signature: Message | None, found: Reached, modules: Sequence[CalledModule]
    ) -> EntryPoint:
        self.missing |= dict.fromkeys(sorted(found.missing))
        inputs: tuple[Port, ...] = ()
        outputs: tuple[Port, ...] = ()
        if signature is not None:
            defaults = {key for key, _ in _entries(signature, SignatureField.DEFAULTS)}
            inputs = tuple(_ports(signature, SignatureField.INPUTS, defaults))
            outputs = tuple(_ports(signature, SignatureField.OUTPUTS, frozenset()))
        orders = {
            module.number: found.orders[module.function]
            for module in modules
            if module.function in found.orders and (module.function or module.node in found.main)
        }
        gradient = self._gradient(found, orders) if orders else None
        return EntryPoint(name, signature is not None, inputs, outputs, orders, gradient)

    def _gradient(self, found: Reached, modules: Mapping[int, int]) -> Gradient:
        highest = max(modules.values())
        if highest in found.unregistered:
            return Gradient(highest, "", is_left_out=True)
        for function, order in found.orders.items():
            if order == highest:
                for node in self.graph.functions.get(function, self.graph.nodes):
                    if text := prevented(node):
                        return Gradient(highest, text)
        return Gradient(highest, "")


def _entries(message: Message, number: int) -> Iterator[tuple[str, Message]]:
    for field in message.fields():
        if field.number == number:
            yield message.entry(field, "an entry of a signature")


def _ports(signature: Message, number: int, defaults: Set[str]) -> Iterator[Port]:
    found = dict(_entries(signature, number))  # as a map: the last of a name counts
    for name in sorted(found):
        kind = typed(found[name], TensorInfoField.DTYPE, TensorInfoField.SHAPE)
        yield Port(name, kind, name in defaults)
