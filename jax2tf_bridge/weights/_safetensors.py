"""Reads .safetensors files: tensors by name, one behind the other, after a header of JSON.

The library checks the header; the tensors are taken from the file itself. For NumPy the library
copies each tensor, and has no float8, in any release; here they are views of the file, of every
dtype of whole bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jax2tf_bridge._utils._json_values import JsonProblem, JsonValue
from jax2tf_bridge.errors import FileFormatError, MissingDependencyError, StateDictError
from jax2tf_bridge.portable._array_sizes import array_size
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import ALL_DTYPES
from jax2tf_bridge.weights._files import StoredArray
from jax2tf_bridge.weights._paths import join_path, split_path, unflatten_state
from jax2tf_bridge.weights._sources import FileSource, Span
from jax2tf_bridge.weights.msgpack._format import dtype_named

_LENGTH = 8
_LONGEST_HEADER = 100_000_000
"""Bytes, by the format's definition."""

_MOST_DIMENSIONS = 32
"""As NumPy 1.26 has them."""

_METADATA = "__metadata__"
DTYPES = MappingProxyType(
    {row.safetensors: row.name for row in ALL_DTYPES if row.safetensors is not None}
)


class _Tensor(NamedTuple):
    """A tensor as the header has it; `begin` and `end` are bytes behind the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsContents:
    """The tensors of a file, which has been checked as a whole.

    Attributes:
      format_name: "safetensors".
      metadata: the texts that the file has beside its tensors.
    """

    format_name = "safetensors"

    def __init__(self, source: FileSource) -> None:
        """Reads the header.

        Raises:
          FileFormatError: it is damaged, or has what NumPy has no dtype for.
          MissingDependencyError: the library is not installed.
        """
        self._source = source
        header, start = _header(source)
        try:
            self.metadata, tensors = _parts(header)
            _check_places(tensors, source.size - start)
            stored = {t.name: _stored(t, start) for t in tensors}
        except JsonProblem as e:
            raise _damaged(source, str(e)) from e
        _check_by_library(source, tensors)
        self._leaves = {_path(name): leaf for name, leaf in stored.items()}
        if len(self._leaves) != len(stored):
            raise _damaged(source, "two tensors have names that are the same path")

    def leaves(self) -> dict[str, StoredArray]:
        """The tensors by their names, in the order of the header."""
        return dict(self._leaves)

    def tree(self) -> dict[str, Any]:
        """The tensors in nested dicts; "/" in a name leads to another one.

        Raises:
          StateDictError: a name leads through another tensor.
        """
        return unflatten_state(
            {path: leaf.read(self._source) for path, leaf in self._leaves.items()}
        )


def looks_like_safetensors(start: bytes | memoryview) -> bool:
    """Whether a file that begins with these bytes, 9 or more, can only be of this format.

    >>> looks_like_safetensors(bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}")
    True
    """
    length = int.from_bytes(start[:_LENGTH], "little")
    return bytes(start[_LENGTH : _LENGTH + 1]) == b"{" and length <= _LONGEST_HEADER


def _header(source: FileSource) -> tuple[str, int]:
    """The text of the header, and where the tensors begin."""
    if source.size < _LENGTH:
        raise _damaged(source, f"it has {source.size} bytes, and its header alone takes more")
    length = int.from_bytes(source.content(Span(0, _LENGTH)), "little")
    if length > _LONGEST_HEADER:
        raise _damaged(
            source, f"its header has {length} bytes, and at most {_LONGEST_HEADER} are allowed"
        )
    if length > source.size - _LENGTH:
        raise _damaged(
            source,
            f"its header has {length} bytes, and the file {source.size - _LENGTH} in all behind "
            "the header's length",
        )
    data = source.content(Span(_LENGTH, length))
    try:
        return str(data, "utf-8"), _LENGTH + length
    except UnicodeDecodeError as e:
        raise _damaged(source, f"byte {_LENGTH + e.start}, in the header, is no UTF-8") from e


def _parts(header: str) -> tuple[Mapping[str, str], list[_Tensor]]:
    """The metadata and the tensors of a header."""
    metadata: dict[str, str] = {}
    tensors = []
    for name, value in JsonValue.of(header).items():
        if name == _METADATA:
            metadata = {key: text.text() for key, text in value.items()}
            continue
        dtype, shape = value.get("dtype").text(), value.get("shape").shape()
        offsets = [offset.integer(0) for offset in value.get("data_offsets").elements()]
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            raise value.get("data_offsets").problem("where the bytes begin, and where they end")
        if dtype not in DTYPES:
            raise value.get("dtype").problem(
                f"one of {', '.join(DTYPES)}, which NumPy has arrays of"
            )
        tensors.append(_Tensor(name, dtype, shape, *offsets))
    return MappingProxyType(metadata), tensors


def _check_places(tensors: list[_Tensor], room: int) -> None:
    """The tensors lie one behind the other, and fill the file."""
    at = 0
    for tensor in sorted(tensors, key=lambda t: (t.begin, t.end)):
        if tensor.begin != at:
            kind = "overlaps the one before" if tensor.begin < at else "leaves a gap before it"
            raise JsonProblem(
                f"the tensor {tensor.name!r:.200} {kind}: it begins at byte {tensor.begin} of the "
                f"data, expected {at}"
            )
        at = tensor.end
    if at != room:
        kind = "ends too early" if room < at else "has more at its end"
        raise JsonProblem(f"it {kind}: its tensors take {at} bytes, and {room} are there")


def _stored(tensor: _Tensor, start: int) -> StoredArray:
    name = DTYPES[tensor.dtype]
    dtype = dtype_named(name)
    if dtype is None:
        raise JsonProblem(
            f"the tensor {tensor.name!r:.200} is of {name}, which takes ml_dtypes of a release "
            "that has it: pip install --upgrade ml_dtypes"
        )
    aval = Aval(tensor.shape, name)
    size, there = array_size(aval), tensor.end - tensor.begin
    if size != there:
        takes = f"{size} bytes" if isinstance(size, int) else "too many bytes for any file"
        raise JsonProblem(
            f"the tensor {tensor.name!r:.200} is {aval!s:.200}, {takes}, and has {there}"
        )
    if len(tensor.shape) > _MOST_DIMENSIONS:
        raise JsonProblem(
            f"the tensor {tensor.name!r:.200} has {len(tensor.shape)} dimensions, and at most "
            f"{_MOST_DIMENSIONS} are read"
        )
    if size == 0:
        try:
            np.empty(tensor.shape, dtype)
        except ValueError as e:  # the product of the others is too large, for all that
            raise JsonProblem(f"the tensor {tensor.name!r:.200} is {aval!s:.200}: {e}") from e
    return StoredArray(start + tensor.begin, dtype, tensor.shape)


def _check_by_library(source: FileSource, tensors: list[_Tensor]) -> None:
    """The library reads the same in the file."""
    try:
        import safetensors
    except ImportError as e:
        raise MissingDependencyError(
            "safetensors", "safetensors", f"Reading {source.file}, a safetensors file,"
        ) from e
    try:
        with safetensors.safe_open(source.file, "np") as opened:
            found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            read = {n: (s.get_dtype(), tuple(s.get_shape())) for n, s in found.items()}
    except safetensors.SafetensorError as e:
        source.check()
        raise _damaged(
            source,
            f"safetensors {safetensors.__version__} refuses it: {e}; a newer release of it may "
            "know dtypes that this one does not",
        ) from e
    if read != {t.name: (t.dtype, t.shape) for t in tensors}:
        source.check()
        raise _damaged(source, f"safetensors {safetensors.__version__} reads another header in it")


def _path(name: str) -> str:
    """The path of a tensor: its name, if that is one.

    >>> _path("layers.0.weight"), _path("a~b/c"), _path("")
    ('layers.0.weight', 'a~0b/c', '~')
    """
    try:
        return name if name and split_path(name) else join_path([""])
    except StateDictError:
        return join_path(name.split("/"))


def _damaged(source: FileSource, problem: str) -> FileFormatError:
    return FileFormatError(
        f"{source.file} cannot be read as a safetensors file: {problem}. Copy it anew, or write it "
        "again.",
        file=source.file,
    )
