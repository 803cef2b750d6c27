"""Makes the graphs of a SavedModel's signatures that TensorFlow.js runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.converting import edit_graph
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import SavingError, UnsupportedByTargetError, format_bullets
from jax2tf_bridge.tfjs._forms import replace_lacking
from jax2tf_bridge.tfjs._graph_model import FrozenGraph, Port
from jax2tf_bridge.to_tensorflow import find_node_dtype, freeze


def freeze_signatures(folder: Path) -> dict[str, FrozenGraph]:
    """Returns the graph of each signature of a SavedModel.

    Args:
      folder: the SavedModel, whose graph is replaced.

    Raises:
      SavingError: there is no signature.
      ModuleError: the installed TensorFlow lacks what this needs.
    """
    with edit_graph(folder, "TensorFlow.js models") as graph:
        replace_lacking(graph.graph_def)
    model = tf.saved_model.load(str(folder))
    if not model.signatures:
        raise SavingError("The SavedModel has no signature. Save it with one.")
    return {name: _freeze(function) for name, function in sorted(model.signatures.items())}


def _freeze(function: Any) -> FrozenGraph:
    frozen = freeze(function)
    names = sorted(function.structured_input_signature[1])
    inputs = {name: _port(tensor) for name, tensor in zip(names, frozen.inputs, strict=True)}
    names = sorted(function.structured_outputs)
    graph = frozen.graph.as_graph_def()
    outputs = {}
    for name, tensor in zip(names, frozen.outputs, strict=True):
        # TensorFlow.js finds outputs by their tensors, so each output gets its own.
        node = graph.node.add(name=f"output/{name}", op="Identity", input=[tensor.name])
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        outputs[name] = _port(tensor, f"{node.name}:0")
    return FrozenGraph(graph, inputs, outputs)


def _port(tensor: Any, name: str | None = None) -> Port:
    shape = tensor.shape
    sizes = None if shape.rank is None else [-1 if size is None else size for size in shape]
    return Port(name or tensor.name, tensor.dtype, sizes)


# Errors.


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


def check_operations(graphs: Mapping[str, FrozenGraph]) -> None:
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
    lines = list(texts)[:_MAX_SHOWN]
    if len(texts) > _MAX_SHOWN:
        lines.append(f"and {len(texts) - _MAX_SHOWN} more")
    operation, line, _ = lacking[0]
    raise UnsupportedByTargetError(
        f"TensorFlow.js has no:{format_bullets(lines)}\nWrite this part of the function with other "
        "operations or dtypes, or save a SavedModel for where TensorFlow is (save).",
        operation=operation,
        source=line,
    )


def _list_lacking(graph: FrozenGraph) -> Iterator[tuple[str, str | None]]:
    """Yields operations that TensorFlow.js lacks, each with its dtype and the user's line."""
    functions = graph.graph.library.function
    for nodes in (graph.graph.node, *(function.node_def for function in functions)):
        for node in nodes:
            line = find_source_line(node.name)
            dtype = find_node_dtype(node, "T") or find_node_dtype(node, "dtype")
            if node.op not in _OPERATIONS:
                yield node.op if dtype is None else f"{node.op} of {dtype.name}", line
            elif dtype in _LACKING_DTYPES or (
                dtype in (tf.uint32, tf.uint64) and node.op in _LACKING_UNSIGNED
            ):
                yield f"{node.op} of {dtype.name}", line
