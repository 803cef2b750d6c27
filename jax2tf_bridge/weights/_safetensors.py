"""Reads .safetensors files: a JSON header, then the tensors in sequence.

The safetensors library copies each tensor, and does not support float8 with NumPy. Here tensors are
views of the file, for every dtype of whole bytes.

See https://huggingface.co/docs/safetensors/index#format for the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from jax2tf_bridge._dtypes import ALL_DTYPES
from jax2tf_bridge._utils import JsonProblem, JsonValue, array_type_text
from jax2tf_bridge.errors import FileFormatError, StateDictError
from jax2tf_bridge.weights._paths import join_path, split_path, unflatten_state
from jax2tf_bridge.weights._sources import FileSource, Span
from jax2tf_bridge.weights._stored import MAX_RANK, StoredArray, fits_numpy, read_dtype

_LENGTH = 8
_MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header in bytes, defined by the format."""

_METADATA = "__metadata__"
DTYPES = MappingProxyType(
    {row.safetensors: row.name for row in ALL_DTYPES if row.safetensors is not None}
)


class SafetensorsContents:
    """Tensors of a file with a valid header.

    Attributes:
      format_name: "safetensors".
      metadata: the metadata texts of the file.
    """

    format_name = "safetensors"

    def __init__(self, source: FileSource) -> None:
        """Reads the header.

        Raises:
          FileFormatError: it is damaged, or has dtypes that NumPy does not support.
          MissingDependencyError: a dtype needs ml_dtypes, which is not installed.
        """
        self._source = source
        text, start = _read_header(source)
        metadata: dict[str, str] = {}
        tensors: dict[str, StoredArray] = {}
        try:
            for name, value in JsonValue.of(text).items():
                if name == _METADATA:
                    metadata = {key: entry.text() for key, entry in value.items()}
                else:
                    tensors[name] = _read_tensor(name, value, start, source.file)
            _check_places(tensors, start, source.size)
        except JsonProblem as e:
            raise _make_error(source, str(e)) from e
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        self._leaves = {_convert_name(name): tensor for name, tensor in tensors.items()}
        if len(self._leaves) != len(tensors):
            raise _make_error(source, "two tensors have names that are the same path")

    def leaves(self) -> dict[str, StoredArray]:
        """Maps paths to tensors, in the order of the header."""
        return dict(self._leaves)

    def tree(self) -> dict[str, Any]:
        """Reads the tensors as nested dicts; "/" separates the keys in a name.

        Raises:
          StateDictError: the name of a tensor is a prefix of another one's.
        """
        return unflatten_state(
            {path: leaf.read(self._source) for path, leaf in self._leaves.items()}
        )


def looks_like_safetensors(start: bytes | memoryview) -> bool:
    """Returns whether a file with these first 9 or more bytes must be safetensors.

    >>> looks_like_safetensors(bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}")
    True
    """
    length = int.from_bytes(start[:_LENGTH], "little")
    return bytes(start[_LENGTH : _LENGTH + 1]) == b"{" and length <= _MAX_HEADER_BYTES


def _read_header(source: FileSource) -> tuple[str, int]:
    """Reads the text of the header, and the offset of the tensors."""
    if source.size < _LENGTH:
        raise _make_error(source, f"it has {source.size} bytes, and its header alone takes more")
    length = int.from_bytes(source.read_bytes(Span(0, _LENGTH)), "little")
    if length > _MAX_HEADER_BYTES:
        raise _make_error(
            source, f"its header has {length} bytes, and at most {_MAX_HEADER_BYTES} are allowed"
        )
    if length > source.size - _LENGTH:
        raise _make_error(
            source,
            f"its header should have {length} bytes, but only {source.size - _LENGTH} follow its "
            "length",
        )
    data = source.read_bytes(Span(_LENGTH, length))
    try:
        return str(data, "utf-8"), _LENGTH + length
    except UnicodeDecodeError as e:
        raise _make_error(source, f"byte {_LENGTH + e.start}, in the header, is not UTF-8") from e


def _read_tensor(name: str, value: JsonValue, start: int, file: str) -> StoredArray:
    """Checks the header's entry of a tensor; the tensors begin at the offset `start`."""
    code, shape = value.get("dtype").text(), value.get("shape").shape()
    offsets = [offset.integer(0) for offset in value.get("data_offsets").elements()]
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise value.get("data_offsets").problem("where the bytes begin, and where they end")
    if code not in DTYPES:
        raise value.get("dtype").problem(f"a dtype that NumPy supports: {', '.join(DTYPES)}")
    dtype = read_dtype(DTYPES[code], file)
    tensor = f"the tensor {name!r:.200}"
    if isinstance(dtype, str):
        raise JsonProblem(f"{tensor} is of {DTYPES[code]}: expected {dtype}")
    if len(shape) > MAX_RANK:
        raise JsonProblem(f"{tensor} has {len(shape)} dimensions, and at most {MAX_RANK} are read")
    begin, end = offsets
    size = prod(shape) * dtype.itemsize
    if size != end - begin or not fits_numpy(shape, dtype):
        takes = f"{size} bytes" if fits_numpy(shape, dtype) else "too many bytes for any file"
        text = array_type_text(dtype.name, shape)
        raise JsonProblem(f"{tensor} is {text:.200}, {takes}, but has {end - begin}")
    return StoredArray(start + begin, dtype, shape)


def _check_places(tensors: Mapping[str, StoredArray], start: int, end: int) -> None:
    """Checks that the tensors fill the bytes from `start` to `end` without gaps."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda t: (t[1].start, t[1].info.nbytes)):
        begin = tensor.start - start
        if begin != at:
            kind = "overlaps the one before" if begin < at else "leaves a gap before it"
            raise JsonProblem(
                f"the tensor {name!r:.200} {kind}: it begins at byte {begin} of the "
                f"data, expected {at}"
            )
        at += tensor.info.nbytes
    if at != end - start:
        kind = "ends too early" if end - start < at else "has more at its end"
        raise JsonProblem(f"it {kind}: its tensors take {at} bytes, and it has {end - start}")


def _convert_name(name: str) -> str:
    """Converts the name of a tensor to a path; valid paths stay the same.

    >>> _convert_name("layers.0.weight"), _convert_name("a~b/c"), _convert_name("")
    ('layers.0.weight', 'a~0b/c', '~')
    """
    try:
        return name if name and split_path(name) else join_path([""])
    except StateDictError:
        return join_path(name.split("/"))


def _make_error(source: FileSource, problem: str) -> FileFormatError:
    return FileFormatError(
        f"{source.file} cannot be read as a safetensors file: {problem}. Copy it anew, or write it "
        "again.",
        file=source.file,
    )
