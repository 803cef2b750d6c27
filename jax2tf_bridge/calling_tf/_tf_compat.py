"""Lists the private TensorFlow API that call_tf uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.errors import GradientError

_OP_DEFINITIONS = SeamName(
    "tensorflow.python.framework.op_def_registry",
    "get",
    "2.20 to 2.22",
    "with has_side_effects, jax.checkpoint refuses all functions, because all count as stateful; "
    "and graphs keep attributes with default values, which an older TensorFlow may not know",
)
_STOP_TAPES = SeamName(
    "tensorflow.python.pywrap_tfe",
    "TFE_Py_TapeSetStopOnThread",
    "2.20 to 2.22",
    "computing a gradient while a tf.function is traced is an error",
)
_RESTART_TAPES = SeamName(
    "tensorflow.python.pywrap_tfe",
    "TFE_Py_TapeSetRestartOnThread",
    "2.20 to 2.22",
    _STOP_TAPES.without,
)
SEAM: Sequence[SeamName] = (_OP_DEFINITIONS, _STOP_TAPES, _RESTART_TAPES)

# Operations that TensorFlow defines as stateful but that may be repeated: calls, whose bodies are
# inspected separately; reads of variables; and assertions, which XLA drops.
_HARMLESS = frozenset(
    {
        "StatefulPartitionedCall",
        "While",
        "If",
        "Case",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarHandleOp",
        "VarIsInitializedOp",
        "VariableShape",
        "Assert",
        "XlaCallModule",
    }
)
_UNKNOWN_OPERATION = "an unknown operation"


@contextmanager
def suspend_graphs() -> Iterator[None]:
    """Suspends graph tracing in this thread; a GradientTape in the body still records."""
    if tf.executing_eagerly():
        yield
        return
    stop, restart = _STOP_TAPES.get(), _RESTART_TAPES.get()
    with tf.init_scope():
        # init_scope stops all tapes of the thread, even those that are created in the body.
        if stop is None or restart is None:
            yield
            return
        restart()
        try:
            yield
        finally:
            stop()


def check_tapes_record(name: str) -> None:
    """Checks that tapes record; otherwise every gradient would be zero.

    Raises:
      GradientError: `name` is differentiated while TensorFlow traces, and this TF lacks the names
        that make tapes record then.
    """
    probe = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(probe)
        result = probe * 1.0
    if tape.gradient(result, probe) is None:
        raise GradientError(
            f"The TensorFlow function {name} cannot be differentiated while TensorFlow traces "
            "another function: this TensorFlow records no gradients then. Convert and trace the "
            "JAX function in eager mode first."
        )


def list_operation_types(graph: Any) -> frozenset[str]:
    """Returns the types of the operations in a graph and in its functions."""
    graph_def = graph.as_graph_def()
    nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return frozenset(node.op for part in nodes for node in part)


def list_stateful_operation_types(graph: Any) -> tuple[str, ...]:
    """Lists the types of the stateful operations in a graph and in its functions."""
    find_definition: Callable[[str], Any] | None = _OP_DEFINITIONS.get()
    if find_definition is None:
        return (_UNKNOWN_OPERATION,)
    kinds = sorted(list_operation_types(graph) - _HARMLESS)
    # A call of a function by name has no definition; the function is inspected separately.
    definitions = {kind: find_definition(kind) for kind in kinds}
    return tuple(kind for kind, row in definitions.items() if row is not None and row.is_stateful)


def drop_defaults(node: Any) -> None:
    """Removes attributes with default values, which an older TensorFlow may not know."""
    find_definition: Callable[[str], Any] | None = _OP_DEFINITIONS.get()
    definition = None if find_definition is None else find_definition(node.op)
    for attribute in definition.attr if definition is not None else ():
        name = attribute.name
        has_default = attribute.HasField("default_value") and name in node.attr
        if has_default and node.attr[name] == attribute.default_value:
            del node.attr[name]
