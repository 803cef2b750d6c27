"""Target without XLA, and the check that a graph holds nothing but TensorFlow's own operations.

Needs TensorFlow, not JAX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from jax2tf_bridge import Target

# Operations that run Python, that XLA compiles, or whose library the program must load.
_NOT_SERVED = ("XlaCallModule", "PyFunc", "PyFuncStateless", "EagerPyFunc")
_WIRING = frozenset(
    {
        *("Const", "Placeholder", "ReadVariableOp"),
        *("Identity", "IdentityN", "NoOp", "PartitionedCall", "StatefulPartitionedCall"),
    }
)
_COMPILED = ("_XlaMustCompile", "_XlaCompile")


def without_xla() -> Target:
    """Returns the widest target without XLA."""
    # Some of who looks at graphs tries that models run where the bridge is not imported.
    from jax2tf_bridge import Target

    return Target.widest(xla=False)


def nodes(graph: Any) -> Iterator[Any]:
    """Yields the nodes of a graph and of its functions, each once."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def operation_counts(graph: Any) -> Counter[str]:
    """Counts the operations of a graph and its functions by their kinds, calls as what they call.

    Constants, arguments, reads of variables and names for results are not among them: they are
    what makes a function of a graph, and cost a call nothing.
    """
    functions = {function.signature.name for function in graph.as_graph_def().library.function}
    return Counter(node.op for node in nodes(graph) if node.op not in _WIRING | functions)


def foreign_operations(graph: Any) -> list[str]:
    """Lists what in a graph and its functions is not an operation of TensorFlow's own.

    That is XlaCallModule and all of XLA's, custom operations, calls of Python, and functions that
    XLA would compile.
    """
    definition = graph.as_graph_def()
    functions = {function.signature.name for function in definition.library.function}
    found = {
        node.op
        for node in nodes(graph)
        if "Xla" in node.op
        or node.op in _NOT_SERVED
        or (node.op not in functions and not hasattr(tf.raw_ops, node.op))
    }
    holders = [*nodes(graph), *definition.library.function]
    found |= {key for holder in holders for key in _COMPILED if holder.attr[key].b}
    return sorted(found)


def switch_off_xla() -> None:
    """Has TensorFlow compile nothing of this process' graphs by XLA on its own."""
    tf.config.optimizer.set_jit(False)
