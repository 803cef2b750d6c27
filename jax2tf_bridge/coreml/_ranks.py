"""Merges axes of arrays with more than five, the most that Core ML has.

The leading axes of such an array become one axis, in the same row-major order, and the last four
stay. An operation along one axis sees the array as (axes before, axis, axes behind), by a reshape.
Elementwise operations and products of matrices compute with the merged arrays as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.coreml._loops import BRANCHES, LOOPS, add_constant
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import UnsupportedByTargetError
from jax2tf_bridge.to_tensorflow import (
    FormFunctions,
    Kernel,
    find_attribute,
    find_constant,
    make_form,
    run_node,
    tf_compat,
)

MAX_AXES = 5
_Size: TypeAlias = "int | tf.Tensor"
_NUMBERS: Iterator[int] = itertools.count()


def merge_axes(graph: Any, inputs: Mapping[str, tf.TensorShape]) -> bool:
    """Merges axes of all arrays with more than five; returns whether there are any.

    Args:
      graph: a GraphDef whose only calls of functions are loops and branches. It is changed in
        place: operations on such arrays become calls of functions, which are to be inlined.
      inputs: the shapes of the placeholders by name.

    Raises:
      UnsupportedByTargetError: such an array is an operand of an operation that cannot take it
        apart, or has too many unknown sizes.
    """
    for node in graph.node:
        if node.op == "Placeholder":
            node.attr["shape"].shape.CopyFrom(inputs[node.name].as_proto())
    merger = _Merger(graph)
    merger.merge_graph()
    graph.library.function.extend(merger.functions.definitions)
    return merger.is_changed


class _Merger:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._library = {function.signature.name: function for function in graph.library.function}
        self.functions = FormFunctions(graph, f"merged_{next(_NUMBERS)}")
        self.is_changed = False

    def merge_graph(self) -> None:
        shapes = _infer_shapes(self._graph)
        names = {name.removesuffix(":0"): shape for name, shape in shapes.items()}
        self._merge(self._graph.node, {**shapes, **names})

    def _copy_function(self, reference: Any) -> Any:
        """Returns a copy of a function, and makes an attribute of a node name it."""
        function = self._graph.library.function.add()
        function.CopyFrom(self._library[reference.func.name])
        # TensorFlow keeps functions by name until the process ends.
        reference.func.name += f"_merged_{next(_NUMBERS)}"
        function.signature.name = reference.func.name
        self._library[reference.func.name] = function
        return function

    def _merge_function(self, function: Any, shapes: Mapping[str, tf.TensorShape]) -> None:
        function.arg_attr.clear()
        self._merge(function.node_def, shapes)

    def _infer_function(
        self, function: Any, arguments: Sequence[tf.TensorShape]
    ) -> dict[str, tf.TensorShape]:
        """Returns the shapes of a function's tensors, by their names in the function."""
        definition, names = tf_compat.function_to_graph(function, arguments)
        definition.library.CopyFrom(self._graph.library)
        shapes = _infer_shapes(definition)
        return {inner: shapes[name] for inner, name in names.items() if name in shapes}

    def _merge(self, nodes: Any, shapes: Mapping[str, tf.TensorShape]) -> None:
        makers = {node.name: node for node in nodes}
        outputs: dict[str, list[tf.TensorShape]] = {}
        for name, shape in shapes.items():
            if ":" in name:
                outputs.setdefault(name.partition(":")[0], []).append(shape)
        for node in nodes:
            operands = [shapes[name] for name in node.input if name[0] != "^"]
            results: Sequence[tf.TensorShape] = outputs.get(node.name, [])
            if node.op in LOOPS:
                results = self._merge_loop(node, operands, results)
                _set_output_shapes(node, results)
            elif node.op in BRANCHES:
                for attribute in ("then_branch", "else_branch"):
                    branch = self._copy_function(node.attr[attribute])
                    self._merge_function(branch, self._infer_function(branch, operands[1:]))
                _set_output_shapes(node, results)
            elif any(map(_has_many_axes, (*operands, *results))):
                self.is_changed = True
                self._replace(node, operands, results, makers)

    def _merge_loop(
        self, loop: Any, operands: Sequence[tf.TensorShape], results: Sequence[tf.TensorShape]
    ) -> Sequence[tf.TensorShape]:
        """Merges the axes in a loop's functions; returns the shapes of its values.

        coremltools refuses a loop if it cannot infer that the body keeps a shape. So the body
        reshapes values with many axes to the known sizes with which the loop begins. StableHLO's
        loops never change them.
        """
        condition, body = (self._copy_function(loop.attr[name]) for name in ("cond", "body"))
        shapes = self._infer_function(body, operands)
        after = [shapes[body.ret[each.name]] for each in body.signature.output_arg]
        kept = list(operands)
        if not all(map(_is_same, operands, after)):
            for place, operand in enumerate(operands):
                if not (_has_many_axes(operand) and operand.is_fully_defined()):
                    kept[place] = results[place]
                elif not after[place].is_fully_defined():
                    _reshape_result(body, place, operand.as_list())
            shapes = self._infer_function(body, kept)
        self._merge_function(condition, self._infer_function(condition, kept))
        self._merge_function(body, shapes)
        return kept

    def _replace(
        self,
        node: Any,
        operands: Sequence[tf.TensorShape],
        results: Sequence[tf.TensorShape],
        makers: Mapping[str, Any],
    ) -> None:
        if node.op == "Const":
            array = tf.make_ndarray(node.attr["value"].tensor)
            proto = tf.make_tensor_proto(array.reshape(_merge(array.shape)))
            node.attr["value"].tensor.CopyFrom(proto)
        elif node.op not in _SAME_ORDER:
            if node.op not in _KERNELS:
                raise _refuse(node, [*operands, *results])
            kernel = _KERNELS[node.op](_Operation(node, operands, results[0], makers))
            if kernel is not None:
                self.functions.replace(node, make_form(node, _in_scope(kernel)), node.name)


