"""Replaces operations that LiteRT lacks by calls of functions of its built-in operations.

Nothing else rewrites a finished graph. LiteRT lacks operations and dtypes of TensorFlow, not of
StableHLO, so a pass over StableHLO would not see what emitters, preprocess functions and the
gradients of TensorFlow make. Emitters could not do it either: `save_litert` also reads SavedModels
without StableHLO, such as those that the bridge saves without XLA.

A node has a kernel of its own, or is computed in another dtype: narrow integers in 32 bits,
unsigned ones as signed ones, and 16-bit floats in 32 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.emitters import copy
from jax2tf_bridge.litert._kernels import (
    CASTS,
    KERNELS,
    SCATTERS,
    compute_in,
    convert,
    correlate,
    multiply_int32,
    multiply_row,
    reshape_to_open_size,
    squeeze_by_reshape,
    update_slice,
)
from jax2tf_bridge.to_tensorflow import (
    Form,
    FormFunctions,
    Kernel,
    find_attribute,
    find_constant,
    find_maker,
    find_node_dtype,
    find_op_definition,
    get_dynamic_update_slice,
    list_arguments,
    list_bodies,
    make_form,
    remove_operations,
    run_node,
)

_REPLACEMENTS: Mapping[tf.DType, tf.DType] = MappingProxyType(
    {
        tf.uint32: tf.int32,
        tf.uint64: tf.int64,
        **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32),
        **dict.fromkeys((tf.float16, tf.bfloat16), tf.float32),
    }
)
"""The dtype in which to run operations that lack another one."""
_MOVES = frozenset(
    {"Cumsum", "GatherNd", "GatherV2", "Pad", "PadV2", "Prod", "ReverseV2", "ScatterNd", "Sum"}
    | {"TensorScatterAdd", "TensorScatterUpdate", "Tile", "Transpose"}
)
_OF_32_BITS = _MOVES | {"UnsortedSegmentProd", "UnsortedSegmentSum"}
_OF_BYTES = _OF_32_BITS | {
    *("Abs", "AddV2", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseOr", "Equal", "FloorDiv"),
    *("FloorMod", "Greater", "GreaterEqual", "Invert", "LeftShift", "Less", "LessEqual", "Max"),
    *("Maximum", "Min", "Minimum", "Mul", "Neg", "NotEqual", "RightShift", "SelectV2", "Sign"),
    *("Slice", "Sub", "TensorScatterMax", "TensorScatterMin", "TruncateDiv", "TruncateMod"),
}
_LACKING: Mapping[tf.DType, frozenset[str]] = MappingProxyType(
    {
        tf.uint32: _OF_32_BITS,
        tf.uint64: _MOVES | {"ConcatV2", "SelectV2", "Slice", "StridedSlice"},
        **dict.fromkeys((tf.uint8, tf.int16, tf.uint16), _OF_BYTES),
        tf.int8: _OF_BYTES - {"Slice", "Transpose"},
    }
)
"""Operations that LiteRT lacks for some integers, by dtype."""
_WITH_16_BITS = frozenset(
    {"Bitcast", "Cast", "EnsureShape", "Enter", "Exit", "ExpandDims", "Identity", "NextIteration"}
    | {"PreventGradient", "Rank", "Reshape", "Shape", "Size", "Squeeze", "StopGradient"}
)
"""The only operations that LiteRT has for floats of 16 bits."""
_AS_BITS = frozenset({"BroadcastTo", "GatherV2"})
"""Operations that move numbers of 16 bits as int16.

In a wider dtype, the converter would move them before the cast, to a dtype that they lack.
"""
_ORDERED = frozenset({"Div", "FloorDiv", "RealDiv", "Reciprocal", "Sub", "Xdivy"})
"""Elementwise operations whose operands the converter exchanges behind a transpose."""
_ON_ELEMENTS = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh"}
    | {"BroadcastTo", "Cast", "Ceil", "CheckNumerics", "Cos", "Cosh", "Div", "Elu"}
    | {"EnsureShape", "Erf", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Identity"}
    | {"IdentityN", "Invert", "LeakyRelu", "LeftShift", "Log", "Log1p", "LogicalNot", "Maximum"}
    | {"Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6"}
    | {"RightShift", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin"}
    | {"Sinh", "Softplus", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan", "Tanh"}
    | {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "LogicalAnd", "LogicalOr", "TruncateDiv"}
    | {"TruncateMod"}
)
"""Elementwise operations. The converter may already have moved a transpose behind them.

