"""Finds the modules and arrays of a graph, and the signatures and methods that run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jax2tf_bridge.bytecode import Version, read_stablehlo_version
from jax2tf_bridge.portable import DisabledSafetyCheck
from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph, Node, split_reference
from jax2tf_bridge.saved_model._meta_graph import GraphSignature, MetaGraph, SignaturePort
from jax2tf_bridge.saved_model._tensors import TensorSpec, read_tensor_spec

_MAX_ENTRIES = 256
"""Maximum number of signatures and methods to analyse; each may reach the whole graph."""


@dataclass(frozen=True)
class GradientOrders:
    """Stored orders of gradients, and the reason why there are no more.

    Attributes:
      orders: the number of stored orders.
      missing_because: the reason that the file gives for the missing next order; "" without one.
      is_left_out: whether the next order exists in Python and was not stored.
    """

    orders: int
    missing_because: str
    is_left_out: bool = False


@dataclass(frozen=True)
class EntryPoint:
    """Signature, or method of the loaded object.

    Attributes:
      name: the name of the signature, or the path of the method.
      is_signature: whether it is a signature.
      inputs, outputs: the inputs and outputs of a signature; empty for a method.
      modules: maps the numbers of the modules that it runs to the order of differentiation.
      gradient: the stored gradients; None if it runs no module.
      joins_requests: whether it runs BatchFunction, which joins requests and has no gradient.
    """

    name: str
    is_signature: bool
    inputs: tuple[SignaturePort, ...]
    outputs: tuple[SignaturePort, ...]
    modules: Mapping[int, int]
    gradient: GradientOrders | None
    joins_requests: bool = False


@dataclass(frozen=True)
class CalledModule:
    """XlaCallModule node.

    Attributes:
      number: the number from 0, in the order of the file.
      function: the name of its function, "" for the main graph.
      node: the name of the node.
      module: the bytes of the module.
      calling_convention_version: the attribute `version`.
      platforms: JAX's names of the platforms.
      disabled_checks: the disabled safety checks.
      arguments: the dtypes of the op's arguments.
      results: the declared types of the op's results.
      functions: the TensorFlow functions that the module calls.
      has_tokens: whether tokens order its effects.
      uses_shardy: the attribute `use_shardy_partitioner` of TensorFlow 2.20 and newer.
      stablehlo_version: the StableHLO version of the module; None if unknown.
    """

    number: int
    function: str
    node: str
    module: memoryview = field(repr=False)
    calling_convention_version: int
    platforms: tuple[str, ...]
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    arguments: tuple[str, ...]
    results: tuple[TensorSpec, ...]
    functions: tuple[str, ...]
    has_tokens: bool
    uses_shardy: bool
    stablehlo_version: Version | None

    @property
    def place(self) -> str:
        """Names its location, for messages."""
        return f"{self.function}/{self.node}" if self.function else self.node


@dataclass(frozen=True)
class StoredConstant:
    """Constant array in the graph: its node, and its size in the file in bytes."""

    function: str
    node: str
    type: TensorSpec
    size: int


@dataclass(frozen=True)
class ReachableFunctions:
    """Functions that run when a signature or method is called or differentiated.

    Attributes:
      orders: maps each function to the order of differentiation at which it runs; "" is the main
        graph.
      main: the names of the nodes of the main graph that run.
      unregistered: the orders at which a gradient is needed that the file does not have.
      missing: called functions that the file does not have.
    """

    orders: Mapping[str, int]
    main: frozenset[str]
    unregistered: frozenset[int]
    missing: frozenset[str]


def _find_reachable(graph: Graph, tensors: Iterable[str]) -> ReachableFunctions:
    """Finds the functions that compute tensors of the main graph ("StatefulPartitionedCall:0")."""
    by_name = graph.main.by_name
    waiting = [split_reference(tensor)[0] for tensor in tensors]
    seen = set(waiting)
    needed = []
    while waiting:
        node = by_name.get(waiting.pop())
        if node is None:
            continue
        needed.append(node)
        for name in (*(split_reference(i)[0] for i in node.inputs), *node.controls):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return _follow(graph, {"": needed}, [("", 0)])


def _follow(
    graph: Graph, main: Mapping[str, list[Node]], start: Iterable[tuple[str, int]]
) -> ReachableFunctions:
    """Follows calls and gradients: a call keeps the order, a gradient adds 1.

    Calls are followed first, so that each function gets its lowest order.
    """
    orders: dict[str, int] = {}
    unregistered: set[int] = set()
    missing: set[str] = set()
    waiting = deque(start)
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
        gradient_function = graph.function_gradients.get(name)
        if gradient_function:
            waiting.append((gradient_function, order + 1))
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
    return ReachableFunctions(orders, names, frozenset(unregistered), frozenset(missing))


def iterate_modules(graph: Graph, first: int) -> Iterator[CalledModule]:
    """Yields the modules of a graph, numbered from `first`.

    Raises:
      FileFormatError: an operation is damaged, even in an unreachable function.
    """
    number = first
    for function, node in graph.iterate_nodes():
        _ = node.calls  # raises if an attribute is damaged
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
        results=tuple(map(TensorSpec, dtypes, shapes)),
        functions=node.calls,
        has_tokens=node.number("has_token_input_output") != 0,
        uses_shardy=node.number("use_shardy_partitioner") != 0,
        stablehlo_version=read_stablehlo_version(module),
    )


def iterate_constants(graph: Graph) -> Iterator[StoredConstant]:
    """Yields the constant arrays of a graph."""
    for function, node in graph.iterate_nodes():
        tensor = node.tensor("value") if node.op == "Const" else None
        if tensor is not None:
            yield StoredConstant(function, node.name, read_tensor_spec(tensor), len(tensor))


def find_entry_points(
    meta_graph: MetaGraph, modules: Sequence[CalledModule]
) -> tuple[list[EntryPoint], int, list[str]]:
    """Finds the signatures and methods of a graph.

    Args:
      meta_graph: the graph.
      modules: the modules of the graph.

    Returns:
      The signatures, then the methods that run modules; the number of entries that were not
      analysed; and the called functions that the file does not have.
    """
    graph, signatures = meta_graph.graph, meta_graph.signatures
    methods = {} if meta_graph.objects is None else meta_graph.objects.methods
    names = list(signatures)[:_MAX_ENTRIES]
    method_names = list(methods)[: _MAX_ENTRIES - len(names)]
    more = len(signatures) + len(methods) - len(names) - len(method_names)
    by_signature = {
        name: _find_reachable(graph, [o.tensor for o in signatures[name].outputs.values()])
        for name in names
    }
    by_method = {
        name: _follow(graph, {}, [(function, 0) for function in methods[name]])
        for name in method_names
    }
    derived = {
        function
        for reachable in (*by_signature.values(), *by_method.values())
        for function, order in reachable.orders.items()
        if order
    }
    entries = [
        _make_entry_point(graph, name, signatures[name], reachable, modules)
        for name, reachable in by_signature.items()
    ]
    missing = [reachable.missing for reachable in by_signature.values()]
    for name, reachable in by_method.items():
        # Gradients that are attributes of the object are not methods.
        if not derived.issuperset(methods[name]):
            missing.append(reachable.missing)
            entry = _make_entry_point(graph, name, None, reachable, modules)
            if entry.modules:
                entries.append(entry)
    return entries, more, [name for names in missing for name in sorted(names)]


def _make_entry_point(
    graph: Graph,
    name: str,
    signature: GraphSignature | None,
    reachable: ReachableFunctions,
    modules: Sequence[CalledModule],
) -> EntryPoint:
    inputs, outputs = ({}, {}) if signature is None else (signature.inputs, signature.outputs)
    orders = {
        module.number: reachable.orders[module.function]
        for module in modules
        if module.function in reachable.orders
        and (module.function or module.node in reachable.main)
    }
    gradient = _find_gradient_orders(graph, reachable, orders) if orders else None
    joins_requests = _has_batch_function(graph, reachable)
    if gradient is not None and joins_requests:
        gradient = GradientOrders(0, "it joins the requests of several callers")
    return EntryPoint(
        name,
        signature is not None,
        tuple(inputs[name] for name in sorted(inputs)),
        tuple(outputs[name] for name in sorted(outputs)),
        orders,
        gradient,
        joins_requests,
    )


def _find_gradient_orders(
    graph: Graph, reachable: ReachableFunctions, modules: Mapping[int, int]
) -> GradientOrders:
    highest = max(modules.values())
    if highest in reachable.unregistered:
        return GradientOrders(highest, "", is_left_out=True)
    for function, order in reachable.orders.items():
        if order == highest:
            for node in graph.functions.get(function, graph.main).nodes:
                if node.op == "PreventGradient" and (text := node.text("message")):
                    return GradientOrders(highest, text)
    return GradientOrders(highest, "")


def _has_batch_function(graph: Graph, reachable: ReachableFunctions) -> bool:
    return any(
        node.op == "BatchFunction"
        for function, order in reachable.orders.items()
        if order == 0
        for node in graph.functions.get(function, graph.main).nodes
        if function or node.name in reachable.main
    )
