"""Replaces operations of a SavedModel's graph by calls of functions of built-in operations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from jax2tf_bridge.litert._forms import Form, form_of

_CALL = "PartitionedCall"
_OUTPUT = re.compile(r"^([^:]+):\w+:(\d+)$")


def with_built_ins(graph: Any) -> None:
    """Replaces what LiteRT has no built-in operation for, where a form of such operations is known.

    Args:
      graph: a GraphDef, which is changed.
    """
    functions: dict[tuple[Any, ...], str] = {}
    made: list[Any] = []
    taken = {function.signature.name for function in graph.library.function}

    def function_of(node: Any, form: Form) -> str:
        attributes = {k: v.SerializeToString() for k, v in node.attr.items() if k[0] != "_"}
        key = node.op, *sorted(attributes.items())
        if key not in functions:
            functions[key] = name = f"litert_{len(functions)}_{node.op}"
            assert name not in taken, "TensorFlow names functions otherwise"
            made.extend(_definitions(name, form))
        return functions[key]

    for nodes, references in _bodies(graph):
        replaced = set()
        for node in nodes:
            form = form_of(node)
            if form is None:
                continue
            called = function_of(node, form)
            node.op = _CALL
            for name in [n for n in node.attr if not n.startswith("_")]:
                del node.attr[name]
            node.attr["Tin"].list.type.extend([d.as_datatype_enum for d in form.inputs])
            node.attr["Tout"].list.type.append(form.result.as_datatype_enum)
            node.attr["f"].func.name = called
            replaced.add(node.name)
        for holder, key in references(replaced):
            match = _OUTPUT.match(holder[key])
            if match is not None and match[1] in replaced:
                holder[key] = f"{match[1]}:output:{match[2]}"
    graph.library.function.extend(made)


def _bodies(graph: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the nodes of the graph and of each function, and a function that finds references."""

    def references(nodes: Any, returned: Any) -> Any:
        def find(replaced: set[str]) -> Iterator[tuple[Any, Any]]:
            if not replaced:
                return
            for node in nodes:
                yield from ((node.input, i) for i in range(len(node.input)))
            yield from ((returned, key) for key in list(returned))

        return find

    yield graph.node, references(graph.node, {})
    for function in graph.library.function:
        yield function.node_def, references(function.node_def, function.ret)


def _definitions(name: str, form: Form) -> list[Any]:
    """Makes the definition of a function by this name, and of those that it calls."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return form.kernel(*tensors)

    specs = [tf.TensorSpec(None, dtype) for dtype in form.inputs]
    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    definition = concrete.function_def
    definition.signature.name = name
    return [definition, *concrete.graph.as_graph_def().library.function]
