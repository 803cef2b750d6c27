"""Freezes functions, or the signatures of a SavedModel."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.converting import copy_as_operations, edit_graph
from jax2tf_bridge.errors import SavingError, UnsupportedByTargetError
from jax2tf_bridge.frozen_graphs._forms import FindKernel, replace_lacking
from jax2tf_bridge.saved_model import ArrayEntry, SignatureEntry, read_sidecar
from jax2tf_bridge.saving import SaveOptions, save_functions
from jax2tf_bridge.signatures import (
    ServedArray,
    Signatures,
    export_signatures,
    format_arrays,
    keys_as_words,
    open_model,
    open_params,
)
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import freeze
from shape_poly import Dim, symbolic_shape

_TARGET = replace(Target.converters(), names_lines=True)
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


@dataclass(frozen=True)
class ModelRuntime:
    """Runtime that models are written for.

    Attributes:
      name: its name, "TensorFlow.js".
      saver: the function that writes its models, "save_tfjs".
      find_kernel: finds the functions that replace operations for this runtime alone.
    """

    name: str
    saver: str
    find_kernel: FindKernel = lambda node, makers: None


@dataclass(frozen=True)
class FrozenSignature:
    """Graph of a signature, with the types that the function has.

    Attributes:
      graph: the graph.
      inputs, outputs: the inputs and outputs by name, in the order of the function.
    """

    graph: FrozenGraph
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]


def freeze_signatures(
    signatures: Signatures, params: Any, platforms: Sequence[str] | None, runtime: ModelRuntime
) -> dict[str, FrozenSignature]:
    """Returns the graphs of functions, or of the signatures of a SavedModel.

    Args:
      signatures: functions, as in `save`, or the folder of a SavedModel.
      params: the weights, as in `save`.
      platforms: the platforms of JAX functions.
      runtime: the runtime, for messages.

    Raises:
      UnsupportedByTargetError: an input or output has numbers of 64 bits.
      SavingError: the signatures or options contradict each other.
      StructureError, ShapeError, DTypeError: the weights do not fit a function.
      ModuleError: TensorFlow has no operation for an operation of a portable function.
      ExportError: an export fails.
    """
    entries: Mapping[str, SignatureEntry] = {}
    served: Mapping[str, Any] = {}
    with (
        reraise_interrupts() as check_interrupts,
        tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary,
        open_model(signatures, params) as source,
    ):
        folder = Path(temporary, "model")
        if source is None:
            served = _save_functions(folder, signatures, params, platforms, runtime)
        else:
            entries = _copy_model(source, folder, runtime)
        check_interrupts()
        graphs = _freeze_folder(folder, runtime)
        check_interrupts()
    frozen = {}
    for name, graph in graphs.items():
        entry = entries.get(name)
        inputs, outputs = served.get(name) or (
            _describe_ports(graph.inputs, entry.inputs if entry else {}),
            _describe_ports(graph.outputs, entry.outputs if entry else {}),
        )
        _check_dtypes(name, inputs, outputs, runtime)
        # TensorFlow sorts inputs and outputs by name.
        ordered = replace(
            graph,
            inputs={key: graph.inputs[key] for key in inputs},
            outputs={key: graph.outputs[key] for key in outputs},
        )
        frozen[name] = FrozenSignature(ordered, inputs, outputs)
    return frozen


def _describe_ports(
    ports: Mapping[str, GraphPort], entries: Mapping[str, ArrayEntry]
) -> dict[str, ServedArray]:
    """Describes inputs or outputs; the sidecar knows the names of open sizes."""

    def shape(name: str, sizes: Sequence[int] | None) -> tuple[Dim | None, ...] | None:
        if sizes is None:
            return None
        dims = symbolic_shape(entries[name].shape) if name in entries else ()
        names = dims if len(dims) == len(sizes) else [None] * len(sizes)
        return tuple(
            size if size >= 0 else None if isinstance(dim, int) else dim
            for size, dim in zip(sizes, names, strict=True)
        )

    return {
        name: ServedArray(port.dtype.name, shape(name, port.sizes)) for name, port in ports.items()
    }


_REFUSED = ("int64", "uint64", "float64", "complex128")


def _check_dtypes(
    name: str,
    inputs: Mapping[str, ServedArray],
    outputs: Mapping[str, ServedArray],
    runtime: ModelRuntime,
) -> None:
    """Raises for inputs and outputs whose numbers the runtime cannot hold."""
    refused = {k: v for k, v in {**inputs, **outputs}.items() if v.dtype in _REFUSED}
    if refused:
        raise UnsupportedByTargetError(
            f"{runtime.name} has no 64-bit numbers: {format_arrays(refused)} of the signature "
            f"{name}. Cast them to 32 bits in the function.",
            operation=next(iter(refused.values())).dtype,
            source=None,
        )


def _save_functions(
    folder: Path,
    signatures: Signatures,
    params: Any,
    platforms: Sequence[str] | None,
    runtime: ModelRuntime,
) -> dict[str, Any]:
    """Saves functions as a SavedModel without gradients; returns the inputs and outputs."""
    with open_params(params) as weights:
        because = f"{runtime.name} compiles no sizes and fills in no inputs"
        exported = export_signatures(signatures, weights, platforms, _TARGET, because)
        options = SaveOptions(trainable=False, vjp_order=0, warm_up=False, shares_names=True)
        saved = save_functions(folder, exported, keys_as_words(weights), options)
    return {name: (each.inputs, each.outputs) for name, each in saved.signatures.items()}


def _copy_model(source: Path, folder: Path, runtime: ModelRuntime) -> Mapping[str, SignatureEntry]:
    """Makes a SavedModel with the graph of another in operations, and its variables.

    Returns what the sidecar knows of the signatures.
    """
    contents = read_sidecar(source)
    entries = {} if contents is None else contents[0].signatures
    for name, entry in entries.items():
        if entry.buckets or entry.updates:
            what = "buckets" if entry.buckets else "updates_params"
            raise SavingError(
                f"The signature {name} of the SavedModel has {what}, which {runtime.name} does not "
                f"run. Save the model without them, or pass its functions to {runtime.saver}."
            )
    copy_as_operations(source, folder, _TARGET)
    return entries


def _freeze_folder(folder: Path, runtime: ModelRuntime) -> dict[str, FrozenGraph]:
    """Returns the graph of each signature of a SavedModel.

    Args:
      folder: the SavedModel, whose graph is replaced.
      runtime: the runtime.

    Raises:
      SavingError: there is no signature.
      ModuleError: the installed TensorFlow lacks what this needs.
    """
    with edit_graph(folder, f"{runtime.name} models") as graph:
        replace_lacking(graph.graph_def, runtime.find_kernel)
    model = tf.saved_model.load(str(folder))
    if not model.signatures:
        raise SavingError("The SavedModel has no signature. Save it with one.")
    return {name: _freeze(function) for name, function in sorted(model.signatures.items())}


def _freeze(function: Any) -> FrozenGraph:
    frozen = freeze(function, aggressive_inlining=True)
    names = sorted(function.structured_input_signature[1])
    inputs = {name: _make_port(tensor) for name, tensor in zip(names, frozen.inputs, strict=True)}
    names = sorted(function.structured_outputs)
    graph = frozen.graph.as_graph_def()
    outputs = {}
    for name, tensor in zip(names, frozen.outputs, strict=True):
        # Runtimes find outputs by their tensors, so each output gets its own.
        node = graph.node.add(name=f"output/{name}", op="Identity", input=[tensor.name])
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        outputs[name] = _make_port(tensor, f"{node.name}:0")
    return FrozenGraph(graph, inputs, outputs)


def _make_port(tensor: Any, name: str | None = None) -> GraphPort:
    shape = tensor.shape
    sizes = None if shape.rank is None else [-1 if size is None else size for size in shape]
    return GraphPort(name or tensor.name, tensor.dtype, sizes)
