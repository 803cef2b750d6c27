"""Describes weights files for `inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge._utils._number_texts import in_units
from jax2tf_bridge.cli.inspect._functions import SCHEMA, natural_order
from jax2tf_bridge.cli.inspect._module_texts import ModuleTexts
from jax2tf_bridge.cli.inspect.html._charts import Bar, bar_chart, largest
from jax2tf_bridge.cli.inspect.html._page import Page, Table
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.storage._paths import AnyPath
from jax2tf_bridge.weights import open_weights
from jax2tf_bridge.weights._magic_bytes import guess_format

_MOST_BARS = 20


def describe_weights(path: AnyPath) -> dict[str, Any] | None:
    """Describes a weights file, leaves in natural order; None for another file.

    Raises:
      FileFormatError: it is of a format that is known, and not read.
      OSError: it cannot be read.
    """
    try:
        file = open_weights(path)
    except FileFormatError as e:
        with path.open("rb") as opened:
            what = guess_format(opened.read(16))
        if what is None or path.stat().st_size == 0:
            return None
        raise FileFormatError(
            f"{path} holds no function, and no weights in msgpack or of safetensors. It seems to "
            f"be {what}.",
            file=str(path),
        ) from e
    with file:
        if "" in file:  # a single number or text, as every other byte is one
            return None
        leaves = [
            {
                "path": leaf,
                "dtype": None if info.dtype is None else info.dtype.name,
                "shape": None if info.shape is None else list(info.shape),
                "bytes": info.nbytes,
            }
            for leaf, info in sorted(file.info.items(), key=lambda item: natural_order(item[0]))
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


def weights_lines(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields what `inspect` prints of weights; `ops` is there for other files."""
    file, weights = facts["file"], facts["weights"]
    yield f"{file['path']}, weights in {file['format']}, {in_units(file['bytes'])}"
    yield ""
    rows = [_row(leaf) for leaf in weights["list"]]
    width, types = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    for path, kind, size in rows:
        yield f"  {path:{width}}  {kind:{types}}  {size}".rstrip()
    yield ""
    yield f"{_count(weights)}, {in_units(weights['bytes'])}"
    for name, text in facts["metadata"].items():
        yield f"{name}: {text}"


def weights_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a weights file."""
    file, weights = facts["file"], facts["weights"]
    bars = [Bar(leaf["path"], leaf["bytes"], in_units(leaf["bytes"])) for leaf in weights["list"]]
    return Page(
        title=file["path"],
        subtitle=f"Weights in {file['format']}, {in_units(file['bytes'])}",
        summary=[
            ("weights", f"{_count(weights)}, {in_units(weights['bytes'])}"),
            *facts["metadata"].items(),
        ],
        tables=[
            Table(
                "Weights",
                ["path", "type", "size"],
                [_row(leaf) for leaf in weights["list"]],
                numbers=frozenset({2}),
            )
        ],
        charts=[bar_chart("Weights, in bytes", largest(bars, _MOST_BARS, in_units))],
        footer=f"Made by jax2tf-bridge {version} inspect.",
    )


def _row(leaf: Mapping[str, Any]) -> tuple[str, str, str]:
    if leaf["dtype"] is None:
        return leaf["path"], "no array", ""
    kind = array_type_text(leaf["dtype"], leaf["shape"])
    return leaf["path"], kind, in_units(leaf["bytes"])


def _count(weights: Mapping[str, Any]) -> str:
    return "1 leaf" if weights["count"] == 1 else f"{weights['count']:,} leaves"
