"""Forms of operations that move elements, for dtypes that LiteRT lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from jax2tf_bridge.litert._forms import SCATTERS, Form
from jax2tf_bridge.to_tensorflow import find_op_definition

_MOVES = frozenset(
    {"GatherNd", "GatherV2", "Pad", "PadV2", "ReverseV2", "ScatterNd", "TensorScatterAdd"}
    | {"TensorScatterUpdate", "Tile", "Transpose"}
)
_SUMS = frozenset({"Cumsum", "Prod", "Sum"})
_FOR_BYTES = _MOVES | _SUMS | {"ArgMax", "ArgMin", "Max", "Min", "SelectV2", "Slice"}
_FOR_BYTES |= {"TensorScatterMax", "TensorScatterMin"}
_FOR_FLOATS = _FOR_BYTES | {
    *("Add", "AddN", "AvgPool", "BiasAdd", "BroadcastTo", "ConcatV2", "Conv2D"),
    *("Conv2DBackpropInput", "Conv3D", "DepthwiseConv2dNative", "Einsum", "Elu", "Fill"),
    *("FloorDiv", "FloorMod", "IsInf", "IsNan", "LeakyRelu", "LogSoftmax", "MaxPool", "Mean"),
    *("MirrorPad", "Pack", "Reciprocal", "Relu", "Relu6", "Round", "Select", "Sign"),
    *("Softmax", "Softplus", "SquaredDifference", "StridedSlice"),
    *("UnsortedSegmentSum",),
}
_AS_BITS = frozenset({"BroadcastTo", "GatherV2"})
"""Operations that the converter moves before casts, where they lack the dtype."""

_WIDE: Mapping[tf.DType, tuple[tf.DType, frozenset[str]]] = MappingProxyType(
    {
        tf.uint32: (tf.int32, _MOVES | _SUMS),
        tf.uint64: (tf.int64, _MOVES | _SUMS | {"SelectV2", "Slice", "StridedSlice", "ConcatV2"}),
        **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16), (tf.int32, _FOR_BYTES)),
        **dict.fromkeys((tf.float16, tf.bfloat16), (tf.float32, _FOR_FLOATS)),
    }
)
"""Maps dtypes to the dtype that replaces them, and the operations that lack them."""


def moving_form(node: Any) -> Form | None:
    """Returns the form of a node of a GraphDef; None if it needs none, or none exists."""
    data = "Tparams" if "Tparams" in node.attr else "T"
    enum = node.attr[data].type if data in node.attr else 0
    dtype = tf.as_dtype(enum) if enum else None
    if dtype is None or dtype not in _WIDE:
        return None
    wide, operations = _WIDE[dtype]
    if (dtype.is_floating or dtype == tf.uint16) and node.op in _AS_BITS:
        wide = tf.int16
    # The list of operations in a SavedModel omits operations that only occur in loops.
    definition = find_op_definition(node.op) if node.op in operations else None
    if definition is None or len(definition.output_arg) != 1:
        return None
    function = getattr(tf.raw_ops, node.op)
    (output,) = definition.output_arg
    defaults = {each.name: each.default_value for each in definition.attr}

    def attribute(name: str) -> Any:
        # A SavedModel omits attributes with default values.
        return node.attr[name] if name in node.attr else defaults[name]

    # Python's functions use other names for some inputs, in the same order.
    parameters = list(inspect.signature(function).parameters)
    names = {each.name: parameters[i] for i, each in enumerate(definition.input_arg)}
    others = parameters[len(names) :]
    attributes = {name: _value(node.attr[name]) for name in others if name in node.attr}
    inputs = tuple(_inputs(attribute, definition))
    there, back = _conversions(dtype, wide)

    def kernel(*tensors: tf.Tensor) -> tf.Tensor:
        left = iter(tensors)
        given: dict[str, Any] = {}
        for argument in definition.input_arg:
            convert = there if argument.type_attr == data else tf.identity
            count = node.attr[argument.number_attr].i if argument.number_attr else 0
            operands = [convert(next(left)) for _ in range(count or 1)]
            given[names[argument.name]] = operands if count else operands[0]
        scatter = SCATTERS.get(node.op)
        result = scatter(*given.values()) if scatter else function(**given, **attributes)
        return back(result) if output.type_attr == data else result

    result = attribute(output.type_attr).type if output.type_attr else output.type
    return Form(kernel, inputs, tf.as_dtype(result))


Convert = Callable[[tf.Tensor], tf.Tensor]


def _conversions(dtype: tf.DType, wide: tf.DType) -> tuple[Convert, Convert]:
    """Returns functions that convert to the replacement of a dtype, and back."""
    if dtype.size == wide.size:
        return lambda x: tf.bitcast(x, wide), lambda x: tf.bitcast(x, dtype)
    return lambda x: tf.cast(x, wide), lambda x: tf.cast(x, dtype)


def _inputs(attribute: Callable[[str], Any], definition: Any) -> Iterator[tf.DType]:
    for argument in definition.input_arg:
        enum = attribute(argument.type_attr).type if argument.type_attr else argument.type
        count = attribute(argument.number_attr).i if argument.number_attr else 1
        yield from [tf.as_dtype(enum)] * count


def _value(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    value = getattr(attribute, kind)
    if kind == "list":
        return next((list(values) for _, values in value.ListFields()), [])
    return tf.as_dtype(value) if kind == "type" else value