def _in_scope(kernel: Kernel) -> Kernel:
    """Names a kernel's operations so that none has the name of an operation beside the node."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("merged"):
            return kernel(*tensors)

    return call


@dataclass(frozen=True)
class _Operation:
    """Operation on arrays with many axes.

    Attributes:
      node: the node.
      operands, result: the shapes of the arrays, with all of their axes.
      makers: the nodes of its graph by name.
    """

    node: Any
    operands: Sequence[tf.TensorShape]
    result: tf.TensorShape
    makers: Mapping[str, Any]

    def find_constant(self, place: int) -> np.ndarray[Any, Any] | None:
        """Returns the value of an operand; None if it is computed."""
        return find_constant(self.node.input[place], self.makers)

    def read_constant(self, place: int) -> np.ndarray[Any, Any]:
        """Returns the value of an operand.

        Raises:
          UnsupportedByTargetError: it is computed.
        """
        array = self.find_constant(place)
        if array is None:
            raise self.refuse()
        return array

    def refuse(self) -> UnsupportedByTargetError:
        """Makes the error of an operation that has no form."""
        return _refuse(self.node, [*self.operands, self.result])

    def find_sizes(self, place: int, x: tf.Tensor) -> list[_Size]:
        """Returns the size of each axis of an operand.

        Args:
          place: the number of the operand.
          x: the operand, with merged axes.

        Raises:
          UnsupportedByTargetError: several of the merged sizes are unknown.
        """
        sizes = self.operands[place].as_list()
        computed: list[_Size] = []
        for axis, size in enumerate(sizes, min(0, MAX_AXES - len(sizes))):
            if size is not None:
                computed.append(size)
            elif axis > 0:
                computed.append(tf.shape(x)[axis])
            else:
                merged = sizes[: max(1, len(sizes) - MAX_AXES + 1)]
                if merged.count(None) > 1:
                    raise self.refuse()
                known = math.prod(size for size in merged if size is not None)
                computed.append(tf.shape(x)[0] // known)
        return computed


def _store(x: tf.Tensor, sizes: Sequence[_Size]) -> tf.Tensor:
    """Merges the axes of an array of these sizes."""
    return _reshape_to(x, _merge(sizes))


def _along(x: tf.Tensor, sizes: Sequence[_Size], axis: int) -> tf.Tensor:
    """Returns (axes before, axis, axes behind) of an array."""
    before, behind = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
    return _reshape_to(x, [before, sizes[axis], behind])


def _reshape_to(x: tf.Tensor, sizes: Sequence[_Size]) -> tf.Tensor:
    """Reshapes an array to sizes, of which one may be -1."""
    computed = [place for place, size in enumerate(sizes) if not isinstance(size, int)]
    if len(computed) == 1 and all(size != -1 for size in sizes if isinstance(size, int)):
        sizes = [-1 if place in computed else size for place, size in enumerate(sizes)]
        computed = []
    return tf.reshape(x, tf.stack(sizes) if computed else sizes)


def _has_many_axes(shape: tf.TensorShape) -> bool:
    return shape.rank is not None and shape.rank > MAX_AXES


def _merge(sizes: Sequence[_Size]) -> list[_Size]:
    """Returns the sizes with the leading ones merged, so that there are at most five."""
    n_leading = max(len(sizes) - MAX_AXES + 1, 1)
    return [math.prod(sizes[:n_leading]), *sizes[n_leading:]] if sizes else []


def _merge_shape(shape: tf.TensorShape) -> tf.TensorShape:
    if not _has_many_axes(shape):
        return shape
    n_leading = len(shape) - MAX_AXES + 1
    return tf.TensorShape([shape[:n_leading].num_elements(), *shape[n_leading:]])


def _merge_vector(shape: tf.Tensor, rank: int) -> tf.Tensor:
    """Merges the leading sizes of a computed shape, one of which may be -1."""
    n_leading = rank - MAX_AXES + 1
    leading = tf.maximum(tf.reduce_prod(shape[:n_leading], keepdims=True), -1)
    return tf.concat([leading, shape[n_leading:]], 0)


def _is_same(left: tf.TensorShape, right: tf.TensorShape) -> bool:
    return None not in (left.rank, right.rank) and left.as_list() == right.as_list()


def _set_output_shapes(node: Any, shapes: Sequence[tf.TensorShape]) -> None:
    del node.attr["output_shapes"].list.shape[:]
    node.attr["output_shapes"].list.shape.extend(_merge_shape(each).as_proto() for each in shapes)


def _reshape_result(function: Any, place: int, sizes: Sequence[int]) -> None:
    """Adds a reshape of a function's result, with the sizes of all of its axes."""
    result = function.signature.output_arg[place]
    name = f"reshaped_{result.name}"
    shape = add_constant(function.node_def, f"{name}/shape", sizes)
    node = function.node_def.add(name=name, op="Reshape")
    node.input[:] = [function.ret[result.name], f"{shape}:output:0"]
    node.attr["T"].type = result.type
    node.attr["Tshape"].type = tf.int32.as_datatype_enum
    function.ret[result.name] = f"{name}:output:0"


