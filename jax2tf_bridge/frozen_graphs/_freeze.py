"""Makes the graphs of a SavedModel's signatures, without variables and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.converting import edit_graph
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.frozen_graphs._forms import replace_lacking
from jax2tf_bridge.to_tensorflow import freeze

_CONTROL_FLOW = frozenset({"If", "StatelessIf", "StatelessWhile", "While"})


@dataclass(frozen=True)
class GraphPort:
    """Input or output of a graph.

    Attributes:
      tensor: the name of the tensor in the graph.
      dtype: TensorFlow's dtype.
      sizes: the sizes, -1 if open; None if the rank is unknown.
    """

    tensor: str
    dtype: tf.DType
    sizes: Sequence[int] | None


@dataclass(frozen=True)
class FrozenGraph:
    """Graph of a signature, without variables.

    Attributes:
      graph: the GraphDef; it has no calls of functions, apart from those of loops and branches.
      inputs, outputs: the inputs and outputs by name.
    """

    graph: Any
    inputs: Mapping[str, GraphPort]
    outputs: Mapping[str, GraphPort]

    @property
    def has_control_flow(self) -> bool:
        """Returns whether it has a loop or branch."""
        return any(node.op in _CONTROL_FLOW for node in self.graph.node)


def freeze_folder(folder: Path, runtime: str) -> dict[str, FrozenGraph]:
    """Returns the graph of each signature of a SavedModel.

    Args:
      folder: the SavedModel, whose graph is replaced.
      runtime: the name of the runtime, for messages.

    Raises:
      SavingError: there is no signature.
      ModuleError: the installed TensorFlow lacks what this needs.
    """
    with edit_graph(folder, f"{runtime} models") as graph:
        replace_lacking(graph.graph_def)
    model = tf.saved_model.load(str(folder))
    if not model.signatures:
        raise SavingError("The SavedModel has no signature. Save it with one.")
    return {name: _freeze(function) for name, function in sorted(model.signatures.items())}


def _freeze(function: Any) -> FrozenGraph:
    frozen = freeze(function, aggressive_inlining=True)
    names = sorted(function.structured_input_signature[1])
    inputs = {name: _port(tensor) for name, tensor in zip(names, frozen.inputs, strict=True)}
    names = sorted(function.structured_outputs)
    graph = frozen.graph.as_graph_def()
    outputs = {}
    for name, tensor in zip(names, frozen.outputs, strict=True):
        # Runtimes find outputs by their tensors, so each output gets its own.
        node = graph.node.add(name=f"output/{name}", op="Identity", input=[tensor.name])
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        outputs[name] = _port(tensor, f"{node.name}:0")
    return FrozenGraph(graph, inputs, outputs)


def _port(tensor: Any, name: str | None = None) -> GraphPort:
    shape = tensor.shape
    sizes = None if shape.rank is None else [-1 if size is None else size for size in shape]
    return GraphPort(name or tensor.name, tensor.dtype, sizes)
