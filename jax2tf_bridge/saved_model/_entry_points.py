"""What the operations of a graph say of modules and arrays, and what signatures and methods run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph
from jax2tf_bridge.saved_model._meta_graph import GraphSignature, MetaGraph, TensorInfo
from jax2tf_bridge.saved_model._nodes import Node
from jax2tf_bridge.saved_model._reach import Reached, reached_by_functions, reached_by_tensors
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    Gradient,
    GraphConstant,
    Port,
)
from jax2tf_bridge.saved_model._tensors import TensorType, tensor_type
from jax2tf_bridge.serialization.jax_exported._modules import stablehlo_version

_MOST_ENTRIES = 256
"""How many signatures and methods are looked into: each may reach the whole graph."""


@dataclass(frozen=True)
class EntryPoints:
    """The entry points of a graph.

    Attributes:
      entries: the signatures, then the methods that run modules.
      more: how many others there are, which were not looked into.
      missing: the functions that are called and are not there.
    """

    entries: tuple[EntryPoint, ...]
    more: int
    missing: tuple[str, ...]


def called_modules(graph: Graph, first: int) -> Iterator[CalledModule]:
    """The modules of a graph, numbered from `first` on.

    Raises:
      FileFormatError: an operation is damaged, even of a function that nothing reaches.
    """
    number = first
    for function, node in graph.every_node():
        _ = node.calls  # reads all attributes
        if node.op == CALL_MODULE:
            yield called_module(number, function, node)
            number += 1


def called_module(number: int, function: str, node: Node) -> CalledModule:
    """What an XlaCallModule node says."""
    module = node.view("module")
    dtypes, shapes = node.dtypes("Tout"), [*node.shapes("Sout")]
    shapes += [None] * (len(dtypes) - len(shapes))
    return CalledModule(
        number=number,
        function=function,
        node=node.name,
        module=module,
        calling_convention_version=node.number("version"),
        platforms=tuple(text.lower() for text in node.texts("platforms")),
        disabled_checks=tuple(map(DisabledSafetyCheck, node.texts("disabled_checks"))),
        arguments=node.dtypes("Tin"),
        results=tuple(map(TensorType, dtypes, shapes)),
        functions=node.calls,
        has_tokens=node.number("has_token_input_output") != 0,
        uses_shardy=node.number("use_shardy_partitioner") != 0,
        stablehlo_version=stablehlo_version(module),
    )


def constants(graph: Graph) -> Iterator[GraphConstant]:
    """The arrays in a graph."""
    for function, node in graph.every_node():
        tensor = node.tensor("value") if node.op == "Const" else None
        if tensor is not None:
            yield GraphConstant(function, node.name, tensor_type(tensor), len(tensor))


def entry_points(meta_graph: MetaGraph, modules: Sequence[CalledModule]) -> EntryPoints:
    """The signatures and methods of a graph.

    Args:
      meta_graph: the graph.
      modules: those of the graph.
    """
    graph, signatures = meta_graph.graph, meta_graph.signatures
    methods = {} if meta_graph.objects is None else meta_graph.objects.methods
    names = list(signatures)[:_MOST_ENTRIES]
    method_names = list(methods)[: _MOST_ENTRIES - len(names)]
    more = len(signatures) + len(methods) - len(names) - len(method_names)
    by_signature = {
        name: reached_by_tensors(graph, [o.tensor for o in signatures[name].outputs.values()])
        for name in names
    }
    by_method = {name: reached_by_functions(graph, methods[name]) for name in method_names}
    derived = {
        function
        for found in (*by_signature.values(), *by_method.values())
        for function, order in found.orders.items()
        if order
    }
    entries = [
        _entry(graph, name, signatures[name], found, modules)
        for name, found in by_signature.items()
    ]
    missing = [found.missing for found in by_signature.values()]
    for name, found in by_method.items():
        # A gradient that hangs on the object is no method to call.
        if not derived.issuperset(methods[name]):
            missing.append(found.missing)
            entry = _entry(graph, name, None, found, modules)
            if entry.modules:
                entries.append(entry)
    every = dict.fromkeys(name for names in missing for name in sorted(names))
    return EntryPoints(tuple(entries), more, tuple(every))


def _entry(
    graph: Graph,
    name: str,
    signature: GraphSignature | None,
    found: Reached,
    modules: Sequence[CalledModule],
) -> EntryPoint:
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    if signature is not None:
        inputs = tuple(
            Port(port.name, port.type, port.name in signature.defaults)
            for port in _ports(signature.inputs)
        )
        outputs = tuple(_ports(signature.outputs))
    orders = {
        module.number: found.orders[module.function]
        for module in modules
        if module.function in found.orders and (module.function or module.node in found.main)
    }
    gradient = _gradient(graph, found, orders) if orders else None
    return EntryPoint(name, signature is not None, inputs, outputs, orders, gradient)


def _ports(infos: Mapping[str, TensorInfo]) -> Iterator[Port]:
    return (Port(name, infos[name].type) for name in sorted(infos))


def _gradient(graph: Graph, found: Reached, modules: Mapping[int, int]) -> Gradient:
    highest = max(modules.values())
    if highest in found.unregistered:
        return Gradient(highest, "", is_left_out=True)
    for function, order in found.orders.items():
        if order == highest:
            for node in graph.functions.get(function, graph.main).nodes:
                if node.op == "PreventGradient" and (text := node.text("message")):
                    return Gradient(highest, text)
    return Gradient(highest, "")
