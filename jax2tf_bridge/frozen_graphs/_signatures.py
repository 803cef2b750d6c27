"""Freezes functions, or the signatures of a SavedModel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.converting import copy_as_operations
from jax2tf_bridge.errors import SavingError, UnsupportedByTargetError
from jax2tf_bridge.frozen_graphs._freeze import FrozenGraph, GraphPort, freeze_folder
from jax2tf_bridge.saved_model import ArrayEntry, SignatureEntry, read_sidecar
from jax2tf_bridge.saving import SaveOptions, save_functions
from jax2tf_bridge.signatures import (
    ServedArray,
    Signatures,
    export_signatures,
    find_model,
    format_arrays,
    keys_as_words,
    open_params,
)
from jax2tf_bridge.storage import on_disk
from jax2tf_bridge.targets import Target
from shape_poly import Dim, symbolic_shape

_TARGET = replace(Target.converters(), names_lines=True)


@dataclass(frozen=True)
class ModelRuntime:
    """Runtime that models are written for, in the words of messages.

    Attributes:
      name: its name, "TensorFlow.js".
      saver: the function that writes its models, "save_tfjs".
    """

    name: str
    saver: str


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
    source = find_model(signatures, params)
    with (
        reraise_interrupts() as check_interrupts,
        tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary,
    ):
        folder = Path(temporary, "model")
        with nullcontext() if source is None else on_disk(source) as local:
            if local is None:
                entries: Mapping[str, SignatureEntry] = {}
                served = _save_functions(folder, signatures, params, platforms, runtime)
            else:
                served, entries = {}, _copy_model(local, folder, runtime)
            check_interrupts()
            graphs = freeze_folder(folder, runtime.name)
            check_interrupts()
    frozen = {}
    for name, graph in graphs.items():
        entry = entries.get(name)
        inputs, outputs = served.get(name) or (
            _side(graph.inputs, entry.inputs if entry else {}),
            _side(graph.outputs, entry.outputs if entry else {}),
        )
        _check_dtypes(name, inputs, outputs, runtime)
        frozen[name] = FrozenSignature(_in_order(graph, inputs, outputs), inputs, outputs)
    return frozen


def _in_order(graph: FrozenGraph, inputs: Iterable[str], outputs: Iterable[str]) -> FrozenGraph:
    """Puts inputs and outputs in the order of the function, which TensorFlow sorts by name."""
    return replace(
        graph,
        inputs={name: graph.inputs[name] for name in inputs},
        outputs={name: graph.outputs[name] for name in outputs},
    )


def _side(
    ports: Mapping[str, GraphPort], entries: Mapping[str, ArrayEntry]
) -> dict[str, ServedArray]:
    """Describes inputs or outputs; the sidecar knows the names of open sizes."""

    def shape(name: str, sizes: Sequence[int] | None) -> tuple[Dim | None, ...] | None:
        if sizes is None:
            return None
        known = symbolic_shape(entries[name].shape) if name in entries else ()
        names = known if len(known) == len(sizes) else [None] * len(sizes)
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
    known = read_sidecar(source)
    if known is not None:
        bucketed = [n for n, s in known[0].signatures.items() if s.buckets]
        updating = [n for n, s in known[0].signatures.items() if s.updates]
        if bucketed or updating:
            what = "buckets" if bucketed else "updates_params"
            raise SavingError(
                f"The signature {(bucketed or updating)[0]} of the SavedModel has {what}, which "
                f"{runtime.name} does not run. Save the model without them, or pass its functions "
                f"to {runtime.saver}."
            )
    copy_as_operations(source, folder, _TARGET)
    return {} if known is None else known[0].signatures
