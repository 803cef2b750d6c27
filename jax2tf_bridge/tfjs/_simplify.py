"""Removes and joins nodes of a graph model; in TensorFlow.js each node costs time.

Nodes are those of the JSON file.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]

_IDENTITIES = frozenset({"Identity", "PreventGradient", "Snapshot", "StopGradient"})
_PRODUCTS = {"Conv2D": "_FusedConv2D", "MatMul": "_FusedMatMul"}
_ACTIVATIONS = frozenset({"Elu", "Relu", "Relu6", "Sigmoid"})


def simplify(nodes: Sequence[Node], results: Iterable[str]) -> list[Node]:
    """Returns nodes without identities, and with products that add a bias and activate.

    Args:
      nodes: the nodes of a graph or function, in an order in which each follows its inputs or not.
      results: the tensors that it returns; their nodes stay.
    """
    kept = {node_of(tensor) for tensor in results}
    return _join_products(_remove_identities(nodes, kept), kept)


def node_of(tensor: str) -> str:
    """Returns the name of the node that has a tensor."""
    return tensor.partition(":")[0]


def _remove_identities(nodes: Iterable[Node], kept: set[str]) -> list[Node]:
    sources = {
        node["name"]: node["input"][0]
        for node in nodes
        if node["op"] in _IDENTITIES and node["name"] not in kept
    }

    def find_source(tensor: str) -> str:
        while (name := node_of(tensor)) in sources:
            tensor = sources[name]
        return tensor

    return [
        {**node, "input": [find_source(tensor) for tensor in node["input"]]}
        if "input" in node
        else node
        for node in nodes
        if node["name"] not in sources
    ]


def _join_products(nodes: Iterable[Node], kept: set[str]) -> list[Node]:
    """Joins products with the bias and the activation that follow, if nothing else reads them."""
    by_name = {node["name"]: node for node in nodes}
    users = Counter(node_of(tensor) for node in nodes for tensor in node.get("input", ()))

    def find_inner(node: Node) -> Node | None:
        """Returns the node of the first input, if only this node reads it."""
        inner = by_name.get(node_of(node["input"][0]))
        if inner is None or users[inner["name"]] > 1 or inner["name"] in kept:
            return None
        return inner

    for node in list(nodes):
        if node["op"] != "BiasAdd" or _is_channels_first(node):
            continue
        product = find_inner(node)
        if product is None or product["op"] not in _PRODUCTS or not _can_join(product):
            continue
        del by_name[product["name"]]
        by_name[node["name"]] = _join(product, node["name"], node["input"][1], ["BiasAdd"])
    for node in list(nodes):
        if node["op"] not in _ACTIVATIONS:
            continue
        product = find_inner(node)
        if product is None or product["op"] not in _PRODUCTS.values():
            continue
        del by_name[product["name"]]
        joined = _join(product, node["name"], None, ["BiasAdd", node["op"]])
        by_name[node["name"]] = joined
    return list(by_name.values())


def _is_channels_first(node: Node) -> bool:
    data_format = node.get("attr", {}).get("data_format", {}).get("s", "")
    return base64.b64decode(data_format).startswith(b"NC")


def _can_join(product: Node) -> bool:
    attributes = product["attr"]
    is_explicit = base64.b64decode(attributes.get("padding", {}).get("s", "")) == b"EXPLICIT"
    is_float = attributes["T"] == {"type": "DT_FLOAT"}
    return is_float and not is_explicit and not _is_channels_first(product)


def _join(product: Node, name: str, bias: str | None, operations: Sequence[str]) -> Node:
    texts = [base64.b64encode(operation.encode()).decode() for operation in operations]
    return {
        "name": name,
        "op": _PRODUCTS.get(product["op"], product["op"]),
        "input": [*product["input"], *([] if bias is None else [bias])],
        "attr": {
            **product["attr"],
            "fused_ops": {"list": {"s": texts}},
            "num_args": {"i": "1"},
        },
    }
