"""Replaces the XlaCallModule ops of a SavedModel by TensorFlow's own operations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._dtypes import op_spec
from jax2tf_bridge.to_tensorflow._op import call_operations

_CALL_MODULE = "XlaCallModule"
_CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")


def replace_call_modules(
    saved_model: bytes,
    functions: Mapping[tuple[str, str], PortableFunction],
    *,
    for_converters: bool = False,
) -> bytes:
    """Replaces XlaCallModule ops by calls of functions that use TensorFlow's own operations.

    Args:
      saved_model: the bytes of saved_model.pb.
      functions: the function that each XlaCallModule op calls. A key is the name of the function
        that contains the op ("" for the graph itself), and the name of the op.
      for_converters: whether to remove checks that converters refuse: Assert, EnsureShape and
        PreventGradient.

    Raises:
      ModuleError: TensorFlow cannot express an operation of a module.
    """
    kind = _tf_compat.saved_model_message()
    if kind is None:
        raise ModuleError(
            f"The installed TensorFlow {tf.__version__} lacks the SavedModel message that 2.15 to "
            "2.22 have. Retarget the SavedModel with one of these releases."
        )
    model = kind()
    model.ParseFromString(saved_model)
    for meta_graph in model.meta_graphs:
        _replace_call_modules(meta_graph, functions)
        if for_converters:
            _remove_checks(meta_graph)
    return bytes(model.SerializeToString(deterministic=True))


def _replace_call_modules(
    meta_graph: Any, functions: Mapping[tuple[str, str], PortableFunction]
) -> None:
    library = meta_graph.graph_def.library
    operations = meta_graph.meta_info_def.stripped_op_list
    used_names = {function.signature.name for function in library.function}
    callers: dict[tuple[bytes, ...], Any] = {}
    for place, node in list(_iter_nodes(meta_graph.graph_def)):
        if node.op != _CALL_MODULE:
            continue
        # Ops with the same module share one function.
        key = (node.attr["module"].s, *node.attr["platforms"].list.s)
        if key not in callers:
            caller = _build_caller(functions[place, node.name])
            _rename_functions(caller.graph_def, f"operations_{len(callers)}", used_names)
            library.function.extend(caller.graph_def.library.function)
            known = {operation.name for operation in operations.op}
            listed = caller.meta_info_def.stripped_op_list.op
            operations.op.extend(op for op in listed if op.name not in known)
            callers[key] = caller
        call = next(n for n in callers[key].graph_def.node if n.op in _CALL_OPS)
        node.op = call.op
        for name in list(node.attr):
            if not name.startswith("_"):
                del node.attr[name]
        for name, value in call.attr.items():
            if not name.startswith("_"):
                node.attr[name].CopyFrom(value)
    if callers:
        meta_graph.meta_info_def.tensorflow_version = tf.__version__
        newest = next(iter(callers.values())).graph_def.versions.producer
        meta_graph.graph_def.versions.producer = newest
    _drop_from_list(operations, {_CALL_MODULE})


_IDENTITIES = frozenset({"EnsureShape", "PreventGradient"})
"""Operations that return their input or fail."""


def _remove_checks(meta_graph: Any) -> None:
    """Removes Assert operations, and turns other checks into Identity."""
    remove_operations(meta_graph.graph_def, ("Assert",))
    for _, node in _iter_nodes(meta_graph.graph_def):
        if node.op in _IDENTITIES:
            node.op = "Identity"
            for name in [n for n in node.attr if n != "T" and not n.startswith("_")]:
                del node.attr[name]
    _drop_from_list(meta_graph.meta_info_def.stripped_op_list, {"Assert", *_IDENTITIES})


def _drop_from_list(operations: Any, names: Collection[str]) -> None:
    kept = [operation for operation in operations.op if operation.name not in names]
    del operations.op[:]
    operations.op.extend(kept)


def remove_operations(graph: Any, kinds: Collection[str]) -> None:
    """Removes operations whose results no others use, also from what waits for them.

    Args:
      graph: a GraphDef, which is changed in place.
      kinds: the kinds of operations.
    """
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        kept = [node for node in nodes if node.op not in kinds]
        if len(kept) == len(nodes):
            continue
        removed = {f"^{node.name}" for node in nodes if node.op in kinds}
        for node in kept:
            node.input[:] = [name for name in node.input if name not in removed]
        del nodes[:]
        nodes.extend(kept)
    for function in graph.library.function:
        names = {node.name for node in function.node_def}
        for name in [n for n, node in function.control_ret.items() if node not in names]:
            del function.control_ret[name]
            function.signature.control_output.remove(name)


def _iter_nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yields (function name, node) for all nodes; the name is "" for the graph itself."""
    for node in graph.node:
        yield "", node
    for function in graph.library.function:
        for node in function.node_def:
            yield function.signature.name, node


def _build_caller(portable: PortableFunction) -> Any:
    """Builds a graph with one op that calls the function, and the functions that the op needs."""
    specs = [op_spec(aval, f"An argument of {portable.name}") for aval in portable.in_avals]

    def call(*args: tf.Tensor) -> list[tf.Tensor]:
        return call_operations(portable, args)

    concrete = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    with tf.Graph().as_default() as graph:
        concrete(*(tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs))
        return tf.compat.v1.train.export_meta_graph(graph=graph, strip_default_attrs=True)


def _rename_functions(graph: Any, prefix: str, used_names: set[str]) -> None:
    """Renames the functions of a graph to unique names, and adds these to `used_names`."""
    names = {}
    for function in graph.library.function:
        old = function.signature.name
        new = f"{prefix}_{old.strip('_')}"
        while new in used_names:
            new += "_"
        used_names.add(new)
        names[old] = function.signature.name = new
    for _, node in _iter_nodes(graph):
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name in names:
                    called.name = names[called.name]