def _infer_shapes(graph: Any) -> dict[str, tf.TensorShape]:
    """Returns the shapes of all tensors of a GraphDef by name."""
    with tf.Graph().as_default() as imported:
        tf.graph_util.import_graph_def(graph, name="")
    return {
        tensor.name: tensor.shape
        for operation in imported.get_operations()
        for tensor in operation.outputs
    }


def _refuse(node: Any, shapes: Sequence[tf.TensorShape]) -> UnsupportedByTargetError:
    line = find_source_line(node.name)
    place = f" at {line}" if line else ""
    texts = " and ".join(str(shape) for shape in shapes if _has_many_axes(shape))
    return UnsupportedByTargetError(
        f"Core ML has arrays of at most {MAX_AXES} axes, and {node.op}{place} has {texts}. Reshape "
        "its operands to fewer axes, or fix the sizes (sizes).",
        operation=node.op,
        source=line,
    )


# Operations along axes.


def _pack(op: _Operation) -> Kernel:
    axis = find_attribute(op.node, "axis").i % len(op.result)
    if axis == 0:
        return lambda *parts: tf.concat(parts, 0)

    def call(*parts: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, parts[0])
        flat = [math.prod(sizes[:axis]), math.prod(sizes[axis:])]
        joined = tf.stack([_reshape_to(part, flat) for part in parts], 1)
        return _store(joined, [*sizes[:axis], len(parts), *sizes[axis:]])

    return call


