"""Lifted arrays as .jaxfn files hold them: behind the modules, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._array_sizes import array_size
from jax2tf_bridge.portable._aval import LiftedConstant
from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn import _schema as schema
from jax2tf_bridge.serialization.jaxfn._file_parts import Part, hexdigests
from jax2tf_bridge.serialization.jaxfn._texts import each


def distinct_arrays(constants: Iterable[LiftedConstant]) -> dict[str, bytes]:
    """Collects the arrays of these constants by their digests, in the order in which they come.

    Raises:
      SerializationError: the digest of one is not that of its bytes.
    """
    arrays: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for constant in constants:
        if constant.data is None:
            continue
        first = arrays.setdefault(constant.digest, constant.data)
        names.setdefault(constant.digest, constant.name)
        if first is not constant.data and first != constant.data:
            raise _other_bytes(constant.name, constant.digest)
    found = hexdigests(["array"] * len(arrays), list(arrays.values()))
    for digest, checksum in zip(arrays, found, strict=True):
        if checksum != digest:
            raise _other_bytes(names[digest], digest)
    return arrays


def _other_bytes(name: str, digest: str) -> SerializationError:
    return SerializationError(
        f"The data of the lifted constant {name!r:.80} is not what its digest, {digest}, is of: "
        "expected the SHA-256 of the data."
    )


def laid_out(arrays: Iterable[bytes], end: int) -> list[bytes]:
    """Lays the arrays out behind what ends at `end`, with zeros before each."""
    found = []
    for data in arrays:
        start = _format.array_start(end)
        found += [bytes(start - end), data]
        end = start + len(data)
    return found


def array_parts(
    root: Table, texts: Sequence[str], constants: Iterable[LiftedConstant], end: int
) -> list[Part]:
    """Finds where the arrays lie in a file whose modules end at `end`.

    Args:
      root: of the file.
      texts: of the file.
      constants: of its functions, all of them consistent.
      end: in bytes.

    Raises:
      FileFormatError: they are not those of the constants.
    """
    field = schema.File.ARRAY_DIGESTS
    if not (root.has(field) or root.has(schema.File.ARRAY_SIZES)):
        return []
    digests = each(root, field, texts)
    sizes = root.integers(schema.File.ARRAY_SIZES, "u64")
    if len(digests) != len(sizes):
        raise root.error(
            field, "a digest and a size each array", f"{len(digests)} and {len(sizes)}"
        )
    stored = dict(zip(digests, sizes, strict=True))
    if len(stored) != len(digests):
        raise root.error(field, "digests that differ", "one of them twice")
    names = _names(root, constants, stored)
    parts = []
    for digest, size in stored.items():
        if digest not in names:
            raise root.error(field, "digests of lifted constants", f"{digest!r:.80}")
        part = Part("array", names[digest], _format.array_start(end), size, digest)
        parts.append(part)
        end = part.end
    return parts


def _names(
    root: Table, constants: Iterable[LiftedConstant], stored: Mapping[str, int]
) -> dict[str, str]:
    """Names the arrays that are stored, after comparing their sizes."""
    names: dict[str, str] = {}
    sizes: dict[int, int | str] = {}
    for constant in constants:
        # Files name abstract values by number: each object is looked at once.
        aval = id(constant.aval)
        if aval not in sizes:
            sizes[aval] = array_size(constant.aval)
        size = stored.get(constant.digest)
        if size is None:
            continue
        if size != sizes[aval]:
            raise root.error(
                schema.File.ARRAY_SIZES,
                f"{sizes[aval]} bytes for {constant.aval!s:.80}",
                f"{size}",
            )
        names.setdefault(constant.digest, constant.name)
    return names
