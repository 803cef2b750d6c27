"""Trees as msgpack, in the bytes that Flax writes: msgpack_serialize, to_bytes, write_weights."""

from __future__ import annotations

import io
import os

from jax2tf_bridge._utils._progress import progress_bar
from jax2tf_bridge._utils._replaced_file import replaced_file
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.weights._state_dicts import to_state_dict
from jax2tf_bridge.weights.msgpack._plan import Plan, plan

_LONG = 2**28
"""Bytes from which on writing them is worth a progress bar."""


def msgpack_serialize(pytree: object, in_place: bool = False) -> bytes:
    """A tree of dicts and lists as the bytes that flax.serialization.msgpack_serialize makes of it.

    Arrays and scalars of NumPy and JAX keep their dtype, those of ml_dtypes and times included;
    what is big-endian is written as little-endian.  Arrays of more than 2**30 bytes are written in
    chunks, unless there is a list around them.  Beside the tree, only the result takes memory, and
    what is copied of one array: JAX arrays on other devices, pieces of arrays that are not
    contiguous.

    Args:
      pytree: of dict, list, str, bytes, bool, int, float, complex, None, arrays and their scalars.
      in_place: whether dicts are written in their own order, as Flax does if it may change them;
        else in that of their keys.  Nothing of the tree is changed either way.

    Raises:
      SerializationError: the format cannot hold something, or Flax could not read it; the text has
        its path.
    """
    return _joined(plan(pytree, sort_keys=not in_place))


def to_bytes(target: object) -> bytes:
    """The state dict of a target as the bytes that flax.serialization.to_bytes makes of it.

    Args:
      target: what `to_state_dict` takes: trees of dicts, lists, tuples, named tuples and registered
        types.

    Raises:
      SerializationError: as of `msgpack_serialize`.
      StateDictError: as of `to_state_dict`.
    """
    return _joined(plan(to_state_dict(target), sort_keys=False))


def write_weights(
    path: str | os.PathLike[str], target: object, *, progress: bool | None = None
) -> None:
    """Writes `to_bytes(target)` as a file: all of it or, whatever happens, nothing.

    The arrays go from where they are into the file, so that writing takes 16 MiB of memory at most
    beside the tree, and one array at a time of those on other devices.

    Args:
      path: the file; one of this name is replaced when the new one is complete on disk.
      target: as of `to_bytes`.
      progress: whether a progress bar is shown; None shows it for more than 256 MiB on a terminal.

    Raises:
      SerializationError: as of `msgpack_serialize`, or the path is of a safetensors file; no file
        is touched.
      StateDictError: as of `to_state_dict`; no file is touched.
      OSError: the file cannot be written; FileExistsError if something is there that is no
        regular file.
    """
    name = os.fspath(path)
    if name.lower().endswith(".safetensors"):
        raise SerializationError(
            f"{name} is the name of a safetensors file, and write_weights writes msgpack: expected "
            "another name, as weights.msgpack. For safetensors, use "
            # Arrays whose rows do not follow each other it writes wrong, and says nothing.
            "safetensors.numpy.save_file({name: numpy.array(leaf, order='C') for name, leaf in "
            "flatten_state(to_state_dict(target)).items()}, path)."
        )
    planned = plan(to_state_dict(target), sort_keys=False)
    show = False if progress is None and planned.size < _LONG else progress
    label = f"writing {os.path.basename(name)}"
    with (
        replaced_file(name, bytes_of="to_bytes") as file,
        progress_bar(label, planned.size, "B", show=show) as advance,
    ):
        for block in planned.blocks():
            file.write(block)
            advance(len(block))


def _joined(planned: Plan) -> bytes:
    # Its memory becomes that of the result; join would need copies of arrays all at once.
    result = io.BytesIO()
    for block in planned.blocks():
        result.write(block)
    return result.getvalue()