Bitcast is none of them. LiteRT 2.21 may overwrite its result if a reshape of it is used as well:
both share memory, and an operation on the reshape works in place.
"""
_IDENTITIES = ("Identity", "IdentityN")
_LOCKS = ("MutexV2", "MutexLock", "ConsumeMutexLock")
"""Locks of a model's weights. LiteRT has none, and runs one call at a time."""
_LOOPS = ("StatelessWhile", "While")
_SOURCES = ("Const", "ReadVariableOp")


def replace_lacking(graph: Any) -> None:
    """Replaces operations that LiteRT lacks by their forms, if they have one.

    Args:
      graph: a GraphDef, which is changed in place.
    """
    remove_operations(graph, _LOCKS)
    functions = FormFunctions(graph, "litert")
    bodies = list_bodies(graph)
    loops = {node.attr["body"].func.name for nodes in bodies for node in nodes if node.op in _LOOPS}
    constants = _find_constants(graph)
    for nodes, names in zip(bodies, constants, strict=True):
        _replace_nodes(nodes, names, functions)
    for function in graph.library.function:
        if function.signature.name in loops:
            _copy_moved_variables(function, functions)
    graph.library.function.extend(functions.definitions)


def _find_constants(graph: Any) -> list[set[str]]:
    """Finds nodes and arguments that may be constants, for each of `list_bodies`.

    The converter computes what depends on weights and constants only. An argument may be one if
    some call passes one.
    """
    bodies = list_bodies(graph)
    library = graph.library.function
    arguments = {f.signature.name: [a.name for a in f.signature.input_arg] for f in library}
    constants: list[set[str]] = [set() for _ in bodies]
    of_function = dict(zip(arguments, constants[1:], strict=True))
    total = -1
    while total != (total := sum(map(len, constants))):
        for nodes, names in zip(bodies, constants, strict=True):
            for node in nodes:
                operands = [x.partition(":")[0] for x in node.input if not x.startswith("^")]
                called = [name for name in _list_called(node) if name in arguments]
                for name in called:
                    count = len(arguments[name])  # a condition comes before the arguments
                    passed = zip(operands[-count:], arguments[name], strict=False)
                    of_function[name].update(a for operand, a in passed if operand in names)
                is_computed = bool(operands) and names.issuperset(operands)
                if not called and (is_computed or node.op in _SOURCES):
                    names.add(node.name)
    return constants


def _list_called(node: Any) -> list[str]:
    """Lists the functions that a node calls, as branches and bodies too."""
    values = node.attr.values()
    return [f.name for value in values for f in (value.func, *value.list.func) if f.name]


def _replace_nodes(nodes: Any, constants: Collection[str], functions: FormFunctions) -> None:
    makers = {node.name: node for node in nodes}
    matrices = [node.name for node in nodes if _is_transposed_matrix(node, makers, constants)]
    of_matrices = _find_followers(nodes, matrices)
    transposes = [node.name for node in nodes if node.op == "Transpose"]
    transposed = of_matrices | _find_followers(nodes, transposes)
    for node in nodes:
        definition = find_op_definition(node.op)
        if definition is None or len(definition.output_arg) != 1:
            continue
        is_transposed = node.name in transposed
        kernel = None if definition.output_arg[0].number_attr else _find_kernel(node, makers)
        if node.op == "Reshape" and node.input[0].partition(":")[0] in {*matrices, *of_matrices}:
            kernel = _compute_size(node, makers) or kernel
        # The attributes of the node, which are in the key, do not have a kernel's constants.
        keywords = repr(getattr(kernel, "keywords", None))
        if is_transposed:
            kernel = _keep_order(node, kernel)
        if kernel is not None:
            functions.replace(node, make_form(node, kernel), is_transposed, keywords)


