"""Writes frozen graphs as graph models of TensorFlow.js: JSON files, and shards of weights."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._version import __version__
from jax2tf_bridge.frozen_graphs import FrozenGraph, GraphPort

_FORMAT = "graph-model"
_SHARD_BYTES = 4 << 20
"""Size of a file of weights; browsers keep files of this size in their caches."""

StoredDType: TypeAlias = Literal["float16", "uint16", "uint8"]
"""Dtypes of stored float32 weights; TensorFlow.js makes float32 of them when it loads them."""

JsonNode: TypeAlias = dict[str, Any]
"""Node of a graph in the JSON file."""

_NAMES = {
    tf.float32: "DT_FLOAT",
    tf.int32: "DT_INT32",
    tf.bool: "DT_BOOL",
    tf.complex64: "DT_COMPLEX64",
    tf.string: "DT_STRING",
}


def _tfjs_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which TensorFlow.js has the numbers, or the bits, of a dtype."""
    if dtype.is_floating:
        return tf.float32
    if dtype.is_complex:
        return tf.complex64
    return tf.int32 if dtype.is_integer else dtype


@dataclass(frozen=True)
class _Weight:
    """Array of a graph, as it is stored.

    Attributes:
      name: the name of its node.
      spec: its entry in the list of weights, without the name.
      data: the bytes.
    """

    name: str
    spec: Mapping[str, Any]
    data: bytes


def write_graph_models(
    folder: Path, models: Mapping[str, FrozenGraph], quantize: StoredDType | None
) -> None:
    """Writes models into a folder. Models share the arrays that are equal.

    Args:
      folder: an existing folder.
      models: the graphs by the names of their JSON files.
      quantize: how to store float32.
    """
    topologies: dict[str, Any] = {}
    weights: dict[str, dict[bytes, _Weight]] = {}
    for file, model in models.items():
        topologies[file], arrays = _make_topology(model)
        weights[file] = _index_by_content(
            _store(name, array, quantize) for name, array in arrays.items()
        )
    users: dict[bytes, tuple[str, ...]] = {}
    for file, stored in weights.items():
        users.update({key: (*users.get(key, ()), file) for key in stored})
    groups: dict[tuple[str, ...], dict[bytes, bytes]] = {}
    for stored in weights.values():
        for key, weight in stored.items():
            groups.setdefault(users[key], {})[key] = weight.data
    shards = {
        files: _write_shards(folder, number, list(contents.values()))
        for number, (files, contents) in enumerate(groups.items(), 1)
    }
    for file, model in models.items():
        manifest = [
            {
                "paths": shards[files],
                "weights": [
                    {"name": weights[file][key].name, **weights[file][key].spec} for key in contents
                ],
            }
            for files, contents in groups.items()
            if file in files
        ]
        described = {
            "format": _FORMAT,
            "generatedBy": tf.__version__,
            "convertedBy": f"jax2tf-bridge {__version__}",
            "signature": {"inputs": _describe(model.inputs), "outputs": _describe(model.outputs)},
            "userDefinedMetadata": {"structuredOutputKeys": list(model.outputs)},
            "modelTopology": topologies[file],
            "weightsManifest": manifest,
        }
        (folder / file).write_text(json.dumps(described, separators=(",", ":")))


def is_graph_model(file: Path) -> bool:
    """Returns whether a JSON file is the file of a model, as `write_graph_models` writes it."""
    start = f'{{"format":"{_FORMAT}"'.encode()
    with file.open("rb") as opened:
        return opened.read(len(start)) == start


def _index_by_content(weights: Iterable[_Weight]) -> dict[bytes, _Weight]:
    """Returns weights by digests of their contents; equal ones of a graph count as different."""
    by_content: dict[bytes, _Weight] = {}
    for weight in weights:
        content = hashlib.sha256(json.dumps(weight.spec, sort_keys=True).encode())
        content.update(weight.data)
        key = content.digest()
        while key in by_content:
            key = hashlib.sha256(key).digest()
        by_content[key] = weight
    return by_content


