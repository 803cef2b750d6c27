"""Reads weights from msgpack and safetensors files, Orbax checkpoints, and bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any

import numpy as np

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import FileFormatError, name_missing_package
from jax2tf_bridge.storage import AnyPath, as_path, on_disk
from jax2tf_bridge.weights._safetensors import SafetensorsContents, looks_like_safetensors
from jax2tf_bridge.weights._sources import (
    OTHER_CHECKPOINTS_ADVICE,
    FileSource,
    MemorySource,
    file_source,
)
from jax2tf_bridge.weights._state_dicts import from_state_dict, to_state_dict
from jax2tf_bridge.weights._stored import LeafInfo, StoredContents
from jax2tf_bridge.weights.msgpack import MsgpackContents

_MAX_LISTED = 100
# Maximum number of names to compare for a suggestion, which must not take long.
_MAX_COMPARED = 4096


def msgpack_restore(encoded_pytree: bytes | bytearray | memoryview) -> Any:
    """Reads the bytes that msgpack_serialize wrote, Flax's or the bridge's.

    Args:
      encoded_pytree: the bytes; they must not change while the arrays are in use.

    Returns:
      The tree that flax.serialization.msgpack_restore returns: dicts and lists of numbers, texts,
      bytes, NumPy arrays and scalars. Arrays are read-only, unaligned views of the bytes; arrays
      that were written in chunks are copies.

    Raises:
      FileFormatError: the bytes are damaged, or of another format; or a map has a duplicate key,
        which Flax accepts.
      MissingDependencyError: the dtype of an array needs ml_dtypes, which is not installed.
      SerializationError: `encoded_pytree` is not bytes, but a path, for instance.

    >>> from jax2tf_bridge.weights import msgpack_serialize
    >>> msgpack_restore(msgpack_serialize({"scale": [1.5, 2]}))
    {'scale': [1.5, 2]}
    """
    return MsgpackContents(MemorySource(encoded_pytree)).tree()


def from_bytes(
    target: Any, encoded_bytes: bytes | bytearray | memoryview, *, strict: bool = False
) -> Any:
    """Restores an object like `target` from the bytes that `to_bytes` wrote.

    Args:
      target: an object with the structure of the written one; its leaves are not used.
      encoded_bytes: the bytes, as in msgpack_restore.
      strict: as in from_state_dict.

    Raises:
      StateDictError: the structure differs; with `strict`, also if a shape or dtype differs.
      FileFormatError, MissingDependencyError, SerializationError: as in msgpack_restore.

    >>> from jax2tf_bridge.weights import to_bytes
    >>> from_bytes({"scale": (0, 0)}, to_bytes({"scale": (1.5, 2)}))
    {'scale': (1.5, 2)}
    """
    return from_state_dict(target, msgpack_restore(encoded_bytes), strict=strict)


def read_weights(
    path: str | os.PathLike[str], *, target: Any = None, mmap: bool = True, strict: bool = False
) -> Any:
    """Reads a file of weights, in Flax's msgpack or safetensors, as a tree.

    Args:
      path: the file, on disk or behind a scheme ("gs://bucket/model.msgpack"); the format is
        detected from its contents. Or the directory of an Orbax checkpoint, which orbax-checkpoint
        reads into memory.
      target: an object to restore the tree into, as in from_state_dict; None returns the tree.
      mmap: whether arrays are read-only views of the file, which the system reads on access. The
        file must not be rewritten in place while they are in use (see `WeightsFile`). Otherwise,
        and behind a scheme, arrays are writable copies, and the file may change afterwards.
      strict: as in from_state_dict.

    Raises:
      FileFormatError: the file has neither format, is damaged, or changed while it was read.
      StateDictError: the tree does not fit the target.
      MissingDependencyError: ml_dtypes, for the dtype of an array, or orbax-checkpoint is not
        installed.
      OSError: the file cannot be read.

    >>> import os, tempfile
    >>> from jax2tf_bridge import write_weights
    >>> path = os.path.join(tempfile.mkdtemp(), "model.msgpack")
    >>> write_weights(path, {"layers": [0.5, 0.25]})
    >>> read_weights(path), read_weights(path, target={"layers": [0, 0]})
    ({'layers': {'0': 0.5, '1': 0.25}}, {'layers': [0.5, 0.25]})
    """
    if as_path(path).is_dir():
        tree = _read_orbax(path)
        # Flax's state dicts have no lists.
        tree = tree if target is None else to_state_dict(tree)
    else:
        with file_source(path, mmap=mmap) as source:
            tree = _open_contents(source).tree()
            source.check()
    return tree if target is None else from_state_dict(target, tree, strict=strict)


def open_weights(path: str | os.PathLike[str]) -> WeightsFile:
    """Opens a file of weights, in Flax's msgpack or safetensors, to read it leaf by leaf.

    Args:
      path: the file, on disk or behind a scheme ("gs://bucket/model.msgpack"); the format is
        detected from its contents.

    Returns:
      A mapping from paths to leaves, and a context manager.

    Raises:
      FileFormatError: the file has neither format, or is damaged.
      MissingDependencyError: as in `read_weights`.
      OSError: the file cannot be read.

    >>> with open_weights("model.msgpack") as weights:  # doctest: +SKIP
    ...     kernel = weights["params/dense/kernel"]
    """
    source = file_source(path, mmap=True)
    try:
        return WeightsFile(source, _open_contents(source))
    except BaseException:
        source.close()
        raise


def _open_contents(source: FileSource) -> StoredContents:
    if looks_like_safetensors(source.read_window(0).data[:16]):
        return SafetensorsContents(source)
    return MsgpackContents(source)


class WeightsFile(Mapping[str, Any]):
    """Open file of weights: a mapping from paths such as "params/dense/kernel" to leaves.

    `open_weights` makes it, and reads only the structure. Leaves are read on access: arrays are
    read-only views of the file, which the system reads when their elements are used. Arrays that
    the file stores in chunks, and all arrays behind a scheme, are copies.

    If the file changes, the next access raises FileFormatError. If another file takes its name, the
    open file stays readable. Arrays that were returned before cannot be protected: they show the
    new contents of a file that is rewritten in place, and an access beyond the end of a file that
    became shorter ends the process (SIGBUS). So replace files, as `write_weights` does, or read
    them with read_weights(path, mmap=False).

    Attributes:
      file: the name of the file.
      format_name: "msgpack" or "safetensors".
      metadata: the metadata texts of a safetensors file; empty for msgpack.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from jax2tf_bridge.weights import write_weights
    >>> path = os.path.join(tempfile.mkdtemp(), "model.msgpack")
    >>> write_weights(path, {"dense": {"bias": np.zeros(4)}, "step": 7})
    >>> with open_weights(path) as weights:
    ...     print(list(weights), weights["step"], weights.info["dense/bias"])
    ['dense/bias', 'step'] 7 float64[4], 32 bytes
    """

    def __init__(self, source: FileSource, contents: StoredContents) -> None:
        """Stores `source`, which `close` will close, and its `contents`."""
        self.file = source.file
        self.format_name, self.metadata = contents.format_name, contents.metadata
        self._source, self._contents = source, contents
        self._leaves = contents.leaves()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Arrays that were returned stay usable."""
        self._source.close()

    @property
    def info(self) -> dict[str, LeafInfo]:
        """Maps the path of each leaf to its shape, dtype and size, without reading leaves."""
        return {path: leaf.info for path, leaf in self._leaves.items()}

    def tree(self) -> Any:
        """Reads the whole file as a tree of dicts and lists, as `read_weights` does.

        Raises:
          FileFormatError: the file changed.
          ValueError: it was closed.
        """
        self._source.check()
        return self._contents.tree()

    def __getitem__(self, path: str) -> Any:
        """Reads the leaf at a path.

        Raises:
          KeyError: the file has no leaf with this path.
          FileFormatError: the file changed.
          ValueError: it was closed.
        """
        leaf = self._leaves.get(path)
        if leaf is None:
            raise KeyError(self._describe_missing(path))
        self._source.check()
        return leaf.read(self._source)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, path: object) -> bool:
        return path in self._leaves

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        state = ", closed" if self._source.closed else ""
        return f"<{self.format_name} file {self.file!r} of {_count_leaves(self)}{state}>"

    def __str__(self) -> str:
        """Lists path, dtype, shape and size of each leaf, one per line."""
        listed = list(self.info.items())[:_MAX_LISTED]
        width = max((len(path) for path, _ in listed), default=0)
        lines = [repr(self)[1:-1]]
        lines += [f"  {path:{width}}  {info}" for path, info in listed]
        if len(self) > len(listed):
            lines.append(f"  and {len(self) - len(listed)} more")
        return "\n".join(lines)

    def _describe_missing(self, path: object) -> str:
        below = [leaf for leaf in self._leaves if leaf.startswith(f"{path}/")]
        if below:
            leaves = f"{_count_leaves(below)} below it, such as {below[0]!r}"
            return f"{path!r} is not a leaf of {self.file}, which has {leaves}"
        meant = did_you_mean(str(path), islice(self._leaves, _MAX_COMPARED), quoted=True)
        return f"no leaf {path!r} in {self.file}, which has {_count_leaves(self)}{meant}"


