"""Converts a portable function to an ONNX model."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from jax2tf_bridge._version import __version__
from jax2tf_bridge.emitters import SizeAlgebra, building, make_operations, read, rewrite_program
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.portable import Aval, PortableFunction, read_constant
from jax2tf_bridge.to_onnx._builder import OnnxBuilder, find_function
from jax2tf_bridge.to_onnx._fake_quantization import store_bytes
from jax2tf_bridge.to_onnx._functions import as_dtype
from jax2tf_bridge.to_onnx._fusions import fuse_nodes
from jax2tf_bridge.to_onnx._graph import (
    DTYPES,
    ComplexTensor,
    OnnxDType,
    OnnxGraph,
    OnnxNode,
    Subgraph,
    Tensor,
)
from jax2tf_bridge.to_onnx._local_functions import DOMAIN, LocalFunction, make_functions
from shape_poly import make_plan, solve

if TYPE_CHECKING:
    import onnx

_MIN_EXTERNAL_BYTES = 1024
_ALIGNMENT = 4096
"""Alignment of arrays in a data file, so that a runtime can map each into memory."""


class ExternalData:
    """A file with the elements of constants; equal ones are written once.

    Attributes:
      name: the name of the file, which is beside the model.
    """

    def __init__(self, name: str, file: BinaryIO) -> None:
        """Stores an empty file that is open for writing."""
        self.name, self._file = name, file
        self._places: dict[bytes, tuple[int, int]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """Number of bytes that were written."""
        return self._size

    def add(self, value: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Writes an array in row-major order; returns its offset and length in bytes."""
        data = np.ascontiguousarray(value)
        if sys.byteorder == "big":
            data = data.byteswap()
        content = data.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            start = -(-self._size // _ALIGNMENT) * _ALIGNMENT
            self._file.write(bytes(start - self._size))
            self._file.write(content)
            self._places[digest] = start, data.nbytes
            self._size = start + data.nbytes
        return self._places[digest]


def _check_dtypes(portable: PortableFunction) -> None:
    sides = (
        (portable.in_paths(), portable.in_avals, ""),
        (portable.out_tree.leaf_paths(), portable.out_avals, "the result "),
    )
    for paths, avals, what in sides:
        for path, aval in zip(paths, avals, strict=True):
            try:
                as_dtype(aval.op_dtype)
            except TypeError:
                where = f"{what}{path}".strip()
                raise DTypeError(
                    f"{where} of {portable.name} has dtype {aval.dtype}, which ONNX Runtime "
                    "does not compute with. Convert it to float32 or float16 outside of the "
                    "function, and back within it."
                ) from None


def convert_function(
    portable: PortableFunction,
    inputs: Mapping[int, str],
    outputs: Sequence[str],
    weights: Mapping[int, tuple[str, np.ndarray[Any, Any]]],
    *,
    opset: int,
    functions: bool,
    external: ExternalData | None,
) -> onnx.ModelProto:
    """Converts a function to a model.

    Args:
      portable: the function, with the target for converters.
      inputs: the names of the flat arguments that are the model's inputs, by index.
      outputs: the names of the flat results.
      weights: the names and values of the other flat arguments, by index.
      opset: the version of ONNX's operations.
      functions: whether the user's functions that are called several times stay functions.
      external: a file that large constants are written to; None if the model holds them.

    Raises:
      ModuleError: ONNX cannot express an operation.
      DTypeError: ONNX Runtime does not compute with the dtype of an argument or result.
    """
    _check_dtypes(portable)
    taken = {*inputs.values(), *outputs, *(name for name, _ in weights.values())}
    graph = OnnxGraph(find_function, opset, taken)
    program = rewrite_program(portable, read(portable), for_onnx=True)
    with building(OnnxBuilder(graph)):
        arguments = [
            _make_input(graph, inputs[i], aval)
            if i in inputs
            else graph.constant(weights[i][1], weights[i][0])
            for i, aval in enumerate(portable.in_avals)
        ]
        variables = _solve_sizes(portable, graph, arguments)
        operands = [arguments[i] for i in portable.module.kept_arguments]
        names = (name for i in itertools.count() if (name := f"captured_{i}") not in taken)
        operands += [
            graph.constant(read_constant(portable, constant), name)
            for constant, name in zip(portable.lifted_constants, names, strict=False)
        ]
        results = make_operations(portable, program, operands, variables, for_onnx=True)
        finals = [
            _name_result(graph, name, tensor).name
            for name, tensor in zip(outputs, results, strict=True)
        ]
    store_bytes(graph, _make_node)
    typed_inputs = [(name, portable.in_avals[i]) for i, name in inputs.items()]
    typed_outputs = list(zip(finals, portable.out_avals, strict=True))
    nodes = fuse_nodes(graph, graph.nodes, finals)
    local_functions: list[LocalFunction] = []
    if functions:
        nodes, local_functions = make_functions(nodes, finals, graph)
    return _make_model(
        portable.name, graph, nodes, local_functions, typed_inputs, typed_outputs, external
    )


def _make_input(graph: OnnxGraph, name: str, aval: Aval) -> Tensor:
    """Makes an input; complex numbers have their two parts along a new last axis."""
    dtype = as_dtype(aval.op_dtype)
    shape = [size if isinstance(size, int) else None for size in aval.op_shape]
    if not dtype.is_complex:
        return graph.argument(name, dtype, shape)
    parts = graph.argument(name, dtype.real_dtype, [*shape, 2])
    return ComplexTensor(parts[..., 0], parts[..., 1])


def _name_result(graph: OnnxGraph, name: str, tensor: Tensor) -> Tensor:
    if isinstance(tensor, ComplexTensor):
        tensor = graph.call("stack", [tensor.real, tensor.imag], -1)
    result = Tensor(graph, name, tensor.dtype, tensor.shape)
    graph.nodes.append(OnnxNode(f"{name}_result", "Identity", (tensor.name,), (name,), {}))
    return result


def _solve_sizes(
    portable: PortableFunction, graph: OnnxGraph, arguments: Sequence[Tensor]
) -> Mapping[str, Any]:
    """Returns the dimension variables, numbers or scalars, in terms of the arguments' sizes."""
    shapes = tuple(aval.op_shape for aval in portable.in_avals)
    sizes = [
        [
            size if size is not None else graph.call("shape", argument)[axis]
            for axis, size in enumerate(argument.shape)
        ]
        for argument in arguments
    ]
    algebra = SizeAlgebra(DTYPES["int32"])
    return solve(make_plan(shapes, sizes, ()), sizes, algebra, ()).values


# The model as ONNX's protocol buffers.


def _make_model(
    name: str,
    graph: OnnxGraph,
    nodes: Sequence[OnnxNode],
    functions: Sequence[LocalFunction],
    inputs: Sequence[tuple[str, Aval]],
    outputs: Sequence[tuple[str, Aval]],
    external: ExternalData | None,
) -> onnx.ModelProto:
    from onnx import helper

    needed = {key for key, _ in outputs}.union(*(node.values for node in nodes))
    main = helper.make_graph(
        [_make_node(node) for node in nodes],
        name,
        [_make_info(key, aval) for key, aval in inputs],
        [_make_info(key, aval) for key, aval in outputs],
        [
            _make_constant(key, value, external)
            for key, value in graph.constants.items()
            if key in needed
        ],
    )
    opsets = [helper.make_opsetid("", graph.opset)]
    ir_version = helper.find_min_ir_version_for(opsets)
    opsets += [helper.make_opsetid(DOMAIN, 1)] if functions else []
    return helper.make_model(
        main,
        functions=[_make_function(function, graph, opsets) for function in functions],
        producer_name="jax2tf_bridge",
        producer_version=__version__,
        ir_version=ir_version,
        opset_imports=opsets,
    )


def _make_function(
    function: LocalFunction, graph: OnnxGraph, opsets: Sequence[onnx.OperatorSetIdProto]
) -> onnx.FunctionProto:
    from onnx import helper

    nodes = [
        helper.make_node(
            "Constant", [], [name], value=_make_constant("", graph.constants[name], None)
        )
        for name in function.constants
    ]
    names = function.name_inputs()
    for node in function.nodes:
        renamed = _make_node(node)
        _rename_values(renamed, names)
        nodes.append(renamed)
    return helper.make_function(
        DOMAIN, function.name, [*names.values()], [*function.outputs], nodes, opsets
    )


def _rename_values(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for i, name in enumerate(node.input):
        node.input[i] = names.get(name, name)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename_values(inner, names)


def _number_dtype(dtype: OnnxDType) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype.as_numpy_dtype)))


