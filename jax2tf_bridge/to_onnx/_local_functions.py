"""Makes functions of a model for the user's functions that it calls several times.

Calls are replaced by the operations of the called function before nodes are made, so that each call
gets the best nodes for its operands. Nodes of several calls that differ by their operands alone
become one function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax2tf_bridge.bytecode import InlinedCall
from jax2tf_bridge.emitters import make_line_scope
from jax2tf_bridge.to_onnx._graph import OnnxGraph, OnnxNode, Subgraph

DOMAIN = "jax2tf_bridge"
"""Domain of the functions of a model."""

_MIN_NODES = 3
"""Minimum number of nodes of a function; fewer are as readable without it."""
_MAX_EMBEDDED = 64
"""Maximum number of elements of a constant that a function holds; others are inputs."""


@dataclass(eq=False)
class LocalFunction:
    """A function of a model.

    Attributes:
      name: the name of the user's function; a number is added if others have it.
      nodes: the nodes of the first call, with its names of values.
      inputs: the operands of each call.
      outputs: the results of the first call.
      constants: the names of the constants that the function holds.
    """

    name: str
    nodes: Sequence[OnnxNode]
    outputs: tuple[str, ...]
    constants: Collection[str]
    inputs: list[tuple[str, ...]] = field(default_factory=list)

    def name_inputs(self) -> dict[str, str]:
        """Maps the operands of the first call to names that fit all calls."""
        taken = {value for node in self.nodes for value in node.outputs}
        names: dict[str, str] = {}
        for i, (first, *others) in enumerate(zip(*self.inputs, strict=True)):
            name = _find_common_end([first, *others]) or f"input_{i}"
            names[first] = name if name not in taken else f"{name}_{i}"
            taken.add(names[first])
        return names


def _find_common_end(paths: Sequence[str]) -> str:
    """Returns the last parts that all paths share, as "dense/kernel"."""
    common: list[str] = []
    for parts in zip(*(path.split("/")[::-1] for path in paths), strict=False):
        if len({*parts}) > 1:
            break
        common.append(parts[0])
    return "/".join(reversed(common))


@dataclass(frozen=True, eq=False)
class _FunctionCall(OnnxNode):
    """A call of a function.

    Attributes:
      function: the function.
      replaced: the nodes that it replaces.
    """

    function: LocalFunction | None = None
    replaced: Sequence[OnnxNode] = ()


def make_functions(
    nodes: Sequence[OnnxNode], outputs: Collection[str], graph: OnnxGraph
) -> tuple[list[OnnxNode], list[LocalFunction]]:
    """Makes functions of the calls in a graph.

    Args:
      nodes: the nodes of the graph.
      outputs: the names of its results.
      graph: the graph, for its constants.

    Returns:
      The nodes, and the functions, each after those that it calls.
    """
    outlining = _Outlining(graph)
    nodes = outlining.run(nodes, outputs, 0)
    functions = [each for each in outlining.functions.values() if len(each.inputs) > 1]
    names: set[str] = set()
    for each in functions:
        numbers = (f"{each.name}_{i}" for i in range(1, len(functions) + 1))
        each.name = next(name for name in (each.name, *numbers) if name not in names)
        names.add(each.name)
    for each in functions:
        each.nodes = [*_expand(each.nodes)]
    return [*_expand(nodes)], functions


def _expand(nodes: Sequence[OnnxNode]) -> Iterator[OnnxNode]:
    """Replaces calls of functions that have a single call by their nodes."""
    for node in nodes:
        if not isinstance(node, _FunctionCall):
            yield node.with_subgraphs(lambda inner, _: [*_expand(inner)])
            continue
        function = node.function
        assert function is not None, "a call has a function"
        if len(function.inputs) > 1:
            yield OnnxNode(node.name, function.name, node.inputs, node.outputs, {}, domain=DOMAIN)
        else:
            yield from _expand(node.replaced)


class _Outlining:
    """Replacement of the nodes of calls by calls of functions.

    Attributes:
      functions: the functions by the structure of their nodes.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._sizes: set[str] = set()
        self.functions: dict[Any, LocalFunction] = {}

    def run(
        self, nodes: Sequence[OnnxNode], results: Collection[str], depth: int
    ) -> list[OnnxNode]:
        """Replaces the calls of one graph or function.

        Args:
          nodes: its nodes.
          results: the names of the values that others use.
          depth: the number of calls around all of the nodes.
        """
        nodes = [self._run_inner(node) if len(node.calls) <= depth else node for node in nodes]
        for node in nodes:
            self._note_sizes(node)
        while calls := [node.calls[depth] for node in nodes if len(node.calls) > depth]:
            nodes = self._replace(nodes, results, depth, calls[0])
        return nodes

    def _run_inner(self, node: OnnxNode) -> OnnxNode:
        """Replaces the calls in the subgraphs of a node."""
        depth = len(node.calls)
        return node.with_subgraphs(lambda nodes, results: self.run(nodes, results, depth))

    def _note_sizes(self, node: OnnxNode) -> None:
        """Notes results that are computed from the sizes of arrays alone."""
        is_known = all(
            value in self._sizes or value in self._graph.own_constants for value in node.values
        )
        if node.operation in ("Shape", "Size") or (is_known and not node.subgraphs):
            self._sizes.update(node.outputs)

    def _replace(
        self, nodes: Sequence[OnnxNode], results: Collection[str], depth: int, call: InlinedCall
    ) -> list[OnnxNode]:
        """Replaces the nodes of a call by one node; where that is impossible, forgets the call."""
        nodes = self._without_shared_sizes(nodes, results, depth, call)
        segment = _find_segment(nodes, depth, call)
        used = _find_used_outside(nodes, results, segment)
        outputs = tuple(value for node in segment for value in node.outputs if value in used)
        places = _place_call(nodes, segment)
        if len(segment) < _MIN_NODES or places is None:
            return [self._forget(node, depth) if node in segment else node for node in nodes]
        before, after = places
        body = self.run([node for node in nodes if node in segment], outputs, depth + 1)
        structure = _Structure(self._graph)
        key = call.name, structure.describe(body), structure.refer_all(outputs)
        function = self.functions.setdefault(
            key, LocalFunction(call.name, body, outputs, structure.constants)
        )
        operands = tuple(structure.inputs)
        function.inputs.append(operands)
        scope = "" if call.source is None else make_line_scope(call.source)
        number = self._graph.new_name(call.name)
        replacement = _FunctionCall(
            name=f"{scope}{number}",
            operation=call.name,
            inputs=operands,
            outputs=outputs,
            attributes={},
            calls=body[0].calls[:depth],
            function=function,
            replaced=body,
        )
        return [*before, replacement, *after]

    def _forget(self, node: OnnxNode, depth: int) -> OnnxNode:
        node = dataclasses.replace(node, calls=(*node.calls[:depth], *node.calls[depth + 1 :]))
        return self._run_inner(node) if len(node.calls) == depth else node

    def _without_shared_sizes(
        self, nodes: Sequence[OnnxNode], results: Collection[str], depth: int, call: InlinedCall
    ) -> list[OnnxNode]:
        """Takes sizes that later nodes use as well out of a call, so that all calls are alike."""
        segment = _find_segment(nodes, depth, call)
        used = _find_used_outside(nodes, results, segment)
        makers = {value: node for node in segment for value in node.outputs}
        shared: set[OnnxNode] = set()
        for value in makers.keys() & used & self._sizes:
            needed: set[OnnxNode] = set()
            waiting = [makers[value]]
            while waiting:
                node = waiting.pop()
                needed.add(node)
                waiting += [makers[v] for v in node.values if v in makers]
            if all(self._sizes.issuperset(node.outputs) for node in needed):
                shared |= needed
        # No operation on sizes has subgraphs.
        return [
            dataclasses.replace(node, calls=node.calls[:depth]) if node in shared else node
            for node in nodes
        ]


