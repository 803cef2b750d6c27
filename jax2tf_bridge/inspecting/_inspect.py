"""inspect(): describes a SavedModel, a function's file, a LiteRT model, or a weights file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from jax2tf_bridge._utils import array_type_text, format_bytes, printable
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting._findings import Finding
from jax2tf_bridge.inspecting._functions import (
    SCHEMA,
    describe_function,
    format_function,
    natural_sort_key,
)
from jax2tf_bridge.inspecting._litert import describe_litert, format_litert, is_litert
from jax2tf_bridge.inspecting._saved_models import describe_saved_model, format_saved_model
from jax2tf_bridge.portable import get_stored_functions
from jax2tf_bridge.saved_model import read_saved_model
from jax2tf_bridge.serialization import FlatBufferReader, read_function
from jax2tf_bridge.serialization.jax_exported import ExportedField
from jax2tf_bridge.serialization.jaxfn import HEADER_SIZE, IDENTIFIER, parse_header
from jax2tf_bridge.serving_requests import ExampleRequest, read_example_requests
from jax2tf_bridge.storage import AnyPath, as_path
from jax2tf_bridge.weights import guess_format, open_weights

DEFAULT_OPS = 10
"""Number of the commonest operations of a module that are shown."""


@dataclass(frozen=True)
class Inspection:
    """Contents of a file or a SavedModel; its text is what `jax2tf-bridge inspect` prints.

    Attributes:
      kind: "SavedModel", "function", "LiteRT model" or "weights".
      facts: what `--json` prints; docs/command-line.md has the schema.
      modules: the StableHLO of each entry of `facts["modules"]`; None if it cannot be read.
    """

    kind: Literal["SavedModel", "function", "LiteRT model", "weights"]
    facts: Mapping[str, Any] = field(repr=False)
    modules: tuple[bytes | memoryview | None, ...] = field(default=(), repr=False)

    @property
    def tensorflow(self) -> tuple[str, ...]:
        """TensorFlow releases that surely run it, as "2.17"; empty for LiteRT and weights."""
        return tuple(self.facts.get("tensorflow", ()))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Problems of a SavedModel; empty for files."""
        return tuple(
            Finding(f["severity"], f["text"], f["remedy"], tuple(f["modules"]))
            for f in self.facts.get("findings", ())
        )

    @cached_property
    def requests(self) -> Mapping[str, ExampleRequest]:
        """Example request for each signature of a SavedModel, by name; empty for files.

        `curl()` of a request is a command that calls TensorFlow Serving over REST, and `python()`
        a program that calls it over gRPC. The SavedModel is read when this is first used.

        Raises:
          FileFormatError: a file of the SavedModel is damaged.
          ShapeError: no sizes were found that satisfy the constraints of a signature.
        """
        if self.kind != "SavedModel":
            return {}
        return read_example_requests(self.facts["saved_model"]["path"])

    def as_json(self) -> dict[str, Any]:
        """Returns what `jax2tf-bridge inspect --json` prints."""
        return dict(self.facts)

    def text(self, ops: int = DEFAULT_OPS) -> str:
        """Returns what `jax2tf-bridge inspect` prints, with the `ops` commonest operations."""
        return printable("\n".join(_LINE_FORMATTERS[self.kind](self.facts, ops)))

    def __str__(self) -> str:
        return self.text()