def _store(name: str, array: np.ndarray, quantize: StoredDType | None) -> _Weight:
    """Describes an array in a dtype of TensorFlow.js."""
    if array.dtype.kind in "SO":
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.ravel().tolist()]
        data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        return _Weight(name, {"shape": list(array.shape), "dtype": "string"}, data)
    dtype = _tfjs_dtype(tf.as_dtype(array.dtype))
    if array.dtype.kind in "ui":
        # Unsigned and longer integers keep their low bits.
        array = array.astype(np.uint64).astype(np.uint32).view(np.int32)
    array = array.astype(dtype.as_numpy_dtype)
    spec: dict[str, Any] = {"shape": list(array.shape), "dtype": dtype.name}
    if quantize is not None and dtype == tf.float32:
        quantized = _quantize(array, quantize)
        if quantized is not None:
            array, spec["quantization"] = quantized
    return _Weight(name, spec, array.tobytes())


def _write_shards(folder: Path, number: int, contents: Sequence[bytes]) -> list[str]:
    """Writes arrays one after the other, and returns the names of the files."""
    data = b"".join(contents)
    count = max(1, -(-len(data) // _SHARD_BYTES))
    names = [f"group{number}-shard{i}of{count}.bin" for i in range(1, count + 1)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(data[i * _SHARD_BYTES : (i + 1) * _SHARD_BYTES])
    return names


def _describe(tensors: Mapping[str, GraphPort]) -> dict[str, Any]:
    return {
        name: {
            "name": port.tensor,
            "dtype": _NAMES[_tfjs_dtype(port.dtype)],
            "tensorShape": _describe_shape(port.sizes),
        }
        for name, port in tensors.items()
    }


def _describe_shape(sizes: Sequence[int] | None) -> dict[str, Any]:
    if sizes is None:
        return {"unknownRank": True}
    return {"dim": [{"size": str(size)} for size in sizes]}


# The graph.


class _Constants:
    """Constants of a graph and its functions; equal ones are one weight."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, nodes: Iterable[Any], scope: str = "") -> dict[str, str]:
        """Returns the name of its weight for each constant among nodes."""
        names = {}
        for node in nodes:
            if node.op == "Const":
                tensor = node.attr["value"].tensor
                name = self._names.setdefault(
                    tensor.SerializeToString(deterministic=True), scope + node.name
                )
                names[node.name] = name
                if name not in self.arrays:
                    self.arrays[name] = tf.make_ndarray(tensor)
        return names


def _make_topology(model: FrozenGraph) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """Returns a graph as JSON without its constants, and these by name."""
    constants = _Constants()
    ports = [*model.inputs.values(), *model.outputs.values()]
    results = [port.tensor for port in ports]
    nodes = _list_needed(model.graph.node, results)
    topology: dict[str, Any] = {"node": _make_nodes(nodes, constants.add(nodes), results)}
    called = _list_called(nodes, {f.signature.name: f for f in model.graph.library.function})
    if called:
        functions = [_make_function(function, constants) for function in called]
        topology["library"] = {"function": functions}
    topology["versions"] = {"producer": model.graph.versions.producer}
    return topology, constants.arrays


def _list_needed(nodes: Iterable[Any], tensors: Iterable[str]) -> list[Any]:
    """Returns the nodes that tensors depend on, in the order of the graph."""
    by_name = {node.name: node for node in nodes}
    waiting, needed = [_find_node_name(tensor) for tensor in tensors], set()
    while waiting:
        name = waiting.pop()
        if name in needed or name not in by_name:
            continue
        needed.add(name)
        waiting += [_find_node_name(tensor) for tensor in _list_data_inputs(by_name[name])]
    return [node for name, node in by_name.items() if name in needed]


def _list_called(nodes: Iterable[Any], library: Mapping[str, Any]) -> list[Any]:
    """Returns the functions that nodes call, and those that these call."""
    called: dict[str, Any] = {}
    waiting = list(nodes)
    while waiting:
        for value in waiting.pop().attr.values():
            for function in (value.func, *value.list.func):
                if function.name in library and function.name not in called:
                    called[function.name] = library[function.name]
                    waiting += library[function.name].node_def
    return list(called.values())


def _list_data_inputs(node: Any) -> list[str]:
    """Returns the inputs without control inputs: no operation has effects."""
    return [tensor for tensor in node.input if tensor[0] != "^"]


def _make_function(function: Any, constants: _Constants) -> dict[str, Any]:
    signature = function.signature
    nodes = _list_needed(function.node_def, function.ret.values())
    names = constants.add(nodes, f"{signature.name}/")
    return {
        "signature": {
            "name": signature.name,
            "inputArg": [_describe_argument(argument) for argument in signature.input_arg],
            "outputArg": [_describe_argument(argument) for argument in signature.output_arg],
        },
        "nodeDef": _make_nodes(nodes, names, function.ret.values()),
        "ret": {name: _rename(tensor, names) for name, tensor in function.ret.items()},
    }


def _describe_argument(argument: Any) -> dict[str, str]:
    return {"name": argument.name, "type": _name_dtype(argument.type)}


def _rename(tensor: str, names: Mapping[str, str]) -> str:
    node, colon, rest = tensor.partition(":")
    return f"{names.get(node, node)}{colon}{rest}"


def _make_nodes(
    nodes: Iterable[Any], names: Mapping[str, str], results: Iterable[str]
) -> list[dict[str, Any]]:
    """Returns nodes as JSON.

    Args:
      nodes: the nodes.
      names: the name of the weight for each constant among them.
      results: the tensors that a graph takes and returns.
    """
    # Equal constants have one name.
    by_name = {names.get(node.name, node.name): _make_node(node, names) for node in nodes}
    return _simplify(list(by_name.values()), [_rename(tensor, names) for tensor in results])


def _make_node(node: Any, names: Mapping[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {"name": names.get(node.name, node.name), "op": node.op}
    if inputs := [_rename(tensor, names) for tensor in _list_data_inputs(node)]:
        described["input"] = inputs
    if node.op == "Const":
        dtype = _name_dtype(node.attr["dtype"].type)
        shape = _describe_proto(node.attr["value"].tensor.tensor_shape)
        value = {"tensor": {"dtype": dtype, "tensorShape": shape}}
        return {**described, "attr": {"dtype": {"type": dtype}, "value": value}}
    attributes = {key: _make_attribute(value) for key, value in node.attr.items() if key[0] != "_"}
    return {**described, "attr": attributes} if attributes else described


def _name_dtype(number: int) -> str:
    dtype = tf.as_dtype(number)
    return _NAMES.get(_tfjs_dtype(dtype), f"DT_{dtype.name.upper()}")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _describe_proto(shape: Any) -> dict[str, Any]:
    return _describe_shape(None if shape.unknown_rank else [dim.size for dim in shape.dim])


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "i": str,
        "f": float,
        "b": bool,
        "s": _encode,
        "type": _name_dtype,
        "shape": _describe_proto,
        "func": lambda function: {"name": function.name},
    }
)
"""Conversions of attributes to JSON, by kind."""


def _make_attribute(value: Any) -> dict[str, Any]:
    kind = value.WhichOneof("value")
    if kind == "list":
        lists = {
            key: [convert(item) for item in getattr(value.list, key)]
            for key, convert in _CONVERTERS.items()
        }
        return {"list": {key: items for key, items in lists.items() if items}}
    return {kind: _CONVERTERS[kind](getattr(value, kind))} if kind in _CONVERTERS else {}


def _quantize(array: np.ndarray, quantize: StoredDType) -> tuple[np.ndarray, dict[str, Any]] | None:
    """Returns a float32 array in fewer bits, and how to restore it: `min + scale * integer`.

    0 stays exact. Returns None for arrays that are not finite in fewer bits.
    """
    restoring = {"dtype": quantize, "original_dtype": "float32"}
    if quantize == "float16":
        with np.errstate(over="ignore"):
            halves = array.astype(np.float16)
        return (halves, restoring) if np.isfinite(halves).all() else None
    if not np.isfinite(array).all():
        return None
    steps = int(np.iinfo(quantize).max)
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    scale = (high - low) / steps or 1.0
    if low < 0 < high:
        low = -scale * round(-low / scale)
    integers = np.clip(np.round((array - low) / scale), 0, steps).astype(quantize)
    return integers, {**restoring, "min": low, "scale": scale}


# Removes and joins nodes: in TensorFlow.js each node costs time.


_IDENTITIES = frozenset({"Identity", "PreventGradient", "Snapshot", "StopGradient"})
_PRODUCTS = {"Conv2D": "_FusedConv2D", "MatMul": "_FusedMatMul"}
_ACTIVATIONS = frozenset({"Elu", "Relu", "Relu6", "Sigmoid"})


def _simplify(nodes: Sequence[JsonNode], results: Iterable[str]) -> list[JsonNode]:
    """Removes identities, copies operands, and joins products with their biases and activations.

    Args:
      nodes: the nodes of a graph or function, in any order.
      results: the tensors that it returns; their nodes stay.
    """
    names = {_find_node_name(tensor) for tensor in results}
    nodes = _copy_right_operands(_remove_identities(nodes, names))
    return _join_products(nodes, names)


def _find_node_name(tensor: str) -> str:
    return tensor.partition(":")[0]


def _remove_identities(nodes: Iterable[JsonNode], results: set[str]) -> list[JsonNode]:
    sources = {
        node["name"]: node["input"][0]
        for node in nodes
        if node["op"] in _IDENTITIES and node["name"] not in results
    }

    def find_source(tensor: str) -> str:
        while (name := _find_node_name(tensor)) in sources:
            tensor = sources[name]
        return tensor

    return [
        {**node, "input": [find_source(tensor) for tensor in node["input"]]}
        if "input" in node
        else node
        for node in nodes
        if node["name"] not in sources
    ]


_VIEWS = frozenset(
    {"Cast", "ExpandDims", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose"}
)
"""Operations whose result may be the memory of their first input, with another shape."""
_MATRIX_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "MatMul"})


def _copy_right_operands(nodes: Sequence[JsonNode]) -> list[JsonNode]:
    """Copies the right operands of products that share memory but not a name.

    The backend "wasm" prepares the right operand of a product once, by its memory, and uses this
    for every later product, which may have the operand in another shape.
    """
    by_name = {node["name"]: node for node in nodes}

    def find_memory(tensor: str) -> str:
        while (node := by_name.get(tensor)) is not None and node["op"] in _VIEWS:
            tensor = node["input"][0]
        return tensor

    first: dict[str, str] = {}
    copies: dict[str, JsonNode] = {}
    changed: list[JsonNode] = []
    for node in nodes:
        if node["op"] in _MATRIX_PRODUCTS:
            left, right = node["input"][:2]
            if first.setdefault(find_memory(right), right) != right:
                name = f"{_find_node_name(right)}/copy"
                dtype = node["attr"]["T"]
                # The larger of two equal arrays is a new one.
                copies[name] = {
                    "name": name,
                    "op": "Maximum",
                    "input": [right, right],
                    "attr": {"T": dtype},
                }
                node = {**node, "input": [left, name, *node["input"][2:]]}
        changed.append(node)
    return [*changed, *copies.values()]


def _join_products(nodes: Sequence[JsonNode], results: set[str]) -> list[JsonNode]:
    """Joins products with the bias and the activation that follow, if nothing else reads them."""
    by_name = {node["name"]: node for node in nodes}
    users = Counter(_find_node_name(tensor) for node in nodes for tensor in node.get("input", ()))

    def join(node: JsonNode, kinds: Iterable[str], bias: Sequence[str], *operations: str) -> None:
        product = by_name.get(_find_node_name(node["input"][0]))
        if product is None or users[product["name"]] > 1 or product["name"] in results:
            return
        if product["op"] not in kinds or not _can_join(product):
            return
        del by_name[product["name"]]
        by_name[node["name"]] = {
            "name": node["name"],
            "op": _PRODUCTS.get(product["op"], product["op"]),
            "input": [*product["input"], *bias],
            "attr": {
                **product["attr"],
                "fused_ops": {"list": {"s": [_encode(name.encode()) for name in operations]}},
                "num_args": {"i": "1"},
            },
        }

    for node in nodes:
        if node["op"] == "BiasAdd" and not _is_channels_first(node):
            join(node, _PRODUCTS, node["input"][1:], "BiasAdd")
    for node in nodes:
        if node["op"] in _ACTIVATIONS:
            join(node, _PRODUCTS.values(), [], "BiasAdd", node["op"])
    return list(by_name.values())


def _is_channels_first(node: JsonNode) -> bool:
    data_format = node.get("attr", {}).get("data_format", {}).get("s", "")
    return base64.b64decode(data_format).startswith(b"NC")


def _can_join(product: JsonNode) -> bool:
    attributes = product["attr"]
    is_explicit = base64.b64decode(attributes.get("padding", {}).get("s", "")) == b"EXPLICIT"
    is_float = attributes["T"] == {"type": "DT_FLOAT"}
    return is_float and not is_explicit and not _is_channels_first(product)