def _find_segment(nodes: Sequence[OnnxNode], depth: int, call: InlinedCall) -> dict[OnnxNode, None]:
    return dict.fromkeys(n for n in nodes if len(n.calls) > depth and n.calls[depth] is call)


def _find_used_outside(
    nodes: Sequence[OnnxNode], results: Collection[str], segment: Collection[OnnxNode]
) -> set[str]:
    return {*results}.union(*(node.values for node in nodes if node not in segment))


def _place_call(
    nodes: Sequence[OnnxNode], segment: Collection[OnnxNode]
) -> tuple[list[OnnxNode], list[OnnxNode]] | None:
    """Divides the other nodes into those before and after a call; None if that is impossible."""
    results = {value for node in segment for value in node.outputs}
    before: list[OnnxNode] = []
    after: list[OnnxNode] = []
    dependent: set[str] = set()
    n_left = len(segment)
    for node in nodes:
        if not n_left:
            after.append(node)  # keeps the order, so that later calls of the function stay alike
        elif node in segment:
            n_left -= 1
            if not dependent.isdisjoint(node.values):
                return None
        elif dependent.isdisjoint(node.values) and results.isdisjoint(node.values):
            before.append(node)
        else:
            after.append(node)
            dependent.update(node.outputs)
    return before, after


class _Structure:
    """Description of nodes that does not depend on the names of values.

    Attributes:
      inputs: the values from outside, in the order of their use.
      constants: the small constants.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._own: dict[str, int] = {}
        self.inputs: dict[str, int] = {}
        self.constants: dict[str, None] = {}

    def describe(self, nodes: Sequence[OnnxNode]) -> tuple[Any, ...]:
        return tuple(map(self._describe_node, nodes))

    def refer_all(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Describes values by where they come from."""
        return tuple(map(self._refer, names))

    def _describe_node(self, node: OnnxNode) -> tuple[Any, ...]:
        what = id(node.function) if isinstance(node, _FunctionCall) else node.operation
        inputs = self.refer_all(node.inputs)
        attributes = tuple((key, self._describe(x)) for key, x in sorted(node.attributes.items()))
        self._add(node.outputs)
        return what, inputs, attributes, len(node.outputs)

    def _describe(self, attribute: Any) -> Any:
        if not isinstance(attribute, Subgraph):
            return repr(attribute)
        self._add([x.name for x in attribute.inputs])
        types = [repr((x.dtype, x.shape)) for x in (*attribute.inputs, *attribute.outputs)]
        nodes = self.describe(attribute.nodes)
        return tuple(types), nodes, self.refer_all([x.name for x in attribute.outputs])

    def _add(self, names: Sequence[str]) -> None:
        for name in names:
            self._own[name] = len(self._own)

    def _refer(self, name: str) -> Any:
        if not name:
            return None
        if name in self._own:
            return "own", self._own[name]
        is_embedded = name in self._graph.own_constants
        if is_embedded and self._graph.constants[name].size <= _MAX_EMBEDDED:
            self.constants[name] = None
            return "constant", name  # equal ones have one name
        return "input", self.inputs.setdefault(name, len(self.inputs))
