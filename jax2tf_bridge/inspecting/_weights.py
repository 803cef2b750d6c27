"""Describes weights files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jax2tf_bridge._utils import array_type_text, in_units
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting._functions import SCHEMA, natural_sort_key
from jax2tf_bridge.storage import AnyPath
from jax2tf_bridge.weights import guess_format, open_weights


def describe_weights(path: AnyPath) -> dict[str, Any] | None:
    """Describes a weights file, leaves in natural order; None for other files.

    Raises:
      FileFormatError: the file has a known format that is not supported.
      OSError: the file cannot be read.
    """
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
        if "" in file:  # a single number or text, which other files often seem to start with
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


def format_weights(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields the lines that `inspect` prints for weights; `ops` has no effect."""
    file, weights = facts["file"], facts["weights"]
    yield f"{file['path']}, weights in {file['format']}, {in_units(file['bytes'])}"
    yield ""
    rows = [format_weights_row(leaf) for leaf in weights["list"]]
    width, types = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    for path, kind, size in rows:
        yield f"  {path:{width}}  {kind:{types}}  {size}".rstrip()
    yield ""
    yield f"{format_leaf_count(weights)}, {in_units(weights['bytes'])}"
    for name, text in facts["metadata"].items():
        yield f"{name}: {text}"


def format_weights_row(leaf: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns path, type and size of a leaf, as text."""
    if leaf["dtype"] is None:
        return leaf["path"], "no array", ""
    kind = array_type_text(leaf["dtype"], leaf["shape"])
    return leaf["path"], kind, in_units(leaf["bytes"])


def format_leaf_count(weights: Mapping[str, Any]) -> str:
    """Counts the leaves."""
    return "1 leaf" if weights["count"] == 1 else f"{weights['count']:,} leaves"