def _count_leaves(leaves: Sized) -> str:
    return "1 leaf" if len(leaves) == 1 else f"{len(leaves)} leaves"


# Files that mark the directory of a tree of arrays, and that of a step with a tree for each item.
_TREE_METADATA = "_METADATA"
_STEP_METADATA = "_CHECKPOINT_METADATA"


def _read_orbax(path: str | os.PathLike[str]) -> Any:
    """Reads an Orbax checkpoint as a tree of dicts and lists with NumPy arrays.

    Everything is read, including an optimizer's state. Named tuples become dicts of their fields,
    as Orbax stores them.

    Args:
      path: the directory of a tree, or of a step with one tree; on disk or behind a scheme.

    Raises:
      FileFormatError: it is not an Orbax checkpoint, has several trees, or is damaged.
      MissingDependencyError: orbax-checkpoint is not installed.
      OSError: the checkpoint cannot be read.
    """
    folder = _find_orbax_tree(as_path(path))
    with name_missing_package(f"Reading {folder}, a checkpoint of Orbax,"):
        # Imported late, because orbax-checkpoint is optional and imports JAX.
        import orbax.checkpoint as ocp
    with on_disk(folder) as local:
        place = os.path.abspath(local)
        try:
            checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
            # orbax-checkpoint 0.11 and newer write the metadata of a step.
            metadata = checkpointer.metadata(place)
            metadata = getattr(metadata, "item_metadata", metadata)
            args = _make_restore_args(getattr(metadata, "tree", metadata), ocp)
            return checkpointer.restore(place, restore_args=args)
        except Exception as e:  # Orbax and TensorStore raise many types
            reason = (str(e).strip().splitlines() or ["no reason is given"])[0]
            raise FileFormatError(
                f"{folder} cannot be read as a checkpoint of Orbax: {type(e).__name__}: "
                f"{reason:.300}",
                file=str(folder),
            ) from e


