"""Finds the modules and arrays of a graph, and the signatures and methods that run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.portable import DisabledSafetyCheck
from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph, Node, tensor_of
from jax2tf_bridge.saved_model._meta_graph import GraphSignature, MetaGraph
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    GradientOrders,
    GraphConstant,
)
from jax2tf_bridge.saved_model._tensors import TensorType, tensor_type
from jax2tf_bridge.serialization.jax_exported import read_stablehlo_version

_MAX_ENTRIES = 256
"""Maximum number of signatures and methods to analyse; each may reach the whole graph."""


@dataclass(frozen=True)
class Reached:
    """Functions that run when a signature or method is called or differentiated.

    Attributes:
      orders: maps each reached function to the order of differentiation at which it runs; "" is the
        main graph.
      main: the names of the reached nodes of the main graph.
      unregistered: the orders at which a gradient is needed that the file does not have.
      missing: called functions that the file does not have.
    """

    orders: Mapping[str, int]
    main: frozenset[str]
    unregistered: frozenset[int]
    missing: frozenset[str]


def reach_from_tensors(graph: Graph, tensors: Iterable[str]) -> Reached:
    """Finds what runs to compute tensors of the main graph ("StatefulPartitionedCall:0")."""
    by_name = graph.main.by_name
    waiting = [tensor_of(tensor)[0] for tensor in tensors]
    seen = set(waiting)
    needed = []
    while waiting:
        node = by_name.get(waiting.pop())
        if node is None:
            continue
        needed.append(node)
        for name in (*(tensor_of(i)[0] for i in node.inputs), *node.controls):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return _follow(graph, {"": needed}, [("", 0)])


def reach_from_functions(graph: Graph, names: Iterable[str]) -> Reached:
    """Finds what runs when these functions are called."""
    return _follow(graph, {}, [(name, 0) for name in dict.fromkeys(names)])


def _follow(
    graph: Graph, main: Mapping[str, list[Node]], begin: Iterable[tuple[str, int]]
) -> Reached:
    """Follows calls and gradients; calls keep the order and come first, gradients add 1."""
    orders: dict[str, int] = {}
    unregistered: set[int] = set()
    missing: set[str] = set()
    waiting = deque(begin)
    while waiting:
        name, order = waiting.popleft()
        if name in orders:
            continue
        if name not in main and name not in graph.functions:
            missing.add(name)
            continue
        orders[name] = order
        function = graph.functions.get(name)
        nodes: Sequence[Node] = main.get(name) or (() if function is None else function.nodes)
        differentiated = graph.function_gradients.get(name)
        if differentiated:
            waiting.append((differentiated, order + 1))
        for node in nodes:
            waiting.extendleft((callee, order) for callee in node.calls)
            if not node.gradient_type:
                continue
            gradient = graph.gradients.get(node.gradient_type)
            if gradient is None:
                unregistered.add(order)
            else:
                waiting.append((gradient, order + 1))
    names = frozenset(node.name for node in main.get("", ()))
    return Reached(orders, names, frozenset(unregistered), frozenset(missing))


@dataclass(frozen=True)
class EntryPoints:
    """Signatures and methods of a graph.

    Attributes:
      entries: the signatures, then the methods that run modules.
      more: the number of others, which were not analysed.
      missing: called functions that the file does not have.
    """

    entries: tuple[EntryPoint, ...]
    more: int
    missing: tuple[str, ...]


def iterate_modules(graph: Graph, first: int) -> Iterator[CalledModule]:
    """Yields the modules of a graph, numbered from `first`.

    Raises:
      FileFormatError: an operation is damaged, even in an unreachable function.
    """
    number = first
    for function, node in graph.every_node():
        _ = node.calls  # reads all attributes
        if node.op == CALL_MODULE:
            yield read_module_call(number, function, node)
            number += 1


def read_module_call(number: int, function: str, node: Node) -> CalledModule:
    """Reads the attributes of an XlaCallModule node."""
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
        stablehlo_version=read_stablehlo_version(module),
    )


def constants(graph: Graph) -> Iterator[GraphConstant]:
    """Yields the constant arrays of a graph."""
    for function, node in graph.every_node():
        tensor = node.tensor("value") if node.op == "Const" else None
        if tensor is not None:
            yield GraphConstant(function, node.name, tensor_type(tensor), len(tensor))


def entry_points(meta_graph: MetaGraph, modules: Sequence[CalledModule]) -> EntryPoints:
    """Finds the signatures and methods of a graph.

    Args:
      meta_graph: the graph.
      modules: the modules of the graph.
    """
    graph, signatures = meta_graph.graph, meta_graph.signatures
    methods = {} if meta_graph.objects is None else meta_graph.objects.methods
    names = list(signatures)[:_MAX_ENTRIES]
    method_names = list(methods)[: _MAX_ENTRIES - len(names)]
    more = len(signatures) + len(methods) - len(names) - len(method_names)
    by_signature = {
        name: reach_from_tensors(graph, [o.tensor for o in signatures[name].outputs.values()])
        for name in names
    }
    by_method = {name: reach_from_functions(graph, methods[name]) for name in method_names}
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
        # Gradients that are attributes of the object are not methods.
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
    inputs, outputs = ({}, {}) if signature is None else (signature.inputs, signature.outputs)
    orders = {
        module.number: found.orders[module.function]
        for module in modules
        if module.function in found.orders and (module.function or module.node in found.main)
    }
    gradient = _gradient(graph, found, orders) if orders else None
    return EntryPoint(
        name,
        signature is not None,
        tuple(inputs[name] for name in sorted(inputs)),
        tuple(outputs[name] for name in sorted(outputs)),
        orders,
        gradient,
    )


def _gradient(graph: Graph, found: Reached, modules: Mapping[int, int]) -> GradientOrders:
    highest = max(modules.values())
    if highest in found.unregistered:
        return GradientOrders(highest, "", is_left_out=True)
    for function, order in found.orders.items():
        if order == highest:
            for node in graph.functions.get(function, graph.main).nodes:
                if node.op == "PreventGradient" and (text := node.text("message")):
                    return GradientOrders(highest, text)
    return GradientOrders(highest, "")
