"""Opens and reads files of weights, whatever their format, and bytes in Flax's msgpack."""

from __future__ import annotations

import os
from typing import Any

from jax2tf_bridge.weights._files import Contents, WeightsFile
from jax2tf_bridge.weights._safetensors import SafetensorsContents, looks_like_safetensors
from jax2tf_bridge.weights._sources import FileSource, MappedSource, MemorySource
from jax2tf_bridge.weights._state_dicts import from_state_dict
from jax2tf_bridge.weights.msgpack._read import MsgpackContents


def msgpack_restore(data: bytes | bytearray | memoryview) -> Any:
    """The tree that flax.serialization.msgpack_serialize or the bridge's wrote.

    Args:
      data: the bytes; they must stay as they are while the arrays are in use.

    Returns:
      What flax.serialization.msgpack_restore returns: dicts and lists, whose leaves are numbers,
      texts, bytes, NumPy arrays and scalars. Arrays are read-only views of `data`, not aligned;
      those that were written in chunks are copies.

    Raises:
      FileFormatError: they are no such bytes, or damaged; or a map has a key twice, which Flax
        lets pass.
      MissingDependencyError: the dtype of an array is one of ml_dtypes, which is not installed.
    """
    return MsgpackContents(MemorySource(data)).tree()


def from_bytes(target: Any, data: bytes | bytearray | memoryview, *, strict: bool = False) -> Any:
    """`target` with the leaves that `to_bytes` wrote: from_state_dict of msgpack_restore.

    Args:
      target: of the structure that was written; its leaves are not used.
      data: as for msgpack_restore.
      strict: as for from_state_dict.

    Raises:
      StateDictError: the structure differs; with strict, a shape or a dtype.
      FileFormatError, MissingDependencyError: as for msgpack_restore.
    """
    return from_state_dict(target, msgpack_restore(data), strict=strict)


def read_weights(
    path: str | os.PathLike[str], *, target: Any = None, mmap: bool = True, strict: bool = False
) -> Any:
    """The tree in a file of weights, in Flax's msgpack or of safetensors.

    Args:
      path: the file; its content says which format it has.
      target: what from_state_dict restores the tree into; None for the tree itself.
      mmap: whether arrays are read-only views of the file, which is read when they are used, and
        must not be written to while they are (`WeightsFile` says what happens then). Otherwise
        they are copies, which may be written to, and the file may change afterwards.
      strict: as for from_state_dict.

    Raises:
      FileFormatError: the file is of neither format, or damaged, or changed while it was read.
      StateDictError: the tree does not fit the target.
      MissingDependencyError: the dtype of an array is one of ml_dtypes, or the file is one of
        safetensors, and that is not installed.
      OSError: the file cannot be read.
    """
    with (MappedSource if mmap else FileSource)(path) as source:
        tree = _contents(source).tree()
        source.check()
    return tree if target is None else from_state_dict(target, tree, strict=strict)


def open_weights(path: str | os.PathLike[str]) -> WeightsFile:
    """Opens a file of weights, in Flax's msgpack or of safetensors, for reading leaf by leaf.

    Args:
      path: the file; its content says which format it has.

    Returns:
      A mapping from paths to leaves, and a context manager.

    Raises:
      FileFormatError: the file is of neither format, or damaged.
      MissingDependencyError: as for `read_weights`.
      OSError: the file cannot be read.

    >>> with open_weights("model.msgpack") as weights:  # doctest: +SKIP
    ...     kernel = weights["params/dense/kernel"]
    """
    source = MappedSource(path)
    try:
        return WeightsFile(source, _contents(source))
    except BaseException:
        source.close()
        raise


def _contents(source: FileSource) -> Contents:
    """The reader of the format that the source has."""
    if looks_like_safetensors(source.window(0).data[:16]):
        return SafetensorsContents(source)
    return MsgpackContents(source)
