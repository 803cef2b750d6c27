"""Rewrites loops and branches to the form that coremltools reads.

coremltools 9.0 takes the first two values of each loop for a counter and a limit, and drops them.
It finds each result by the name of the function's output, "identity_2", and by its only reader,
which must have no other inputs. It renames the nodes of a function for each loop that calls it, so
each loop needs functions of its own. The results of an Unpack of a constant become elements of the
first result there, so each Unpack is replaced by GatherV2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

LOOPS = frozenset({"StatelessWhile", "While"})
BRANCHES = frozenset({"If", "StatelessIf"})
_INT32 = tf.int32.as_datatype_enum
_DROPPED = ("counter", "limit")
"""The first two values of a loop."""


def rewrite_loops(graph: Any) -> None:
    """Rewrites the loops and branches of a graph, and of its functions.

    Args:
      graph: a GraphDef without calls of functions, which is changed in place.
    """
    rewriter = _Rewriter(graph.library.function)
    rewriter.rewrite(graph.node, None)
    del graph.library.function[:]
    graph.library.function.extend(rewriter.functions)


class _Rewriter:
    def __init__(self, library: Any) -> None:
        self._library = {function.signature.name: function for function in library}
        self._numbers: Iterator[int] = itertools.count()
        self.functions: list[Any] = []

    def rewrite(self, nodes: Any, returned: MutableMapping[str, str] | None) -> None:
        """Rewrites the loops and branches among nodes.

        Args:
          nodes: the nodes of the graph, or of a function.
          returned: the results of the function by name; None for the graph.
        """
        for node in list(nodes):
            if node.op in BRANCHES:
                for attribute in ("then_branch", "else_branch"):
                    _name_results(self._copy(node.attr[attribute].func), 0)
                _read_by_identities(node, nodes, returned, node.attr["Tout"].list.type, 0)
            elif node.op in LOOPS:
                node.op = "StatelessWhile"
                self._rewrite_loop(node, nodes, returned)
            elif node.op == "Unpack":
                _unpack_by_gathers(node, nodes, returned)

    def _copy(self, reference: Any) -> Any:
        """Returns a copy of a function that nothing else calls, and makes `reference` name it."""
        function = type(self._library[reference.name])()
        function.CopyFrom(self._library[reference.name])
        function.signature.name = f"{reference.name}_{next(self._numbers)}"
        reference.name = function.signature.name
        self.functions.append(function)
        self.rewrite(function.node_def, function.ret)
        return function

    def _rewrite_loop(
        self, loop: Any, nodes: Any, returned: MutableMapping[str, str] | None
    ) -> None:
        condition, body = (self._copy(loop.attr[name].func) for name in ("cond", "body"))
        for function in (condition, body):
            _put_first(function.signature.input_arg, "loop_")
            function.arg_attr.clear()
        _name_results(body, len(_DROPPED))
        _put_first(body.signature.output_arg, "")
        for name in _DROPPED:
            _add_identity(body.node_def, f"next_{name}", f"loop_{name}", _INT32)
            body.ret[name] = f"next_{name}:output:0"
        dtypes = list(loop.attr["T"].list.type)
        loop.attr["T"].list.type[:] = [_INT32, _INT32, *dtypes]
        shapes = list(loop.attr["output_shapes"].list.shape)
        if shapes:
            del loop.attr["output_shapes"].list.shape[:]
            scalars = [tf.TensorShape([]).as_proto() for _ in _DROPPED]
            loop.attr["output_shapes"].list.shape.extend([*scalars, *shapes])
        operands = []
        for name in _DROPPED:
            operand = add_constant(nodes, f"{name}_of_{loop.name}", 0)
            operands.append(operand if returned is None else f"{operand}:output:0")
        loop.input[:] = [*operands, *loop.input]
        _read_by_identities(loop, nodes, returned, dtypes, len(_DROPPED))


def _put_first(arguments: Any, prefix: str) -> None:
    """Puts the values that coremltools drops before the arguments of a function."""
    others = list(arguments)
    del arguments[:]
    for name in _DROPPED:
        arguments.add(name=f"{prefix}{name}", type=_INT32)
    arguments.extend(others)


def _name_results(function: Any, start: int) -> None:
    """Names the results of a function, each of which becomes an Identity of its own."""
    results = [(arg.type, function.ret.pop(arg.name)) for arg in function.signature.output_arg]
    del function.signature.output_arg[:]
    for number, (dtype, tensor) in enumerate(results, start):
        name = f"identity_{number}" if number else "identity"
        function.signature.output_arg.add(name=name, type=dtype)
        _add_identity(function.node_def, f"result_{number}", tensor, dtype)
        function.ret[name] = f"result_{number}:output:0"


def _read_by_identities(
    node: Any, nodes: Any, returned: MutableMapping[str, str] | None, dtypes: Any, start: int
) -> dict[int, Any]:
    """Lets an Identity read each result of a node, in place of all other readers.

    Returns the identities by the number of the result.

    Args:
      node: the loop or branch.
      nodes: all nodes of its graph or function.
      returned: the results of the function by name; None for the graph.
      dtypes: the dtypes of the results that have readers.
      start: the number of the results before these.
    """
    numbers = set()

    def move(tensor: str) -> str:
        name, _, rest = tensor.partition(":")
        if name != node.name:
            return tensor
        number = int(rest.rpartition(":")[2] or 0)
        numbers.add(number)
        reader = f"value_{number}_of_{node.name}"
        return reader if returned is None else f"{reader}:output:0"

    for reader in nodes:
        if any(tensor.partition(":")[0] == node.name for tensor in reader.input):
            reader.input[:] = [move(tensor) for tensor in reader.input]
    if returned is not None:
        for name, tensor in returned.items():
            returned[name] = move(tensor)
    readers = {}
    for number in sorted(numbers):
        output = f":{number + start}" if returned is None else f":output:{number + start}"
        name = f"value_{number}_of_{node.name}"
        readers[number] = _add_identity(nodes, name, f"{node.name}{output}", dtypes[number])
    return readers


def _unpack_by_gathers(node: Any, nodes: Any, returned: MutableMapping[str, str] | None) -> None:
    dtype = node.attr["T"].type
    readers = _read_by_identities(node, nodes, returned, [dtype] * node.attr["num"].i, 0)
    for number, reader in readers.items():
        operands = []
        for name, value in (("place", number), ("axis", node.attr["axis"].i)):
            operand = add_constant(nodes, f"{name}_of_{reader.name}", value)
            operands.append(operand if returned is None else f"{operand}:output:0")
        reader.op = "GatherV2"
        reader.input[:] = [node.input[0], *operands]
        reader.attr.clear()
        reader.attr["Tparams"].type = dtype
        for name in ("Tindices", "Taxis"):
            reader.attr[name].type = _INT32
    nodes.remove(node)


def add_constant(nodes: Any, name: str, value: int | Sequence[int]) -> str:
    """Adds a constant of int32; returns its name."""
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = _INT32
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    return name


def _add_identity(nodes: Any, name: str, tensor: str, dtype: int) -> Any:
    node = nodes.add(name=name, op="Identity", input=[tensor])
    node.attr["T"].type = dtype
    return node
