"""save_tfjs(): functions, or the signatures of a SavedModel, as graph models of TensorFlow.js."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.converting import copy_as_operations
from jax2tf_bridge.errors import Argument, Message, SavingError, UnsupportedByTargetError
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.saving import SaveOptions, format_signature, save_functions
from jax2tf_bridge.signatures import (
    ServedArray,
    Signatures,
    export_signatures,
    find_model,
    keys_as_words,
    open_params,
    served_text,
)
from jax2tf_bridge.storage import AnyPath, as_path, check_free, on_disk, whole_directory
from jax2tf_bridge.targets import Target
from jax2tf_bridge.tfjs._freeze import check_operations, freeze_signatures
from jax2tf_bridge.tfjs._graph_model import FrozenGraph, Port, Quantize, write_graph_models

_TARGET = replace(Target.converters(), names_lines=True)
_MODEL = "model.json"


@dataclass(frozen=True)
class TFJSSignature:
    """Signature of a TensorFlow.js model.

    Attributes:
      file: the name of its JSON file.
      inputs, outputs: the inputs and outputs by name, with the dtypes of the function.
      is_async: whether it has a loop or branch, so that only `executeAsync` and `predictAsync` run
        it.
    """

    file: str
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    is_async: bool = False

    def __str__(self) -> str:
        return f"({served_text(self.inputs)}) -> ({served_text(self.outputs)})"


@dataclass(frozen=True)
class TFJSModel:
    """Models that `save_tfjs` wrote; print it.

    Attributes:
      path: the path of the folder.
      signatures: the signatures by name.
      size: the size of all files in bytes.
      quantize: the dtype of stored weights, or None.
    """

    path: AnyPath
    signatures: Mapping[str, TFJSSignature]
    size: int
    quantize: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the description as values of JSON."""

        def texts(arrays: Mapping[str, ServedArray]) -> dict[str, str]:
            return {name: str(served) for name, served in arrays.items()}

        return {
            "path": str(self.path),
            "size": self.size,
            "quantize": self.quantize,
            "signatures": {
                name: {
                    "file": each.file,
                    "inputs": texts(each.inputs),
                    "outputs": texts(each.outputs),
                    "is_async": each.is_async,
                }
                for name, each in self.signatures.items()
            },
        }

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        for name, signature in self.signatures.items():
            call = ", by executeAsync" if signature.is_async else ""
            text = format_signature(name, signature.inputs, signature.outputs)
            lines.append(f"  {signature.file}{call}: {text}")
        quantized = f", quantised: {self.quantize}" if self.quantize else ""
        return "\n".join([*lines, f"  {self.size / 1e6:.2f} MB{quantized}"])


def save_tfjs(
    path: str | os.PathLike[str],
    signatures: Signatures,
    *,
    params: Any = None,
    quantize: Quantize | None = None,
    platforms: Sequence[str] | None = None,
    overwrite: bool = False,
) -> TFJSModel:
    """Writes graph models of TensorFlow.js, which run in browsers and in Node.

    The folder gets a JSON file and files of weights. With several signatures, each has a JSON file
    of its own; they share the files of equal weights. Open sizes stay open. TensorFlow.js does not
    check requirements on sizes.

    Args:
      path: the folder, which must not exist or must be empty.
      signatures: a function, which becomes "serving_default", or a mapping from signature names to
        functions, as in `save`. Each function is a Signature, a JAX function, a PortableFunction,
        or the path of a .jaxfn file. Or the folder of a SavedModel, to convert all its signatures.
        Only JAX functions need JAX.
      params: the weights, as in `save`.
      quantize: the dtype of stored float32 weights: "float16", "uint16" or "uint8". The integers
        divide the range of each array evenly. TensorFlow.js restores float32 when it loads them.
      platforms: the platforms of JAX functions, as in `export`; the lowering for CPU is used.
      overwrite: whether to replace a model at `path`, on disk only.

    Returns:
      A description of the model: signatures and size. Print it.

    Raises:
      UnsupportedByTargetError: TensorFlow.js lacks an operation or dtype of the function; the text
        has its line.
      SavingError: the signatures or options contradict each other.
      StructureError, ShapeError, DTypeError: the weights do not fit a function.
      FileFormatError: `params` is a file of another format, or is damaged.
      ModuleError: TensorFlow has no operation for an operation of a portable function.
      ExportError: an export fails, as in `export`.
      FileExistsError: `path` exists and may not be replaced.
      OSError: the folder cannot be written; `path` is checked before any work.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature
    >>> params = {"w": np.ones((3, 2), np.float32)}
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> model = save_tfjs(tempfile.mkdtemp() + "/dense", dense, params=params)
    >>> print(model.signatures["serving_default"])
    (x: float32[b,3]) -> (output_0: float32[b,2])
    """
    if quantize not in (None, "float16", "uint16", "uint8"):
        raise SavingError(
            Message(
                Argument("quantize"),
                f' must be "float16", "uint16", "uint8" or None. Got: {quantize!r}.',
            )
        )
    source = find_model(signatures, params)
    check_free(as_path(path), overwrite=overwrite)
    with (
        reraise_interrupts() as check_interrupts,
        tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary,
    ):
        folder = Path(temporary, "model")
        with nullcontext() if source is None else on_disk(source) as local:
            if local is None:
                served = _save_functions(folder, signatures, params, platforms)
            else:
                served = {}
                _copy_model(local, folder)
            check_interrupts()
            graphs = freeze_signatures(folder)
            check_interrupts()
    graphs = {name: _in_order(graph, *served.get(name, ((), ()))) for name, graph in graphs.items()}
    described = _describe(graphs, served)
    check_operations(graphs)
    files = {described[name].file: graph for name, graph in graphs.items()}
    first = next(iter(files))
    with whole_directory(as_path(path), overwrite=overwrite, has=first) as written:
        written.mkdir(exist_ok=True)
        write_graph_models(written, files, quantize)
        size = sum(file.stat().st_size for file in written.iterdir())
    return TFJSModel(as_path(path), described, size, quantize)