def _make_info(name: str, aval: Aval) -> onnx.ValueInfoProto:
    """Describes an input or output; open sizes have the text of their expressions."""
    from onnx import helper

    sizes = [size if isinstance(size, int) else str(size) for size in aval.op_shape]
    dtype = as_dtype(aval.op_dtype)
    if dtype.is_complex:
        dtype = dtype.real_dtype
        sizes.append(2)
    return helper.make_tensor_value_info(name, _number_dtype(dtype), sizes)


def _make_constant(
    name: str, value: np.ndarray[Any, Any], external: ExternalData | None
) -> onnx.TensorProto:
    import onnx
    from onnx import numpy_helper

    if external is not None and value.nbytes >= _MIN_EXTERNAL_BYTES:
        offset, length = external.add(value)
        tensor = onnx.TensorProto(
            name=name,
            dims=value.shape,
            data_type=_number_dtype(DTYPES[value.dtype.name]),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        place = {"location": external.name, "offset": offset, "length": length}
        for key, each in place.items():
            tensor.external_data.add(key=key, value=str(each))
        return tensor
    return numpy_helper.from_array(np.asarray(value, order="C"), name)


def _make_node(node: OnnxNode) -> onnx.NodeProto:
    from onnx import helper

    attributes = {key: _make_attribute(value) for key, value in node.attributes.items()}
    return helper.make_node(
        node.operation, node.inputs, node.outputs, node.name, domain=node.domain, **attributes
    )


def _make_attribute(value: Any) -> Any:
    if isinstance(value, Subgraph):
        return _make_subgraph(value)
    return _number_dtype(value) if isinstance(value, OnnxDType) else value


def _make_subgraph(subgraph: Subgraph) -> onnx.GraphProto:
    from onnx import helper

    def describe(tensor: Tensor) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            tensor.name, _number_dtype(tensor.dtype), list(tensor.shape)
        )

    return helper.make_graph(
        [_make_node(node) for node in subgraph.nodes],
        subgraph.outputs[0].name if subgraph.outputs else "nothing",
        [describe(tensor) for tensor in subgraph.inputs],
        [describe(tensor) for tensor in subgraph.outputs],
    )
