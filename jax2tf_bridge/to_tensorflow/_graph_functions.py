"""Registers the TensorFlow graphs that a module calls as TensorFlow functions."""

from __future__ import annotations

import functools
import re
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import CALL_TF_TARGET, GraphFunction, PortableFunction

_ARGUMENT, _RESULT = re.compile(r"x(\d+)"), re.compile(r"y(\d+)")


def check_graph_functions(portable: PortableFunction, max_call_results: int | None) -> None:
    """Raises unless the installed TensorFlow can read a portable function's graphs.

    TensorFlow reads stray memory if a call has more results than its function. So every function
    is padded to the largest number of results of any call, and one function must have that many.

    Args:
      portable: the portable function.
      max_call_results: the largest number of results of a graph call in its module; None if the
        module calls no graph.

    Raises:
      ModuleError: the module calls graphs that the portable function does not hold, or a graph
        cannot be read or has too few results.
    """
    if max_call_results is not None and not portable.graph_functions:
        raise ModuleError(
            f"The module of {portable.name} calls TensorFlow functions ({CALL_TF_TARGET}) that its "
            "portable function does not hold: it was not exported by this bridge. Export the "
            "function again with jax2tf_bridge.export and call_tf(..., call_tf_graph=True)."
        )
    max_function_results = 0
    for function in portable.graph_functions:
        _get_function(portable, function, max_call_results or 0)
        nodes = tf.compat.v1.GraphDef.FromString(function.graph).node
        max_function_results = max(
            max_function_results, sum(1 for node in nodes if _RESULT.fullmatch(node.name))
        )
    if max_function_results < (max_call_results or 0):
        raise ModuleError(
            f"The module of {portable.name} takes {max_call_results} results from a TensorFlow "
            f"function, but those that its portable function holds have at most "
            f"{max_function_results}. Export the function again."
        )


def register_graph_functions(portable: PortableFunction) -> list[str]:
    """Adds a portable function's graphs to the current graph, and returns their names."""
    functions = get_graph_functions(portable)
    if not tf.executing_eagerly():
        for function in functions:
            function.add_to_graph(tf.compat.v1.get_default_graph())
    return [tf.compat.as_str(function.name) for function in functions]


def get_graph_functions(portable: PortableFunction) -> list[Any]:
    """Returns a portable function's graphs as callable functions."""
    return [_get_function(portable, function) for function in portable.graph_functions]


def _get_function(portable: PortableFunction, function: GraphFunction, n_results: int = 0) -> Any:
    try:
        # Built outside of the function being traced, because all graphs share it.
        with tf.init_scope():
            return function.get_or_make(functools.partial(_build, n_results))
    except Exception as e:  # the type depends on the damage and on the TF release
        raise ModuleError(
            f"The TensorFlow function {function.name} that {portable.name} calls cannot be read by "
            f"the installed TensorFlow {tf.__version__}: {e}"
        ) from e


def _build(n_results: int, function: GraphFunction) -> Any:
    graph_def = tf.compat.v1.GraphDef.FromString(function.graph)
    names = [node.name for node in graph_def.node]
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )

    def find_tensors(kind: re.Pattern[str]) -> list[tf.Tensor]:
        numbers = sorted(int(match[1]) for match in map(kind.fullmatch, names) if match)
        if numbers != list(range(len(numbers))):
            raise ValueError(f"the numbers of {kind.pattern} are {numbers}")
        prefix = kind.pattern[0]
        return [wrapped.graph.get_tensor_by_name(f"{prefix}{i}:0") for i in numbers]

    results = find_tensors(_RESULT)
    with wrapped.graph.as_default():
        results += [tf.zeros([]) for _ in range(n_results - len(results))]
    return wrapped.prune(find_tensors(_ARGUMENT), results)