def _find_orbax_tree(folder: AnyPath) -> AnyPath:
    """Returns the directory of the only tree in a directory.

    Raises:
      FileFormatError: the directory has no tree, or several.
    """
    if (folder / _TREE_METADATA).exists():
        return folder
    below: list[AnyPath] = sorted(folder.iterdir(), key=lambda path: path.name)
    trees = [path for path in below if (path / _TREE_METADATA).exists()]
    if len(trees) == 1:
        return trees[0]
    if trees:
        raise FileFormatError(
            f"{folder} is a checkpoint of Orbax with several trees. Name one of "
            f"{', '.join(str(path) for path in trees)}.",
            file=str(folder),
        )
    steps = [path for path in below if (path / _STEP_METADATA).exists()]
    if steps:
        newest = max(steps, key=lambda path: (_read_step_number(path.name), path.name))
        raise FileFormatError(
            f"{folder} is a folder of checkpoints of Orbax. Name one of them, such as {newest}.",
            file=str(folder),
        )
    raise FileFormatError(
        f"{folder} is a directory: expected a file of msgpack or safetensors, or a checkpoint of "
        f"Orbax. {OTHER_CHECKPOINTS_ADVICE}",
        file=str(folder),
    )


def _read_step_number(name: str) -> int:
    digits = "".join(filter(str.isdecimal, name))
    return int(digits) if digits else -1


def _make_restore_args(metadata: Any, ocp: Any) -> Any:
    """Makes arguments that restore the arrays of any device as NumPy arrays."""
    if isinstance(metadata, Mapping):
        return {key: _make_restore_args(child, ocp) for key, child in metadata.items()}
    if isinstance(metadata, (list, tuple)):
        return type(metadata)(_make_restore_args(child, ocp) for child in metadata)
    if metadata is None:
        return None
    is_array = hasattr(metadata, "shape")
    return ocp.RestoreArgs(restore_type=np.ndarray) if is_array else ocp.RestoreArgs()