def _concat(op: _Operation) -> Kernel:
    axis = int(op.read_constant(-1)) % len(op.result)

    def call(*operands: tf.Tensor) -> tf.Tensor:
        parts = operands[:-1]
        sizes = [op.find_sizes(place, part) for place, part in enumerate(parts)]
        views = [_along(part, size, axis) for part, size in zip(parts, sizes, strict=True)]
        total = sum(size[axis] for size in sizes)
        return _store(tf.concat(views, 1), [*sizes[0][:axis], total, *sizes[0][axis + 1 :]])

    return call


def _transpose(op: _Operation) -> Kernel:
    """Moves the axes to their places from the first to the last; neighbours move together."""
    order = op.read_constant(1).tolist()

    def call(x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        axes, sizes = list(range(len(order))), op.find_sizes(0, x)
        place = 0
        while place < len(order):
            start = axes.index(order[place])
            stop = start + 1
            while order[place + stop - start : place + stop - start + 1] == axes[stop : stop + 1]:
                if stop == len(axes):
                    break
                stop += 1
            if start != place:
                parts = (slice(place), slice(place, start), slice(start, stop), slice(stop, None))
                view = _reshape_to(x, [math.prod(sizes[part]) for part in parts])
                x = tf.transpose(view, [0, 2, 1, 3])
                moved = (parts[0], parts[2], parts[1], parts[3])
                axes = [axis for part in moved for axis in axes[part]]
                sizes = [size for part in moved for size in sizes[part]]
            place += stop - start
        return _store(x, sizes)

    return call


def _reduce(op: _Operation) -> Kernel:
    rank = len(op.operands[0])
    axes = sorted({int(axis) % rank for axis in op.read_constant(1).flat}, reverse=True)
    rest = [1] if find_attribute(op.node, "keep_dims").b else []

    def call(x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, x)
        for axis in axes:
            x = run_node(op.node, [_along(x, sizes, axis), tf.constant(1)])
            sizes[axis : axis + 1] = rest
        return _store(x, sizes)

    return call


def _slice(op: _Operation) -> Kernel:
    lengths = op.read_constant(2).tolist()

    def call(x: tf.Tensor, begin: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, x)
        for axis, length in enumerate(lengths):
            if not (isinstance(sizes[axis], int) and length == sizes[axis]):
                x = tf.slice(_along(x, sizes, axis), [0, begin[axis], 0], [-1, length, -1])
                sizes[axis] = length if length >= 0 else tf.shape(x)[1]
        return _store(x, sizes)

    return call


def _strided_slice(op: _Operation) -> Kernel:
    def call(x: tf.Tensor, *vectors: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, x)
        for axis, part in reversed([*enumerate(_read_slices(op, vectors))]):
            if part is not _ALL:
                x = _along(x, sizes, axis)[:, part]
                sizes[axis : axis + 1] = [_find_size(x, 1)] if isinstance(part, slice) else []
        return _store(x, sizes)

    return call


def _find_size(x: tf.Tensor, axis: int) -> _Size:
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


_ALL = slice(None, None, 1)


def _read_slices(op: _Operation, vectors: Sequence[tf.Tensor]) -> list[Any]:
    """Returns the index or slice of each axis."""
    rank = len(op.operands[0])
    masks = {
        name: find_attribute(op.node, f"{name}_mask").i
        for name in ("begin", "ellipsis", "end", "new_axis", "shrink_axis")
    }
    if masks["new_axis"]:
        raise op.refuse()
    rows = [
        tf.unstack(vector, op.operands[place][0]) if array is None else array.tolist()
        for place, vector in enumerate(vectors, 1)
        for array in (op.find_constant(place),)
    ]
    parts: list[Any] = []
    for i, (begin, end, step) in enumerate(zip(*rows, strict=True)):
        bits = {name for name, mask in masks.items() if mask >> i & 1}
        if "ellipsis" in bits:
            parts += [_ALL] * (rank - len(rows[0]) + 1)
        elif "shrink_axis" in bits:
            parts.append(begin)
        elif {"begin", "end"} <= bits and isinstance(step, int) and step == 1:
            parts.append(_ALL)
        else:
            start, stop = None if "begin" in bits else begin, None if "end" in bits else end
            parts.append(slice(start, stop, step))
    return parts + [_ALL] * (rank - len(parts))


def _gather(op: _Operation) -> Kernel:
    axis = int(op.read_constant(2)) % len(op.operands[0])
    if find_attribute(op.node, "batch_dims").i:
        raise op.refuse()

    def call(x: tf.Tensor, indices: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        sizes, index_sizes = op.find_sizes(0, x), op.find_sizes(1, indices)
        rows = tf.gather(_along(x, sizes, axis), tf.reshape(indices, [-1]), axis=1)
        return _store(rows, [*sizes[:axis], *index_sizes, *sizes[axis + 1 :]])

    return call


def _gather_nd(op: _Operation) -> Kernel:
    def call(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        sizes, index_sizes = op.find_sizes(0, x), op.find_sizes(1, indices)
        places, rest = _flatten_places(op, indices, sizes, index_sizes)
        rows = tf.gather(_reshape_to(x, [-1, math.prod(rest)]), places)
        return _store(rows, [*index_sizes[:-1], *rest])

    return call


def _scatter(op: _Operation) -> Kernel:
    def call(x: tf.Tensor, indices: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        sizes, index_sizes = op.find_sizes(0, x), op.find_sizes(1, indices)
        places, rest = _flatten_places(op, indices, sizes, index_sizes)
        rows, new_rows = (_reshape_to(each, [-1, math.prod(rest)]) for each in (x, new))
        return _store(run_node(op.node, [rows, places[:, None], new_rows]), sizes)

    return call


def _scatter_zeros(op: _Operation) -> Kernel:
    def call(indices: tf.Tensor, new: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        sizes = tf.unstack(shape, len(op.result))
        places, rest = _flatten_places(op, indices, sizes, op.find_sizes(0, indices))
        rows = _reshape_to(new, [-1, math.prod(rest)])
        n_rows = math.prod(sizes[: len(sizes) - len(rest)])
        result = tf.scatter_nd(places[:, None], rows, tf.stack([n_rows, math.prod(rest)]))
        return _store(result, sizes)

    return call


def _flatten_places(
    op: _Operation, indices: tf.Tensor, sizes: Sequence[_Size], index_sizes: Sequence[_Size]
) -> tuple[tf.Tensor, Sequence[_Size]]:
    """Makes indices of the first axes into indices of one axis.

    Args:
      op: the operation.
      indices: its indices, whose last axis has one index for each of the first axes.
      sizes: the sizes of the array.
      index_sizes: the sizes of the indices.

    Returns:
      The indices as a vector, and the sizes of the other axes of the array.
    """
    depth = index_sizes[-1]
    if not isinstance(depth, int):
        raise op.refuse()
    flat = tf.reshape(indices, [-1, depth])
    steps = [math.prod(sizes[axis + 1 : depth]) for axis in range(depth)]
    places = [flat[:, axis] * step for axis, step in enumerate(steps)]
    return tf.add_n(places), sizes[depth:]


def _reverse(op: _Operation) -> Kernel:
    axes = [axis % len(op.result) for axis in op.read_constant(1).tolist()]

    def call(x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, x)
        for axis in axes:
            x = tf.reverse(_along(x, sizes, axis), [1])
        return _store(x, sizes)

    return call


# Shapes.


def _reshape(op: _Operation) -> Kernel | None:
    """Returns the kernel of a reshape; None if its result has few axes, since the order is kept."""
    if not _has_many_axes(op.result):
        return None
    return lambda x, shape: tf.reshape(x, _merge_vector(shape, len(op.result)))


def _fill(op: _Operation) -> Kernel:
    return lambda shape, value: tf.fill(_merge_vector(shape, len(op.result)), value)


def _expand_dims(op: _Operation) -> Kernel:
    axis = int(op.read_constant(1)) % len(op.result)

    def call(x: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        sizes = op.find_sizes(0, x)
        return _store(x, [*sizes[:axis], 1, *sizes[axis:]])

    return call


def _squeeze(op: _Operation) -> Kernel:
    rank = len(op.operands[0])
    dropped = {axis % rank for axis in find_attribute(op.node, "squeeze_dims").list.i}
    if not dropped:
        dropped = {axis for axis, size in enumerate(op.operands[0]) if size == 1}

    def call(x: tf.Tensor) -> tf.Tensor:
        sizes = enumerate(op.find_sizes(0, x))
        return _store(x, [size for axis, size in sizes if axis not in dropped])

    return call


def _shape(op: _Operation) -> Kernel:
    dtype = find_attribute(op.node, "out_type").type or tf.int32
    return lambda x: tf.cast(tf.stack(op.find_sizes(0, x)), dtype)


# Broadcasting.


def _broadcast(op: _Operation) -> Kernel:
    def call(x: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        merged = _merge_vector(shape, len(op.result))
        return tf.broadcast_to(_expand(op, 0, x), merged)

    return call


def _elementwise(op: _Operation) -> Kernel | None:
    """Returns the kernel of an operation that broadcasts; None if merged operands broadcast."""
    if not any(_differing_axes(op, shape) for shape in op.operands):
        return None

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        operands = [_expand(op, place, tensor) for place, tensor in enumerate(tensors)]
        return run_node(op.node, operands)

    return call


def _differing_axes(op: _Operation, shape: tf.TensorShape) -> list[int]:
    """Returns the axes that are to be repeated before the leading axes can be merged."""
    rank = len(op.result)
    sizes, result = [1] * (rank - len(shape)) + shape.as_list(), op.result.as_list()
    leading = range(rank - MAX_AXES + 1)
    if all(sizes[axis] == 1 for axis in leading):
        return []
    axes = [axis for axis in leading if sizes[axis] != result[axis]]
    if any(sizes[axis] != 1 or result[axis] is None for axis in axes):
        raise op.refuse()
    return axes


def _expand(op: _Operation, place: int, x: tf.Tensor) -> tf.Tensor:
    shape, result = op.operands[place], op.result.as_list()
    axes = _differing_axes(op, shape)
    sizes = [1] * (len(result) - len(shape)) + op.find_sizes(place, x)
    for axis in axes:
        x = tf.tile(_along(x, sizes, axis), [1, result[axis], 1])
        sizes[axis] = result[axis]
    return _store(x, sizes) if axes else x


_SAME_ORDER = frozenset({"Identity", "PreventGradient", "Snapshot", "StopGradient"})
_ELEMENTWISE = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cast"}
    | {"Ceil", "Cos", "Cosh", "Elu", "Equal", "Erf", "Exp", "Expm1", "Floor", "FloorDiv"}
    | {"FloorMod", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual"}
    | {"Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "Neg"}
    | {"NotEqual", "OnesLike", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Rint", "Round"}
    | {"Rsqrt", "SelectV2", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Sqrt", "Square"}
    | {"SquaredDifference", "Sub", "Tan", "Tanh", "ZerosLike"}
    # Products of the last two axes, and functions of the last axis.
    | {"BatchMatMul", "BatchMatMulV2", "LogSoftmax", "Softmax"}
)
_KERNELS: Mapping[str, Callable[[_Operation], Kernel | None]] = MappingProxyType(
    {
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _reduce),
        **{f"TensorScatter{kind}": _scatter for kind in ("Add", "Max", "Min", "Update")},
        "BroadcastTo": _broadcast,
        "ConcatV2": _concat,
        "ExpandDims": _expand_dims,
        "Fill": _fill,
        "GatherNd": _gather_nd,
        "GatherV2": _gather,
        "Pack": _pack,
        "Reshape": _reshape,
        "ReverseV2": _reverse,
        "ScatterNd": _scatter_zeros,
        "Shape": _shape,
        "Slice": _slice,
        "Squeeze": _squeeze,
        "StridedSlice": _strided_slice,
        "Transpose": _transpose,
    }
)
