"""Runs graph models of TensorFlow.js in TensorFlow, to test the graph without Node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


def read_model(file: Path) -> dict[str, Any]:
    """Reads the JSON of a model."""
    model: dict[str, Any] = json.loads(file.read_text())
    return model


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """Reads the weights of a model as TensorFlow.js does, by the names of its constants."""
    weights = {}
    for group in read_model(file)["weightsManifest"]:
        data = b"".join((file.parent / path).read_bytes() for path in group["paths"])
        position = 0
        for spec in group["weights"]:
            quantized = spec.get("quantization", {})
            dtype = np.dtype(quantized.get("dtype", spec["dtype"]))
            count = int(np.prod(spec["shape"], dtype=int))
            array = np.frombuffer(data, dtype, count, position).reshape(spec["shape"])
            position += array.nbytes
            if "scale" in quantized:
                array = (array * quantized["scale"] + quantized["min"]).astype(np.float32)
            weights[spec["name"]] = array.astype(spec["dtype"])
        assert position == len(data)
    return weights


def list_nodes(file: Path) -> list[dict[str, Any]]:
    """Returns the nodes of a model and of its functions."""
    topology = read_model(file)["modelTopology"]
    functions = topology.get("library", {}).get("function", [])
    return [*topology["node"], *(node for each in functions for node in each["nodeDef"])]
