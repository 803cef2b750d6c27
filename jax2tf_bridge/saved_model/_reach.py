"""What a signature or a method reaches: functions, and at which order of differentiation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.saved_model._graph import Graph
from jax2tf_bridge.saved_model._nodes import Node


@dataclass(frozen=True)
class Reached:
    """What is run when something is called, or differentiated.

    Attributes:
      orders: of each function that is reached, how often is differentiated before it runs; the
        graph itself is "".
      main: the names of the nodes of the graph itself that are run.
      unregistered: at which orders the gradient of a node is asked for that is not in the file.
      missing: functions that are called and are not in the file.
    """

    orders: Mapping[str, int]
    main: frozenset[str]
    unregistered: frozenset[int]
    missing: frozenset[str]


def reached_by_tensors(graph: Graph, tensors: Iterable[str]) -> Reached:
    """What is run for these tensors of the graph itself ("StatefulPartitionedCall:0")."""
    by_name = graph.main.by_name
    waiting = [_node_of(tensor) for tensor in tensors]
    seen = set(waiting)
    needed = []
    while waiting:
        node = by_name.get(waiting.pop())
        if node is None:
            continue
        needed.append(node)
        for name in (*map(_node_of, node.inputs), *node.controls):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return _reached(graph, {"": needed}, [("", 0)])


def reached_by_functions(graph: Graph, names: Iterable[str]) -> Reached:
    """What is run when one of these functions is called."""
    return _reached(graph, {}, [(name, 0) for name in dict.fromkeys(names)])


def _reached(
    graph: Graph, main: Mapping[str, list[Node]], begin: Iterable[tuple[str, int]]
) -> Reached:
    """Calls cost nothing and gradients one order, so those of an order are done before the next."""
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


def _node_of(tensor: str) -> str:
    """The node that gives a tensor, as "node:0"."""
    return tensor.partition(":")[0]
