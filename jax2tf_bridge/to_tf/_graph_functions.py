"""TensorFlow graphs that a module calls, as functions that TensorFlow knows by name."""

from __future__ import annotations

import functools
import re
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable._graph_function import CUSTOM_CALL, GraphFunction
from jax2tf_bridge.portable._portable_function import PortableFunction

_ARGUMENT, _RESULT = re.compile(r"x(\d+)"), re.compile(r"y(\d+)")


def check_graph_functions(portable: PortableFunction, most_results: int | None) -> None:
    """Raises unless a portable function's graphs can be functions here.

    TensorFlow reads stray memory where a call has more results than its function. So each function
    gets as many as any call has, and one has them already.

    Args:
      portable: what is to be called.
      most_results: how many results a call in its module has at most; None if it calls no graph.

    Raises:
      ModuleError: it calls graphs and has none, or one cannot be read, or has too few results.
    """
    if most_results is not None and not portable.graph_functions:
        raise ModuleError(
            f"The module of {portable.name} calls TensorFlow functions ({CUSTOM_CALL}) that its "
            "portable function does not hold: it was not exported by this bridge. Export the "
            "function again with jax2tf_bridge.export and call_tf(..., call_tf_graph=True)."
        )
    most = 0
    for function in portable.graph_functions:
        _built_function(portable, function, most_results or 0)
        nodes = tf.compat.v1.GraphDef.FromString(function.graph).node
        most = max(most, sum(1 for node in nodes if _RESULT.fullmatch(node.name)))
    if most < (most_results or 0):
        raise ModuleError(
            f"The module of {portable.name} takes {most_results} results from a TensorFlow "
            f"function, and those that its portable function holds have {most} at most: they do "
            "not belong together. Export the function again."
        )


def function_names(portable: PortableFunction) -> list[str]:
    """Makes a portable function's graphs known where the current graph runs, and names them."""
    functions = [_built_function(portable, function) for function in portable.graph_functions]
    if not tf.executing_eagerly():
        for function in functions:
            function.add_to_graph(tf.compat.v1.get_default_graph())
    return [_name(function) for function in functions]


def graph_functions(portable: PortableFunction) -> list[Any]:
    """Returns a portable function's graphs as functions that can be called."""
    return [_built_function(portable, function) for function in portable.graph_functions]


def _name(function: Any) -> str:
    name = function.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _built_function(portable: PortableFunction, function: GraphFunction, n_results: int = 0) -> Any:
    try:
        # Outside of what is being traced: all graphs share it.
        with tf.init_scope():
            return function.made(functools.partial(_build, n_results))
    except Exception as e:  # of types that differ between damages and releases
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

    def tensors(kind: re.Pattern[str]) -> list[tf.Tensor]:
        found = sorted(int(match[1]) for match in map(kind.fullmatch, names) if match)
        if found != list(range(len(found))):
            raise ValueError(f"of {kind.pattern} there are {found}")
        prefix = kind.pattern[0]
        return [wrapped.graph.get_tensor_by_name(f"{prefix}{i}:0") for i in found]

    results = tensors(_RESULT)
    with wrapped.graph.as_default():
        results += [tf.zeros([]) for _ in range(n_results - len(results))]
    return wrapped.prune(tensors(_ARGUMENT), results)