def _in_order(graph: FrozenGraph, inputs: Iterable[str], outputs: Iterable[str]) -> FrozenGraph:
    """Puts inputs and outputs in the order of the function, which TensorFlow sorts by name."""
    return replace(
        graph,
        inputs={name: graph.inputs[name] for name in inputs} or graph.inputs,
        outputs={name: graph.outputs[name] for name in outputs} or graph.outputs,
    )


def _describe(
    graphs: Mapping[str, FrozenGraph], served: Mapping[str, Any]
) -> dict[str, TFJSSignature]:
    described = {}
    for name, graph in graphs.items():
        inputs, outputs = served.get(name) or (_side(graph.inputs), _side(graph.outputs))
        _check_dtypes(name, inputs, outputs)
        file = _MODEL if len(graphs) == 1 else f"{name}.json"
        described[name] = TFJSSignature(file, inputs, outputs, graph.has_control_flow)
    return described


def _side(ports: Mapping[str, Port]) -> dict[str, ServedArray]:
    def shape(sizes: Iterable[int]) -> tuple[int | None, ...]:
        return tuple(None if size < 0 else size for size in sizes)

    return {
        name: ServedArray(port.dtype.name, None if port.sizes is None else shape(port.sizes))
        for name, port in ports.items()
    }


_REFUSED = ("int64", "uint64", "float64", "complex128")


def _check_dtypes(
    name: str, inputs: Mapping[str, ServedArray], outputs: Mapping[str, ServedArray]
) -> None:
    """Raises for inputs and outputs whose numbers TensorFlow.js cannot hold."""
    refused = {k: v for k, v in {**inputs, **outputs}.items() if v.dtype in _REFUSED}
    if refused:
        raise UnsupportedByTargetError(
            f"TensorFlow.js has no 64-bit numbers: {served_text(refused)} of the signature {name}. "
            "Cast them to 32 bits in the function.",
            operation=next(iter(refused.values())).dtype,
            source=None,
        )


def _save_functions(
    folder: Path, signatures: Signatures, params: Any, platforms: Sequence[str] | None
) -> dict[str, Any]:
    """Saves functions as a SavedModel without gradients; returns the inputs and outputs."""
    with open_params(params) as weights:
        because = "TensorFlow.js compiles no sizes and fills in no inputs"
        exported = export_signatures(signatures, weights, platforms, _TARGET, because)
        options = SaveOptions(trainable=False, vjp_order=0, warm_up=False, shares_names=True)
        saved = save_functions(folder, exported, keys_as_words(weights), options)
    return {name: (each.inputs, each.outputs) for name, each in saved.signatures.items()}


def _copy_model(source: Path, folder: Path) -> None:
    """Makes a SavedModel with the graph of another in operations, and its variables."""
    known = read_sidecar(source)
    if known is not None:
        bucketed = [n for n, s in known[0].signatures.items() if s.buckets]
        updating = [n for n, s in known[0].signatures.items() if s.updates]
        if bucketed or updating:
            what = "buckets" if bucketed else "updates_params"
            raise SavingError(
                f"The signature {(bucketed or updating)[0]} of the SavedModel has {what}, which "
                "TensorFlow.js does not run. Save the model without them, or pass its functions to "
                "save_tfjs."
            )
    copy_as_operations(source, folder, _TARGET)