def _is_transposed_matrix(node: Any, makers: Mapping[str, Any], constants: Collection[str]) -> bool:
    """Returns whether the converter has a transpose of a matrix for a node.

    It computes the product of a constant and a matrix as the transpose of another product.
    """
    if node.op == "Transpose":
        order = find_constant(node.input[1], makers)
        return order is not None and len(order) == 2
    return node.op == "MatMul" and node.input[0].partition(":")[0] in constants


def _find_followers(nodes: Any, names: Iterable[str]) -> set[str]:
    """Returns the elementwise nodes that follow named ones, directly or after each other."""
    readers: dict[str, set[str]] = {}
    for node in nodes:
        if node.op in _ON_ELEMENTS:
            for tensor in node.input:
                readers.setdefault(tensor.partition(":")[0], set()).add(node.name)
    waiting = list(names)
    followers: set[str] = set()
    while waiting:
        new = readers.get(waiting.pop(), set()) - followers
        followers |= new
        waiting += new
    return followers


def _compute_size(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    """Computes the open size of a reshape of a transposed matrix, when the model runs.

    With -1 in the shape, the converter of TensorFlow 2.21 exchanges the reshape and a transpose
    behind it, and takes -1 for the size.
    """
    shape = find_constant(node.input[1], makers)
    if shape is None or -1 not in shape:
        return None
    return functools.partial(reshape_to_open_size, sizes=shape.tolist())


def _keep_order(node: Any, kernel: Kernel | None) -> Kernel | None:
    """Keeps the converter of TensorFlow 2.21 from moving a transpose behind an operation.

    It would put a constant second: `2 - x.T` became `(x - 2).T`.
    """
    if kernel is None and node.op in _ORDERED:
        kernel = _compute_node_in(find_node_dtype(node, "T"), node, "T")
    # The operands of BroadcastTo are an array and a shape.
    return kernel if kernel is None or node.op == "BroadcastTo" else _add_axis(kernel)


def _add_axis(kernel: Kernel) -> Kernel:
    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.squeeze(kernel(*(tf.expand_dims(tensor, -1) for tensor in tensors)), -1)

    return call


def _find_kernel(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    data = "Tparams" if "Tparams" in node.attr else "T"
    dtype = find_node_dtype(node, data)
    if node.op in _SPECIAL:
        kernel = _SPECIAL[node.op](node, makers)
    else:
        kernel = KERNELS.get(dtype, {}).get(node.op)
    if kernel is not None or dtype is None or dtype not in _REPLACEMENTS:
        return kernel
    replacement = _REPLACEMENTS[dtype]
    if node.op in _AS_BITS and dtype.size == 2 and dtype != tf.int16:
        replacement = tf.int16
    is_lacking = node.op in _LACKING.get(dtype, ()) or (
        dtype.is_floating and node.op not in _WITH_16_BITS
    )
    return _compute_node_in(replacement, node, data) if is_lacking else None


def _copy_moved_variables(function: Any, functions: FormFunctions) -> None:
    """Inserts copies of loop variables that a loop's body returns as other variables.

    LiteRT writes the results of a body into its variables one by one, so a variable that is also a
    result may already be overwritten.
    """
    arguments = {each.name: i for i, each in enumerate(function.signature.input_arg)}
    makers = {node.name: node for node in function.node_def}
    for place, result in enumerate(function.signature.output_arg):
        source = function.ret[result.name]
        while ":" in source and (maker := makers[source.partition(":")[0]]).op in _IDENTITIES:
            source = maker.input[int(source.rpartition(":")[2])]
        dtype = tf.as_dtype(result.type)
        within = _REPLACEMENTS.get(dtype, dtype)
        is_copied = within in (tf.bool, tf.float32, tf.int32, tf.int64)
        if not is_copied or arguments.get(source, place) == place:
            continue
        # LiteRT's converter would remove an identity.
        form = Form(compute_in(within, copy), (dtype,), "output")
        copied = function.node_def.add(name=f"litert_copy_{place}", input=[source])
        copied.op = functions.name_of(("copy", result.type), form)
        function.ret[result.name] = f"{copied.name}:{form.output}:0"


def _compute_node_in(dtype: tf.DType, node: Any, data: str) -> Kernel:
    """Makes a kernel that runs a node's operation in another dtype for the attribute `data`."""
    own = SCATTERS.get(node.op) or KERNELS.get(dtype, {}).get(node.op)

    def kernel(*tensors: tf.Tensor) -> tf.Tensor:
        definition = find_op_definition(node.op)
        operands = [
            convert(tensor, dtype) if argument.type_attr == data else tensor
            for argument, tensor in zip(list_arguments(node, definition), tensors, strict=True)
        ]
        result = run_node(node, operands, **{data: dtype}) if own is None else own(*operands)
        is_data = definition.output_arg[0].type_attr == data
        return convert(result, find_node_dtype(node, data)) if is_data else result

    return kernel


# Operations whose kernels depend on attributes and on the operations before them.


def _cast(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    source, result = find_node_dtype(node, "SrcT"), find_node_dtype(node, "DstT")
    return CASTS.get((source if source == tf.uint64 else None, result))


def _filter_gradient(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    padding = find_attribute(node, "padding").s.decode()
    strides = list(find_attribute(node, "strides").list.i)
    dilations = set(find_attribute(node, "dilations").list.i)
    shape = find_constant(node.input[1], makers)
    if shape is None or padding == "EXPLICIT" or dilations - {1}:
        return None
    if find_node_dtype(node, "T") != tf.float32 or find_attribute(node, "data_format").s == b"NCHW":
        return None
    sizes = shape[:2].tolist()
    return functools.partial(correlate, sizes=sizes, strides=strides[1:3], padding=padding)


def _erfc(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    """Returns the kernel of erfc; None for erfc(x / sqrt(2)) in float32, which becomes a GELU."""
    dtype = find_node_dtype(node, "T")
    if dtype != tf.float32 or _is_scaled(node.input[0], makers, np.sqrt(0.5)):
        return None
    return KERNELS[dtype][node.op]


def _is_scaled(name: str, makers: Mapping[str, Any], factor: float) -> bool:
    """Returns whether a tensor is a product with `factor` or its negative."""
    product = find_maker(name, makers, "Mul")
    operands = () if product is None else (find_constant(each, makers) for each in product.input)
    return any(x is not None and np.allclose(np.abs(x), factor, rtol=1e-4) for x in operands)


def _product(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    dtype = find_node_dtype(node, "T")
    in_batches = node.op != "MatMul"
    flags = ("adj_x", "adj_y") if in_batches else ("transpose_a", "transpose_b")
    left, right = (find_attribute(node, name).b for name in flags)
    if dtype == tf.float32 and not in_batches and _is_row(node.input[0], makers, int(left)):
        return functools.partial(multiply_row, left=left, right=right)
    if dtype != tf.int32:
        return None
    return functools.partial(multiply_int32, in_batches=in_batches, left=left, right=right)


def _is_row(name: str, makers: Mapping[str, Any], axis: int) -> bool:
    """Returns whether a tensor is a vector that was reshaped to a matrix, with a size of 1."""
    reshape = find_maker(name, makers, "Reshape")
    shape = None if reshape is None else find_constant(reshape.input[1], makers)
    is_row = shape is not None and len(shape) == 2 and shape[axis] == 1
    return is_row or find_maker(name, makers, "ExpandDims") is not None


def _squeeze(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    """Replaces a squeeze of a transpose, which the converter itself rejects."""
    axes = list(find_attribute(node, "squeeze_dims").list.i)
    if not axes or find_maker(node.input[0], makers, "Transpose") is None:
        return None
    return functools.partial(squeeze_by_reshape, axes=axes)


def _update(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    write = get_dynamic_update_slice()
    masks = ("begin_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    has_masks = any(find_attribute(node, mask).i for mask in masks)
    if write is None or find_node_dtype(node, "Index") != tf.int32 or has_masks:
        return None
    return functools.partial(update_slice, write)


_SPECIAL: Mapping[str, Callable[[Any, Mapping[str, Any]], Kernel | None]] = MappingProxyType(
    {
        "BatchMatMulV2": _product,
        "Cast": _cast,
        "Conv2DBackpropFilter": _filter_gradient,
        "Erfc": _erfc,
        "MatMul": _product,
        "Squeeze": _squeeze,
        "TensorStridedSliceUpdate": _update,
    }
)
