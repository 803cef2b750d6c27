"""Replaces several nodes by one that ONNX Runtime computes faster, such as a LayerNormalization."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jax2tf_bridge.to_onnx._graph import OnnxGraph, OnnxNode, Shape, Tensor, drop_unused

_TOLERANCE = 1e-6
"""Maximum relative error of a constant of a formula."""


def fuse_nodes(
    graph: OnnxGraph, nodes: Sequence[OnnxNode], outputs: Sequence[str]
) -> list[OnnxNode]:
    """Returns the nodes with those of known formulas replaced.

    Args:
      graph: the graph; it receives new constants.
      nodes: the nodes.
      outputs: the names of the results.
    """
    nodes = drop_unused(nodes, {*outputs})
    return drop_unused(_Fusing(graph, nodes).run(nodes), {*outputs})


def _every_node(nodes: Sequence[OnnxNode]) -> Iterator[OnnxNode]:
    for node in nodes:
        yield node
        for each in node.subgraphs:
            yield from _every_node(each.nodes)


class _Fusing:
    """Replacement of nodes, in the order of computation."""

    def __init__(self, graph: OnnxGraph, nodes: Sequence[OnnxNode]) -> None:
        self._graph = graph
        self._makers: dict[str | None, OnnxNode] = {}
        self._uses = Counter(value for node in _every_node(nodes) for value in node.inputs)
        # Values that do not depend on the inputs, which a runtime computes when it loads the model.
        self._static: set[str] = set()
        self._has_gelu = graph.opset >= 20

    def run(self, nodes: Sequence[OnnxNode]) -> list[OnnxNode]:
        """Replaces the nodes of one graph, and those of its subgraphs."""
        results: list[OnnxNode] = []
        for node in nodes:
            new: Sequence[OnnxNode] | None = [node.with_subgraphs(lambda inner, _: self.run(inner))]
            while new:
                results += new
                for each in new:
                    self._note(each)
                if new := self._match(results[-1]):
                    results.pop()
        return results

    def _note(self, node: OnnxNode) -> None:
        self._makers.update(dict.fromkeys(node.outputs, node))
        if not node.subgraphs and all(map(self._is_static, node.values)):
            self._static.update(node.outputs)

    def _is_static(self, name: str) -> bool:
        return name in self._static or name in self._graph.constants

    def _match(self, node: OnnxNode) -> Sequence[OnnxNode] | None:
        for match in _MATCHES.get(node.operation, ()):
            if (new := match(self, node)) is not None:
                return new
        return None

    # Parts of formulas. A value that is None does not match.

    def find_maker(self, name: str | None, *operations: str) -> OnnxNode | None:
        """Returns the node that makes a value, if it has one of the operations."""
        node = self._makers.get(name)
        return node if node is not None and node.operation in operations else None

    def find_tensor(self, name: str) -> Tensor:
        return self._graph.tensors[name]

    def find_number(self, name: str) -> float | None:
        """Returns the number of a constant with one element."""
        value = self.find_tensor(name).value
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

    def is_number(self, name: str, expected: float) -> bool:
        number = self.find_number(name)
        return number is not None and math.isclose(number, expected, rel_tol=_TOLERANCE)

    def iterate_pairs(self, name: str | None, *operations: str) -> Iterator[tuple[str, str]]:
        """Yields the operands of the node that makes a value, in both orders."""
        node = self.find_maker(name, *operations)
        if node is not None and len(node.inputs) == 2:
            left, right = node.inputs
            yield left, right
            yield right, left

    def strip(self, name: str | None, operation: str, expected: float) -> str | None:
        """Returns y if a value is y times a number, or y plus a number."""
        for number, other in self.iterate_pairs(name, operation):
            if self.is_number(number, expected):
                return other
        return None

    def find_operand(self, name: str | None, operation: str) -> str | None:
        node = self.find_maker(name, operation)
        return None if node is None else node.inputs[0]

    def is_used_once(self, name: str) -> bool:
        return self._uses.get(name, 1) == 1

    def make(self, node: OnnxNode, operation: str, *inputs: str, **attributes: object) -> OnnxNode:
        """Makes a node with the results of another one."""
        scope, _, _ = node.name.rpartition("/")
        name = f"{scope}/{self._graph.new_name(operation)}" if scope else node.name
        return dataclasses.replace(
            node, name=name, operation=operation, inputs=inputs, attributes=attributes
        )

    def add(self, like: OnnxNode, operation: str, *inputs: str, **attributes: object) -> OnnxNode:
        """Makes a node with a new result, which has the type of another node's result."""
        node = self.make(like, operation, *inputs, **attributes)
        name = self._graph.new_name(operation)
        old = self.find_tensor(like.outputs[0])
        self._graph.tensors[name] = Tensor(self._graph, name, old.dtype, old.shape)
        return dataclasses.replace(node, outputs=(name,), calls=like.calls)

    def make_constant(self, like: str, value: object) -> str:
        """Makes a constant with the dtype of a value."""
        array = np.asarray(value, self.find_tensor(like).dtype.as_numpy_dtype)
        return self._graph.constant(array).name

    # Formulas.

    def fuse_mean(self, divide: OnnxNode) -> Sequence[OnnxNode] | None:
        """Makes a mean of a sum that is divided by the number of elements."""
        total, count = divide.inputs
        reduce = self.find_maker(total, "ReduceSum")
        if reduce is None or not self.find_tensor(total).dtype.is_floating:
            return None
        operand, axis = map(self.find_tensor, reduce.inputs)
        sizes, axes = operand.shape, axis.value
        if axes is None or any(sizes[axis] is None for axis in axes.tolist()):
            return None
        if self.find_number(count) != math.prod(sizes[axis] for axis in axes.tolist()):
            return None
        return [self.make(divide, "ReduceMean", *reduce.inputs, **reduce.attributes)]

    def _is_activation(self, node: OnnxNode) -> bool:
        """Returns whether a value has at most 32 bits; ONNX Runtime rounds activations to them."""
        return self.find_tensor(node.outputs[0]).dtype.name in ("float16", "float32")

    def fuse_silu(self, multiply: OnnxNode) -> Sequence[OnnxNode] | None:
        """Computes x / (1 + exp(-x)) by Sigmoid.

        ONNX Runtime's Sigmoid is 0 for less than -18, so it replaces no formula whose logarithm may
        be taken.
        """
        if not self._is_activation(multiply):
            return None
        for x, factor in self.iterate_pairs(multiply.outputs[0], "Mul"):
            exponential = self.strip(self._find_inverse(factor), "Add", 1)
            negative = self.find_operand(exponential, "Exp")
            if self.find_operand(negative, "Neg") == x:
                sigmoid = self.add(multiply, "Sigmoid", x)
                return [sigmoid, self.make(multiply, "Mul", x, *sigmoid.outputs)]
        return None

    def _find_inverse(self, name: str) -> str | None:
        """Returns y if a value is 1 / y."""
        node = self.find_maker(name, "Div")
        if node is not None:
            return node.inputs[1] if self.is_number(node.inputs[0], 1) else None
        return self.find_operand(name, "Reciprocal")

    def fuse_gelu(self, multiply: OnnxNode) -> Sequence[OnnxNode] | None:
        """Computes x / 2 * (1 + tanh(c * (x + 0.044715 * x**3))) with fewer nodes."""
        if not self._is_activation(multiply):
            return None
        for x, factor in self.iterate_pairs(multiply.outputs[0], "Mul"):
            tanh = self.strip(self.strip(factor, "Mul", 0.5), "Add", 1)
            inner = self.strip(self.find_operand(tanh, "Tanh"), "Mul", math.sqrt(2 / math.pi))
            for left, cubic in self.iterate_pairs(inner, "Add"):
                if left == x and self._is_cube(self.strip(cubic, "Mul", 0.044715), x):
                    return self._make_gelu(multiply, x)
        return None

    def _is_cube(self, name: str | None, x: str) -> bool:
        return any(
            right == x and self._is_square(left, x)
            for left, right in self.iterate_pairs(name, "Mul")
        )

    def _is_square(self, name: str, x: str) -> bool:
        return (x, x) in self.iterate_pairs(name, "Mul")

    def _make_gelu(self, multiply: OnnxNode, x: str) -> Sequence[OnnxNode]:
        if self._has_gelu:
            return [self.make(multiply, "Gelu", x, approximate="tanh")]
        # (1 + tanh(y)) / 2 is the sigmoid of 2 * y.
        c = math.sqrt(8 / math.pi)
        square = self.add(multiply, "Mul", x, x)
        scaled = self.add(multiply, "Mul", *square.outputs, self.make_constant(x, 0.044715 * c))
        shifted = self.add(multiply, "Add", *scaled.outputs, self.make_constant(x, c))
        argument = self.add(multiply, "Mul", x, *shifted.outputs)
        sigmoid = self.add(multiply, "Sigmoid", *argument.outputs)
        last = self.make(multiply, "Mul", x, *sigmoid.outputs)
        return [square, scaled, shifted, argument, sigmoid, last]

    def fuse_normalization(self, node: OnnxNode) -> Sequence[OnnxNode] | None:
        """Makes a LayerNormalization of (x - mean) / sqrt(variance + epsilon), with a scale."""
        for centred, factor in self._iterate_operands(node):
            subtract = self.find_maker(centred, "Sub")
            if subtract is None:
                continue
            x, mean = subtract.inputs
            if self._find_centred(mean) != x:
                continue
            factors: list[tuple[str | None, str | None]] = [(None, self._find_inverse(factor))]
            factors += [(s, self._find_inverse(f)) for s, f in self.iterate_pairs(factor, "Mul")]
            if node.operation == "Div":
                factors = [(None, factor)]
            for scale, root in factors:
                epsilon = self._match_deviation(root, x, mean, centred)
                if epsilon is not None and self._is_row(scale, x):
                    return self._make_normalization(node, x, scale, epsilon)
        return None

    def _make_normalization(
        self, multiply: OnnxNode, x: str, scale: str | None, epsilon: float
    ) -> Sequence[OnnxNode]:
        scale = scale or self.make_constant(x, np.ones(self.find_tensor(x).shape[-1]))
        attributes = {"axis": -1, "epsilon": epsilon}
        return [self.make(multiply, "LayerNormalization", x, scale, **attributes)]

    def _is_row(self, scale: str | None, x: str) -> bool:
        """Returns whether a scale or bias has one number for each element of the last axis."""
        tensor = self.find_tensor(x)
        size = tensor.shape[-1]
        is_computed = tensor.dtype.name in ("float32", "float64") and size is not None
        return is_computed and (scale is None or self.find_tensor(scale).shape == (size,))

    def _find_centred(self, name: str) -> str | None:
        """Returns x if a value is the mean of x along its last axis."""
        node = self.find_maker(self._skip_last_axis(name), "ReduceMean")
        if node is None:
            return None
        x, axes = node.inputs
        rank = self.find_tensor(x).shape.rank
        value = self.find_tensor(axes).value
        return x if value is not None and value.tolist() == [rank - 1] else None

    def _skip_last_axis(self, name: str) -> str:
        """Returns the value to which a last axis of size 1 was added."""
        node = self.find_maker(name, "Unsqueeze", "Reshape")
        if node is None:
            return name
        before, after = self.find_tensor(node.inputs[0]), self.find_tensor(name)
        return node.inputs[0] if after.shape == (*before.shape, 1) else name

    def _match_deviation(self, name: str | None, x: str, mean: str, centred: str) -> float | None:
        """Returns epsilon if a value is the root of the variance of x plus epsilon."""
        for number, variance in self.iterate_pairs(self.find_operand(name, "Sqrt"), "Add"):
            epsilon = self.find_number(number)
            if epsilon is not None and self._is_variance(variance, x, mean, centred):
                return epsilon
        return None

    def _is_variance(self, name: str, x: str, mean: str, centred: str) -> bool:
        name = self._skip_last_axis(name)
        square = self._find_centred(name)
        if square is not None and self._is_squared_difference(square, centred, x):
            return True
        difference = self.find_maker(self.find_operand(name, "Relu") or name, "Sub")
        if difference is None:
            return False
        squares, square_of_mean = difference.inputs
        square = self._find_centred(squares)
        mean = self._skip_last_axis(mean)
        return (
            square is not None
            and self._is_square(square, x)
            and any(
                self._skip_last_axis(a) == mean == self._skip_last_axis(b)
                for a, b in self.iterate_pairs(square_of_mean, "Mul")
            )
        )

    def _is_squared_difference(self, name: str, centred: str, x: str) -> bool:
        """Returns whether a value is the square of x minus its mean."""
        node = self.find_maker(name, "Mul")
        if node is None or node.inputs[0] != node.inputs[1]:
            return False
        if node.inputs[0] == centred:
            return True
        subtract = self.find_maker(node.inputs[0], "Sub")
        return (
            subtract is not None
            and subtract.inputs[0] == x
            and self._find_centred(subtract.inputs[1]) == x
        )

    def fuse_scale(self, multiply: OnnxNode) -> Sequence[OnnxNode] | None:
        """Multiplies a LayerNormalization without a scale by one."""
        for node, scale in self._iterate_rows(multiply):
            ones = self.find_tensor(node.inputs[1]).value
            if ones is not None and np.all(ones == 1):
                inputs = node.inputs[0], scale
                return [self.make(multiply, "LayerNormalization", *inputs, **node.attributes)]
        return None

    def fuse_bias(self, add: OnnxNode) -> Sequence[OnnxNode] | None:
        for node, bias in self._iterate_rows(add):
            return [self.make(add, "LayerNormalization", *node.inputs, bias, **node.attributes)]
        return None

    def _iterate_rows(self, node: OnnxNode) -> Iterator[tuple[OnnxNode, str]]:
        """Yields a LayerNormalization without a bias, and the row that a node combines with it."""
        for normal, row in self.iterate_pairs(node.outputs[0], node.operation):
            maker = self.find_maker(normal, "LayerNormalization")
            if maker and len(maker.inputs) == 2 and self._is_row(row, maker.inputs[0]):
                yield maker, row

    def fuse_into_convolution(self, node: OnnxNode) -> Sequence[OnnxNode] | None:
        """Moves a static factor or term of each channel into a convolution's weights.

        These are batch normalizations, in any form, and biases. The new weights are computed when a
        runtime loads the model.
        """
        for result, operand in self._iterate_operands(node):
            moved = self.find_maker(result, "Transpose")
            convolved = result if moved is None else moved.inputs[0]
            convolution = self.find_maker(convolved, "Conv")
            if convolution is None or not (
                all(map(self._is_static, (operand, *convolution.inputs[1:])))
                and self.is_used_once(result)
                and self.is_used_once(convolved)
            ):
                continue
            rank = self.find_tensor(convolved).shape.rank
            order = range(rank) if moved is None else moved.attributes["perm"]
            nodes: list[OnnxNode] = []
            vector = self._make_vector(node, operand, list(order).index(1), convolution, nodes)
            if vector is None:
                continue
            x, weights, *bias = self._change_weights(node, convolution, vector, nodes)
            new = self.add(convolution, "Conv", x, weights, *bias, **convolution.attributes)
            if moved is None:
                return [*nodes, dataclasses.replace(new, outputs=node.outputs)]
            last = self.make(node, "Transpose", *new.outputs, **moved.attributes)
            return [*nodes, new, last]
        return None

    def _iterate_operands(self, node: OnnxNode) -> Iterator[tuple[str, str]]:
        left, right = node.inputs
        yield left, right
        if node.operation not in ("Sub", "Div"):
            yield right, left

    def _make_vector(
        self,
        node: OnnxNode,
        operand: str,
        channel: int,
        convolution: OnnxNode,
        nodes: list[OnnxNode],
    ) -> str | None:
        """Returns an operand with a number for each channel as a vector; None for others."""
        shape, (_, channels, *rest) = (
            self.find_tensor(name).shape for name in (operand, convolution.outputs[0])
        )
        rank = 2 + len(rest)
        expected = [channels if axis == channel else 1 for axis in range(rank)]
        if channels is None or list(shape) != expected[rank - shape.rank :]:
            return None
        if shape.rank == 1:
            return operand
        sizes = self._make_sizes(-1)
        return self._compute_weights(nodes, node, "Reshape", operand, sizes, shape=[channels])

    def _change_weights(
        self, node: OnnxNode, convolution: OnnxNode, vector: str, nodes: list[OnnxNode]
    ) -> Sequence[str]:
        """Returns the operands of a convolution that also does the work of a node."""
        compute = functools.partial(self._compute_weights, nodes, node)
        x, weights, *bias = convolution.inputs
        channels, shape = self.find_tensor(vector).shape, self.find_tensor(weights).shape
        if node.operation == "Mul":
            ones = [1] * (shape.rank - 1)
            sizes = self._make_sizes(-1, *ones)
            factors = compute("Reshape", vector, sizes, shape=[*channels, *ones])
            weights = compute("Mul", weights, factors, shape=shape)
        if bias:
            bias = [compute(node.operation, *bias, vector, shape=channels)]
        elif node.operation == "Sub":
            bias = [compute("Neg", vector, shape=channels)]
        elif node.operation == "Add":
            bias = [vector]
        return [x, weights, *bias]

    def _compute_weights(
        self,
        nodes: list[OnnxNode],
        like: OnnxNode,
        operation: str,
        *inputs: str,
        shape: Sequence[int | None],
    ) -> str:
        """Appends a node that computes weights; returns the name of its result."""
        nodes.append(self.add(like, operation, *inputs))
        (name,) = nodes[-1].outputs
        self.find_tensor(name).shape = Shape(shape)
        return name

    def _make_sizes(self, *sizes: int) -> str:
        return self._graph.constant(np.array(sizes, np.int64)).name

    def fuse_clip(self, minimum: OnnxNode) -> Sequence[OnnxNode] | None:
        """Makes a Clip of a maximum and a minimum with scalars, unless these may be NaN."""
        for highest, larger in self.iterate_pairs(minimum.outputs[0], "Min"):
            for lowest, x in self.iterate_pairs(larger, "Max"):
                bounds = lowest, highest
                dtype = self.find_tensor(x).dtype
                if dtype.name not in _CLIPPED or any(
                    self.find_tensor(bound).shape.rank for bound in bounds
                ):
                    continue
                numbers = [self.find_number(bound) for bound in bounds]
                if dtype.is_integer or not any(n is None or math.isnan(n) for n in numbers):
                    return [self.make(minimum, "Clip", x, *bounds)]
        return None


_CLIPPED = frozenset(
    {"int8", "int32", "int64", "uint8", "uint32", "uint64", "float16", "float32", "float64"}
)
"""The dtypes of ONNX Runtime's Clip."""

_MATCHES: dict[str, Sequence[Callable[[_Fusing, OnnxNode], Sequence[OnnxNode] | None]]] = {
    "Div": [_Fusing.fuse_mean, _Fusing.fuse_normalization],
    "Mul": [
        _Fusing.fuse_into_convolution,
        _Fusing.fuse_silu,
        _Fusing.fuse_gelu,
        _Fusing.fuse_normalization,
        _Fusing.fuse_scale,
    ],
    "Add": [_Fusing.fuse_into_convolution, _Fusing.fuse_bias],
    "Sub": [_Fusing.fuse_into_convolution],
    "Min": [_Fusing.fuse_clip],
}
"""The formulas by the operation of their last node."""