def _format_weights(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    file, weights = facts["file"], facts["weights"]
    yield f"{file['path']}, weights in {file['format']}, {format_bytes(file['bytes'])}"
    yield ""
    rows = [format_weights_row(leaf) for leaf in weights["list"]]
    width, types = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    for path, kind, size in rows:
        yield f"  {path:{width}}  {kind:{types}}  {size}".rstrip()
    yield ""
    yield f"{format_leaf_count(weights)}, {format_bytes(weights['bytes'])}"
    for name, text in facts["metadata"].items():
        yield f"{name}: {text}"


def format_weights_row(leaf: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns path, type and size of a leaf, as text."""
    if leaf["dtype"] is None:
        return leaf["path"], "no array", ""
    kind = array_type_text(leaf["dtype"], leaf["shape"])
    return leaf["path"], kind, format_bytes(leaf["bytes"])


def format_leaf_count(weights: Mapping[str, Any]) -> str:
    """Formats the number of leaves."""
    return "1 leaf" if weights["count"] == 1 else f"{weights['count']:,} leaves"


_LINE_FORMATTERS: Mapping[str, Callable[[Mapping[str, Any], int], Iterator[str]]] = {
    "SavedModel": format_saved_model,
    "function": format_function,
    "LiteRT model": format_litert,
    "weights": _format_weights,
}


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Describes a SavedModel, a function's file, a LiteRT model, or a weights file.

    Needs neither JAX nor TensorFlow.

    Args:
      path: a SavedModel's folder, a .jaxfn file, a file that jax.export wrote, a .tflite file, or
        weights in msgpack or safetensors.

    Returns:
      Signatures, sizes, the TensorFlow releases that run it, and its problems. Printing it shows
      the report.

    Raises:
      FileFormatError: the file has another format, or is damaged.
      FileNotFoundError: there is nothing at `path`.

    In a test::

        model = jax2tf_bridge.inspect("predict/1")
        assert "2.17" in model.tensorflow, model
        assert not any(f.severity == "error" for f in model.findings), model
    """
    place = as_path(path)
    return _inspect_saved_model(place) if place.is_dir() else _inspect_file(place)


def _inspect_saved_model(path: AnyPath) -> Inspection:
    contents = read_saved_model(path)
    facts = describe_saved_model(contents)
    modules = tuple(
        None if module["unreadable"] else contents.modules[module["number"]].module
        for module in facts["modules"]
    )
    return Inspection("SavedModel", facts, modules)


def _inspect_file(path: AnyPath) -> Inspection:
    """Reads a LiteRT model, a function or, if the file holds neither, weights."""
    with path.open("rb") as file:
        start = file.read(8)
    if is_litert(start):
        return Inspection("LiteRT model", describe_litert(path))
    try:
        return _inspect_function(path)
    except FileFormatError:
        facts = None if start[4:] == IDENTIFIER else _describe_weights(path)
        if facts is None:
            raise
        return Inspection("weights", facts)


def _inspect_function(path: AnyPath) -> Inspection:
    portable = read_function(path)
    facts = {"file": _describe_file(path), **describe_function(portable)}
    modules = tuple(
        None if module["unreadable"] else function.module.data
        for module, function in zip(facts["modules"], get_stored_functions(portable), strict=True)
    )
    return Inspection("function", facts, modules)


def _describe_file(path: AnyPath) -> dict[str, Any]:
    with path.open("rb") as file:
        start, size = file.read(HEADER_SIZE), path.stat().st_size
    if start[4:8] == IDENTIFIER:
        format_name, version = "jaxfn", parse_header(start, size, str(path)).version
    else:
        root = FlatBufferReader(
            path.read_bytes(), what="A function exported by JAX", file=str(path)
        ).root()
        format_name = "jax.export"
        version = root.integer(ExportedField.SERIALIZATION_VERSION)
    return {"path": str(path), "format": format_name, "version": version, "bytes": size}


def _describe_weights(path: AnyPath) -> dict[str, Any] | None:
    """Describes a weights file, leaves in natural order; None for other files."""
    try:
        file = open_weights(path)
    except FileFormatError as e:
        with path.open("rb") as stream:
            other_format = guess_format(stream.read(16))
        if other_format is None or path.stat().st_size == 0:
            return None
        raise FileFormatError(
            f"{path} holds no function, and no weights in msgpack or safetensors. It seems to "
            f"be {other_format}.",
            file=str(path),
        ) from e
    with file:
        if "" in file:  # a single number or text; many other files can be read as one
            return None
        leaves = [
            {
                "path": leaf,
                "dtype": None if info.dtype is None else info.dtype.name,
                "shape": None if info.shape is None else list(info.shape),
                "bytes": info.nbytes,
            }
            for leaf, info in sorted(file.info.items(), key=lambda item: natural_sort_key(item[0]))
        ]
        return {
            "schema": SCHEMA,
            "file": {
                "path": str(path),
                "format": file.format_name,
                "bytes": path.stat().st_size,
            },
            "weights": {
                "count": len(leaves),
                "bytes": sum(info.nbytes for info in file.info.values()),
                "list": leaves,
            },
            "metadata": dict(file.metadata),
        }
