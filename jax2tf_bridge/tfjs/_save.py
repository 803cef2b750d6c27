"""save_tfjs(): functions, or the signatures of a SavedModel, as graph models of TensorFlow.js."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import name_items
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import (
    Argument,
    Message,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.frozen_graphs import FrozenGraph, ModelRuntime, freeze_signatures
from jax2tf_bridge.saving import format_served_signature
from jax2tf_bridge.signatures import ServedArray, Signatures, format_arrays
from jax2tf_bridge.storage import AnyPath, as_path, check_free, whole_directory
from jax2tf_bridge.tfjs._forms import find_kernel
from jax2tf_bridge.tfjs._graph_model import StoredDType, is_graph_model, write_graph_models
from jax2tf_bridge.to_tensorflow import find_node_dtype, list_bodies

_RUNTIME = ModelRuntime("TensorFlow.js", "save_tfjs", find_kernel)
_MODEL = "model.json"
_OPERATIONS = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "All", "Any", "ArgMax", "ArgMin", "Asin"}
    | {"Asinh", "Atan", "Atan2", "Atanh", "AvgPool", "AvgPool3D", "BatchMatMul", "BatchMatMulV2"}
    | {"BatchToSpaceND", "BiasAdd", "BroadcastTo", "Cast", "Ceil", "Complex"}
    | {"ComplexAbs", "Concat", "ConcatV2", "Const", "Conv2D", "Conv2DBackpropInput", "Conv3D"}
    | {"Cos", "Cosh", "Cumprod", "Cumsum", "DepthToSpace", "DepthwiseConv2dNative", "Div"}
    | {"DivNoNan", "Einsum", "Elu", "Equal", "Erf", "Exp", "ExpandDims", "Expm1", "FFT", "Fill"}
    | {"Floor", "FloorDiv", "FloorMod", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}
    | {"FusedDepthwiseConv2dNative", "Gather", "GatherNd", "GatherV2", "Greater", "GreaterEqual"}
    | {"IFFT", "IRFFT", "Identity", "IdentityN", "If", "Imag", "IsFinite", "IsInf", "IsNan"}
    | {"LeakyRelu", "Less", "LessEqual", "LinSpace", "Log", "Log1p", "LogSoftmax", "LogicalAnd"}
    | {"LogicalNot", "LogicalOr", "MatMul", "MatrixBandPart", "Max", "MaxPool", "MaxPool3D"}
    | {"Maximum", "Mean", "Min", "Minimum", "MirrorPad", "Mod", "Mul", "Neg", "NoOp", "NotEqual"}
    | {"OneHot", "OnesLike", "Pack", "Pad", "PadV2", "Placeholder", "Pow", "Prelu", "Prod", "RFFT"}
    | {"Range", "Rank", "Real", "RealDiv", "Reciprocal", "Relu", "Relu6", "Reshape"}
    | {"ResizeBilinear", "ResizeNearestNeighbor", "Reverse", "ReverseV2", "Round", "Rsqrt"}
    | {"ScatterNd", "Select", "SelectV2", "Selu", "Shape", "ShapeN", "Sigmoid", "Sign", "Sin"}
    | {"Sinh", "Size", "Slice", "Softmax", "Softplus", "SpaceToBatchND", "Split", "SplitV", "Sqrt"}
    | {"Square", "SquaredDifference", "Squeeze", "StatelessIf", "StatelessWhile", "StopGradient"}
    | {"StridedSlice", "Sub", "Sum", "Tan", "Tanh", "TensorScatterUpdate", "Tile", "TopKV2"}
    | {"Transpose", "Unpack", "While", "ZerosLike", "_FusedConv2D", "_FusedMatMul"}
)
"""Operations of TensorFlow.js 4.22 that graph models of the bridge may have."""
_MAX_SHOWN = 8
_LACKING_DTYPES = (tf.float64, tf.complex128, tf.int64)
_LACKING_UNSIGNED = frozenset(
    {"ArgMax", "ArgMin", "Cumprod", "Div", "FloorDiv", "FloorMod", "Max", "Min", "Mod", "Pow"}
    | {"Prod", "RealDiv", "TopKV2"}
)
"""Operations in which unsigned integers of 32 bits differ from signed ones."""


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

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    def __str__(self) -> str:
        return f"({format_arrays(self.inputs)}) -> ({format_arrays(self.outputs)})"


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

    def __post_init__(self) -> None:
        name_items(self, signatures="signature")

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
            text = format_served_signature(name, signature.inputs, signature.outputs)
            lines.append(f"  {signature.file}{call}: {text}")
        quantized = f", quantised: {self.quantize}" if self.quantize else ""
        return "\n".join([*lines, f"  {self.size / 1e6:.2f} MB{quantized}"])


def save_tfjs(
    path: str | os.PathLike[str],
    signatures: Signatures,
    *,
    params: Any = None,
    quantize: StoredDType | None = None,
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
    place = as_path(path)
    old = _find_model(place)
    check_free(place, overwrite=overwrite, has=old or _MODEL)
    frozen = freeze_signatures(signatures, params, platforms, _RUNTIME)
    graphs = {name: each.graph for name, each in frozen.items()}
    described = {
        name: TFJSSignature(
            _MODEL if len(frozen) == 1 else f"{name}.json",
            each.inputs,
            each.outputs,
            each.graph.has_control_flow,
        )
        for name, each in frozen.items()
    }
    _check_operations(graphs)
    files = {described[name].file: graph for name, graph in graphs.items()}
    with whole_directory(place, overwrite=overwrite, has=old or next(iter(files))) as written:
        written.mkdir(exist_ok=True)
        write_graph_models(written, files, quantize)
        size = sum(file.stat().st_size for file in written.iterdir())
    return TFJSModel(place, described, size, quantize)


def _find_model(folder: AnyPath) -> str | None:
    """Returns the name of the JSON file of a model that a folder has; None if there is none.

    The names are those of its signatures, which may be others than the new ones.
    """
    files = sorted(folder.glob("*.json")) if isinstance(folder, Path) else ()
    return next((file.name for file in files if is_graph_model(file)), None)


def _check_operations(graphs: Mapping[str, FrozenGraph]) -> None:
    """Raises for operations and dtypes that TensorFlow.js lacks, with the user's lines.

    Raises:
      UnsupportedByTargetError: there are some.
    """
    lacking = [
        (operation, line, name)
        for name, graph in graphs.items()
        for operation, line in _list_lacking(graph)
    ]
    if not lacking:
        return
    texts = dict.fromkeys(
        f"{operation}{f' at {line}' if line else ''}"
        f"{f' (signature {name})' if len(graphs) > 1 else ''}"
        for operation, line, name in lacking
    )
    lines = format_bullets([*texts], _MAX_SHOWN)
    operation, line, _ = lacking[0]
    raise UnsupportedByTargetError(
        f"TensorFlow.js has no:{lines}\nWrite this part of the function with other "
        "operations or dtypes, or save a SavedModel for where TensorFlow is (save).",
        operation=operation,
        source=line,
    )


def _list_lacking(graph: FrozenGraph) -> Iterator[tuple[str, str | None]]:
    """Yields operations that TensorFlow.js lacks, each with its dtype and the user's line."""
    for nodes in list_bodies(graph.graph):
        for node in nodes:
            line = find_source_line(node.name)
            dtype = find_node_dtype(node, "T") or find_node_dtype(node, "dtype")
            if node.op not in _OPERATIONS:
                yield node.op if dtype is None else f"{node.op} of {dtype.name}", line
            elif (
                dtype in _LACKING_DTYPES
                or (dtype in (tf.uint32, tf.uint64) and node.op in _LACKING_UNSIGNED)
                or (dtype == tf.int32 and node.op == "Conv2D")
            ):
                yield f"{node.op} of {dtype.name}", line
