"""Exchanges operations and constants in the graph of a SavedModel."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

# Private: the line that the bridge names each operation after.
from jax2tf_bridge.emitters import find_source_line

EXCHANGES = {
    "AddV2": ("Sub", "Mul"),
    "Sub": ("AddV2",),
    "Mul": ("AddV2", "RealDiv"),
    "RealDiv": ("Mul",),
    "Maximum": ("Minimum",),
    "Minimum": ("Maximum",),
    "Less": ("GreaterEqual", "LessEqual"),
    "Greater": ("LessEqual",),
    "GreaterEqual": ("Less",),
    "LessEqual": ("Greater",),
    "Exp": ("Expm1", "Tanh"),
    "Log": ("Log1p",),
    "Tanh": ("Sigmoid", "Sin"),
    "Sigmoid": ("Tanh",),
    "Erf": ("Tanh",),
    "Neg": ("Abs",),
    "Square": ("Exp",),
    "Sqrt": ("Rsqrt",),
    "Rsqrt": ("Sqrt",),
    "Sin": ("Cos",),
    "Cos": ("Sin",),
    "Relu": ("Elu", "Softplus"),
    "Softmax": ("LogSoftmax",),
    "LogSoftmax": ("Softmax",),
    "Sum": ("Max", "Mean"),
    "Max": ("Min", "Sum"),
    "Min": ("Max",),
    "Mean": ("Sum",),
    "MaxPool": ("AvgPool",),
    "AvgPool": ("MaxPool",),
    "LogicalAnd": ("LogicalOr",),
    "LogicalOr": ("LogicalAnd",),
}
"""Operations with the same inputs and attributes, which compute something else."""


_FLOATS = (tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum)


@dataclass(frozen=True)
class Fault:
    """A change of a graph.

    Attributes:
      function: the function of the graph with the node.
      node: the node that changes.
      kind: the change, such as "AddV2 -> Sub".
      line: the user's line of the node, such as "model.py:12".
      in_loop: whether a loop or a branch calls the function.
    """

    function: str
    node: str
    kind: str
    line: str
    in_loop: bool


def list_faults(saved_model: Path, seed: int) -> list[Fault]:
    """Lists the possible faults of a SavedModel whose operations have lines, in a random order."""
    faults = list(_iter_faults(_read(saved_model)))
    random.Random(seed).shuffle(faults)
    return faults


def inject(saved_model: Path, fault: Fault) -> None:
    """Changes the graph of a SavedModel.

    Raises:
      KeyError: the graph lacks the node.
    """
    model = _read(saved_model)
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if (function.signature.name, node.name) == (fault.function, fault.node):
                before = node.op
                _change(node, fault.kind)
                _rename_result(function, node, before)
                (saved_model / "saved_model.pb").write_bytes(model.SerializeToString())
                return
    raise KeyError(fault.node)


def _read(saved_model: Path) -> Any:
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((saved_model / "saved_model.pb").read_bytes())
    return model


def _iter_faults(model: Any) -> Iterator[Fault]:
    library = model.meta_graphs[0].graph_def.library.function
    in_loops = {
        value.func.name
        for function in library
        for node in function.node_def
        if node.op in ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
        for value in node.attr.values()
        if value.HasField("func")
    }
    for function in library:
        name = function.signature.name
        consumers: dict[str, Any] = {}
        for node in function.node_def:
            for source in node.input:
                consumers.setdefault(source.partition(":")[0], node)
        for node in function.node_def:
            consumer = consumers.get(node.name)
            named = consumer if node.op == "Const" and consumer is not None else node
            line = find_source_line(named.name)
            if line is None:
                continue
            # A loop with another counter may not end.
            if name in in_loops and node.op != "Const" and node.attr["T"].type not in _FLOATS:
                continue
            for kind in _kinds(node, consumer):
                yield Fault(name, node.name, kind, line, name in in_loops)


def _kinds(node: Any, consumer: Any) -> Iterator[str]:
    for other in EXCHANGES.get(node.op, ()):
        yield f"{node.op} -> {other}"
    if node.op == "Const" and consumer is not None:
        array = tf.make_ndarray(node.attr["value"].tensor)
        if array.dtype == np.float32 and np.isfinite(array).all() and array.any():
            yield "constant * 1.5"
        is_axes = consumer.op == "Transpose" and consumer.input[1].startswith(node.name)
        if is_axes and array.size >= 2:
            yield "axes exchanged"


def _change(node: Any, kind: str) -> None:
    value = node.attr["value"].tensor
    if kind == "constant * 1.5":
        array = tf.make_ndarray(value)
        value.CopyFrom(tf.make_tensor_proto(array * np.float32(1.5), shape=array.shape))
    elif kind == "axes exchanged":
        array = tf.make_ndarray(value).copy()
        array[-2:] = array[-1], array[-2]
        value.CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
    else:
        _, _, other = kind.partition(" -> ")
        attributes = {attribute.name for attribute in op_def_registry.get(other).attr}
        for name in [n for n in node.attr if n not in attributes and not n.startswith("_")]:
            del node.attr[name]
        node.op = other


def _rename_result(function: Any, node: Any, before: str) -> None:
    """Renames the result in the operations that take it: it has the name of the operation's."""
    (old,), (new,) = (
        [argument.name for argument in op_def_registry.get(kind).output_arg][:1]
        for kind in (before, node.op)
    )
    for consumer in function.node_def:
        for i, name in enumerate(consumer.input):
            if name == f"{node.name}:{old}:0":
                consumer.input[i] = f"{node.name}:{new}:0"
    for key, name in function.ret.items():
        if name == f"{node.name}:{old}:0":
            function.ret[key] = f"{node.name}:{new}:0"
