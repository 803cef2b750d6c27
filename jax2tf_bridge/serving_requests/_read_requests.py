"""Reads a SavedModel, and makes an example request for each of its signatures."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge._utils import ItemsByName
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.publishing import STABLE, read_configured_model
from jax2tf_bridge.saved_model import (
    GraphSignature,
    ProtoMessage,
    SignatureEntry,
    find_input_shapes,
    read_array,
    read_requests,
    read_serving_graph,
    read_sidecar,
    read_strings,
    read_tensor_spec,
)
from jax2tf_bridge.serving_requests._example_request import (
    Arrays,
    ExampleRequest,
    SignatureInput,
    choose_inputs,
    has_values,
)
from jax2tf_bridge.storage import AnyPath, StoragePath, as_path, local_path

_MAX_ELEMENTS = 1 << 24
"""Maximum number of elements of an array that is read from a warm-up request."""


def read_example_requests(path: str | os.PathLike[str]) -> dict[str, ExampleRequest]:
    """Returns an example request for each signature of a SavedModel, by name.

    Values are those of the warm-up requests that hold more than zeros; otherwise defaults of the
    signature, and ones. Sizes satisfy the constraints that `save` stored. In models of other tools,
    each open size is 1, which they may refuse. The name of the model, and the label of the version,
    are those in models.config beside the versions, where it lists the model.

    Args:
      path: the folder.

    Raises:
      FileNotFoundError: the folder does not exist.
      FileFormatError: it is not a SavedModel, or is damaged.
      ShapeError: no sizes were found that satisfy the constraints.
    """
    folder = as_path(path)
    signatures = read_serving_graph(folder).signatures
    sidecar = read_sidecar(folder)
    examples = _read_examples(folder, signatures.keys())
    served = find_served_name(folder)
    requests = {}
    for name, signature in sorted(signatures.items()):
        known = None
        if sidecar is not None and name in sidecar[0].signatures:
            known = sidecar[0].signatures[name], sidecar[1][name]
        inputs, portable = _describe_inputs(signature, known)
        requests[name] = ExampleRequest(
            served.model,
            name,
            choose_inputs(name, inputs, portable, examples.get(name)),
            {n: port.type.dtype for n, port in sorted(signature.outputs.items())},
            served.label,
        )
    return ItemsByName("signature", requests)


def _describe_inputs(
    signature: GraphSignature, known: tuple[SignatureEntry, PortableFunction] | None
) -> tuple[dict[str, SignatureInput], PortableFunction | None]:
    """Describes the inputs; also returns the function if it takes them."""
    names = sorted(signature.inputs)
    if known is not None and known[0].inputs.keys() == signature.inputs.keys():
        names = [*known[0].inputs]  # saved_model.pb does not store the order of the arguments
    ports = {name: signature.inputs[name] for name in names}
    shapes = None if known is None else find_input_shapes(ports.values(), *known)
    pad_values = {} if known is None else known[0].pad_numbers()
    inputs = {
        name: SignatureInput(
            port.type.dtype,
            port.type.shape if shapes is None else shapes[name],
            None if port.default is None else _read_array(port.default),
            pad_values.get(name, 0),
        )
        for name, port in ports.items()
    }
    return inputs, None if known is None or shapes is None else known[1]


def _read_examples(folder: AnyPath, signatures: Collection[str]) -> dict[str, Arrays]:
    """Reads the first warm-up request of each signature that is not all zeros."""
    examples: dict[str, Arrays] = {}
    for request in read_requests(folder):
        if request.signature in examples:
            continue
        arrays = {name: _read_array(message) for name, message in request.inputs.items()}
        known = {name: array for name, array in arrays.items() if array is not None}
        if known.keys() == arrays.keys() and has_values(known):
            examples[request.signature] = known
            if examples.keys() >= set(signatures):
                break
    return examples


def _read_array(tensor: ProtoMessage) -> np.ndarray[Any, Any] | None:
    """Reads an array; None if it is large, or if NumPy lacks the dtype here."""
    spec = read_tensor_spec(tensor)
    shape = tuple(size or 0 for size in spec.shape or ())
    size = math.prod(shape)
    if size > _MAX_ELEMENTS:
        return None
    if spec.dtype == "string":
        texts = read_strings(tensor) or (b"",)
        array = np.full(size, texts[-1], object)
        array[: len(texts)] = texts[:size]
        return array.reshape(shape)
    row = find_dtype(spec.dtype)
    try:
        dtype = None if row is None else row.numpy()
    except (ImportError, AttributeError):
        return None
    return None if dtype is None else read_array(tensor, lambda _: dtype)


@dataclass(frozen=True)
class ServedName:
    """Name of a version in requests.

    Attributes:
      model: the name of the model.
      label: the label of the version; "" if it has none.
      configured: the folder of its versions, if models.config beside the folder lists the model.
    """

    model: str
    label: str = ""
    configured: AnyPath | None = None


def find_versions_folder(model: AnyPath) -> AnyPath:
    """Returns the folder of versions that a SavedModel is in.

    A SavedModel that is not in such a folder is served by itself.
    """
    absolute = model.absolute()
    return absolute.parent if absolute.name.isdecimal() else absolute


def find_served_name(model: AnyPath) -> ServedName:
    """Returns the name of a SavedModel in requests: that in models.config, or its folder's.

    A version with several labels is called by "stable", or else by the first in the alphabet.
    """
    root = find_versions_folder(model)
    # publish writes the file beside the folder that a link leads to.
    folder = root if isinstance(root, StoragePath) else local_path(root)
    try:
        configured = read_configured_model(folder)
    except (FileFormatError, OSError):  # it may be damaged in the entry of another model
        configured = None
    if configured is None:
        return ServedName(root.name)
    is_version = root != model.absolute()
    labels = [
        label
        for label, number in configured.labels.items()
        if is_version and number == int(model.absolute().name)
    ]
    label = min(labels, key=lambda each: (each != STABLE, each), default="")
    return ServedName(configured.name, label, folder)
