"""publish_weights(): writes a new version of a published model with other weights."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, did_you_mean
from jax2tf_bridge.errors import (
    Argument,
    ArgumentsError,
    BridgeError,
    DTypeError,
    FileFormatError,
    Message,
    SavingError,
    ShapeError,
    StructureError,
    format_bullets,
    make_path_error,
)
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.publishing import (
    NewVersion,
    Origin,
    check_complete,
    latest_version,
    link_files,
    publish_version,
)
from jax2tf_bridge.saved_model import (
    SIDECAR,
    VARIABLES_FOLDER,
    Sidecar,
    VariableEntry,
    read_sidecar,
)
from jax2tf_bridge.saving._variables import LITERT_VARIABLES, as_saved, renew_fingerprint
from jax2tf_bridge.saving._weight_signatures import choose_names, make_initial_key
from jax2tf_bridge.signatures import PARAMS, PathWeights, convert_array, match_leaves, name_leaves
from jax2tf_bridge.storage import AnyPath, on_disk

_GROUP_BYTES = 32 << 20
"""Size of a group of tensors that are written together, in bytes, if no tensor is larger.

TensorFlow may copy the tensors that it writes, so groups limit the memory.
"""
_ALIGNMENT = 64
"""Alignment of memory that TensorFlow's vector instructions need, in bytes."""


@dataclass(frozen=True)
class _TensorEntry:
    """Tensor of the new checkpoint: `value`, or a copy of the old tensor if that is None."""

    key: str
    dtype: tf.DType
    size: int
    value: Any = None


def publish_weights(
    root: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    keep: int | None = None,
    label: str | None = None,
    note: str = "",
) -> NewVersion[AnyPath]:
    """Publishes the newest version below `root` again, with other weights.

    Nothing is traced and no model is loaded. The new version shares the files of the graph by hard
    links, or has copies if the file system has no hard links. This is sound since nothing changes
    a published file: versions are replaced and removed as a whole. (If you edit one by hand, write
    a new file under its name, as most tools do.)

    Besides `tensors`, this needs memory for one copy of the largest tensor, or 32 MiB.

    Args:
      root: a folder with a version that `save` wrote.
      tensors: arrays or tensors by variable name ("dense/kernel"), with the shapes of the variables
        and with their dtypes, or dtypes that `save` would cast to them.
      keep: the number of newest versions that stay, see `publish_version`.
      label: the label that the version gets, see `publish_version`.
      note: a note for `list_versions`.

    Returns:
      The version; its `result` is the directory of the version that it was made from.

    Raises:
      StructureError: a name is not that of a variable, or a variable is missing.
      ShapeError, DTypeError: values differ in shape or in dtype; ArgumentsError: in both.
      FileNotFoundError: there is no version below `root`.
      FileFormatError: the newest version was not written by `save`, or is damaged.
      OSError: as for `publish_version`.
    """
    while True:
        base = latest_version(root)
        if base is None:
            text = "has no published version yet: publish the model once with its signatures"
            raise make_path_error(errno.ENOENT, text, root)
        try:
            return _publish_on(base, root, tensors, keep, label, note)
        except (OSError, FileFormatError, tf.errors.OpError):
            # Another publisher may have removed the version after publishing a newer one.
            if base.is_dir() or latest_version(root) in (None, base):
                raise


def _publish_on(
    base: AnyPath,
    root: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    keep: int | None,
    label: str | None,
    note: str,
) -> NewVersion[AnyPath]:
    sidecar, portables = _read_required_sidecar(base)
    variables = sidecar.variables
    values = _match_tensors(tensors, variables, base, _find_bfloat16_names(sidecar, portables))
    with on_disk(base) as source, tf.init_scope(), tf.device("CPU:0"):
        entries = _list_entries(base, source, variables, values)

        def write(folder: Path) -> AnyPath:
            folder.mkdir()
            link_files(source, folder, without=VARIABLES_FOLDER)
            _write_checkpoint(base, source, folder / VARIABLES_FOLDER, entries)
            renew_fingerprint(folder)
            return base

        needed = sum(entry.size for entry in entries)
        return publish_version(
            root,
            write,
            keep=keep,
            needed=needed,
            check=check_complete,
            origin=Origin("weights", int(base.name), note),
            label=label,
        )


def _read_required_sidecar(folder: AnyPath) -> tuple[Sidecar, Mapping[str, PortableFunction]]:
    try:
        check_complete(folder)
    except FileFormatError as e:
        raise FileFormatError(
            f"The newest version, {folder}, is damaged, so no new version can be based on it: {e} "
            "Remove that folder to use the version before it, or publish the whole model.",
            file=e.file,
        ) from e
    contents = read_sidecar(folder)
    if contents is None:
        raise FileFormatError(
            f"{folder} was not written by save(): it has no {SIDECAR}, which says where its "
            "variables are. Publish it with its signatures instead.",
            file=str(folder / SIDECAR),
        )
    return contents


def _find_bfloat16_names(sidecar: Sidecar, portables: Mapping[str, PortableFunction]) -> set[str]:
    """Returns the names of the weights that are bfloat16 in JAX; converters get them as float32."""
    names = set[str]()
    for name, entry in sidecar.signatures.items():
        if entry.takes_params:
            leaves = name_leaves(portables[name].first_argument)
            avals = portables[name].in_avals[: len(leaves)]
            names |= {n for n, a in zip(leaves, avals, strict=True) if a.dtype == "bfloat16"}
    return names


def _match_tensors(
    tensors: Mapping[str, Any],
    variables: Sequence[VariableEntry],
    base: AnyPath,
    bfloat16_names: Collection[str],
) -> dict[str, Any]:
    """Checks weights against the variables, and returns them by their checkpoint keys."""
    by_name = {v.name: v for v in variables}
    problems = [
        f"{name!r} is not one of its variables{did_you_mean(str(name), by_name, quoted=True)}"
        for name in tensors
        if name not in by_name
    ]
    problems += [
        f"{name!r} is missing; expected {_format_type(variable)}"
        for name, variable in by_name.items()
        if name not in tensors
    ]
    if problems:
        raise StructureError(
            f"The weights do not fit the variables of {base}:{format_bullets(problems)}"
        )
    values: dict[str, Any] = {}
    lines: list[str] = []
    errors: set[type[BridgeError]] = set()
    for name, value in tensors.items():
        if value is None:  # it keeps its value
            continue
        variable = by_name[name]
        value = as_saved(value, variable.dtype, accepts_bfloat16=name in bfloat16_names)
        value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
        shape, dtype = tuple(value.shape), _get_dtype_name(value)
        if shape != variable.shape:
            errors.add(ShapeError)
        if dtype != variable.dtype:
            errors.add(DTypeError)
        expected, got = _format_type(variable), array_type_text(dtype, shape)
        if got != expected:
            lines.append(f"{variable.path}: expected {expected}, got {got}")
        values[variable.key] = value
        values[make_initial_key(variable.key)] = value
    if errors:
        error = errors.pop() if len(errors) == 1 else ArgumentsError
        raise error(
            f"The weights do not fit the variables of {base}:{format_bullets(lines)}\n"
            "If the function now takes such weights, publish the whole model."
        )
    return values


def _format_type(variable: VariableEntry) -> str:
    return array_type_text(variable.dtype, variable.shape)


def _get_dtype_name(value: Any) -> str:
    try:
        return str(tf.as_dtype(value.dtype).name)
    except TypeError:  # such as JAX's key types
        return str(value.dtype)


def _list_entries(
    base: AnyPath, source: Path, variables: Sequence[VariableEntry], values: Mapping[str, Any]
) -> list[_TensorEntry]:
    """Lists the entries of the new checkpoint; `source` is a copy of `base` on disk."""
    try:
        reader = tf.train.load_checkpoint(str(source / VARIABLES_FOLDER / "variables"))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError) as e:
        raise _make_unreadable_error(base, e) from e
    for v in variables:
        stored = "nothing"
        if v.key in shapes:
            stored = array_type_text(dtypes[v.key].name, shapes[v.key])
        if stored != _format_type(v):
            raise FileFormatError(
                f"{base / SIDECAR} does not belong to the variables beside it: {v.path} is "
                f"{_format_type(v)}, and {v.key!r} holds {stored}. Publish the whole model "
                "instead.",
                file=str(base / SIDECAR),
            )
    return [
        _TensorEntry(
            key,
            dtypes[key],
            int(np.prod(shapes[key], dtype=np.int64)) * dtypes[key].size,
            values.get(key),
        )
        for key in sorted(shapes)
    ]


def _write_checkpoint(
    base: AnyPath, source: Path, folder: Path, entries: Sequence[_TensorEntry]
) -> None:
    folder.mkdir()
    parts = []
    for i, group in enumerate(_iterate_groups(entries)):
        parts.append(str(folder / "parts" / f"{i:05}"))
        _save_group(parts[-1], group, _read_unchanged(base, source, group))
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=str(folder / "variables")
    )
    with contextlib.suppress(FileNotFoundError):
        (folder / "parts").rmdir()


def _iterate_groups(entries: Sequence[_TensorEntry]) -> Iterator[list[_TensorEntry]]:
    limit = max([_GROUP_BYTES, *(entry.size for entry in entries)])
    group: list[_TensorEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.size > limit:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _read_unchanged(
    base: AnyPath, source: Path, group: Sequence[_TensorEntry]
) -> dict[str, tf.Tensor]:
    """Reads the tensors of `base` that have no new value; `source` is its copy on disk."""
    unchanged = [entry for entry in group if entry.value is None]
    if not unchanged:
        return {}
    keys = [entry.key for entry in unchanged]
    try:
        tensors = tf.raw_ops.RestoreV2(
            prefix=str(source / VARIABLES_FOLDER / "variables"),
            tensor_names=keys,
            shape_and_slices=[""] * len(keys),
            dtypes=[entry.dtype for entry in unchanged],
        )
    except tf.errors.OpError as e:
        raise _make_unreadable_error(base, e) from e
    return dict(zip(keys, tensors, strict=True))


def _make_unreadable_error(base: AnyPath, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"The variables of {base} cannot be read: {error}. Publish the whole model instead.",
        file=f"{base / VARIABLES_FOLDER / 'variables'}.index",
    )


def _save_group(
    prefix: str, group: Sequence[_TensorEntry], restored: Mapping[str, tf.Tensor]
) -> None:
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[entry.key for entry in group],
        shape_and_slices=[""] * len(group),
        tensors=[
            restored[entry.key] if entry.value is None else _to_tensor(entry.value)
            for entry in group
        ],
    )


def _to_tensor(value: Any) -> tf.Tensor:
    """Makes a tensor with at most one copy of the memory.

    `tf.convert_to_tensor` copies an array, and copies the copy if that is not aligned.
    """
    if isinstance(value, tf.Tensor | tf.Variable):
        return tf.convert_to_tensor(value)
    array = np.asarray(value)
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return tf.bitcast(_to_tensor(array.view(np.uint16)), tf.bfloat16)
    # DLPack has no floats of 8 bits, whose kind may be "f" as well.
    if array.dtype.kind not in "iufc" or array.dtype.isbuiltin == 2:
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(_copy_aligned(array).__dlpack__())


def _copy_aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies an array to memory that TensorFlow uses without another copy."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    native = array.dtype.newbyteorder("=")
    copy: np.ndarray[Any, Any] = memory[start : start + array.nbytes].view(native)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy


def _find_learned_weights(sidecar: Sidecar) -> dict[str, VariableEntry]:
    """Returns the weights that signatures change, by their names in get_weights."""
    variables = sidecar.list_updated_variables()
    return dict(zip(choose_names([v.name for v in variables]), variables, strict=True))


def _restore_dtype(value: Any, variable: VariableEntry) -> Any:
    """Converts a value of get_weights to the weight's dtype; LiteRT may hold it in another one."""
    array = np.asarray(value)
    if LITERT_VARIABLES.get(variable.dtype) != array.dtype.name:
        return array
    return convert_array(array, variable.dtype)


def map_weights_by_name(folder: AnyPath, params: Any) -> dict[str, Any]:
    """Returns the leaves of `params` by the names that `save` gave to their variables.

    Args:
      folder: the folder of the SavedModel.
      params: weights as for `match_leaves`, in the structure that was saved or by paths, where
        custom nodes of unregistered types are dicts and tuples; or a mapping by these names, like
        `params` of the loaded model; or the results of the signature get_weights. The results lack
        the other weights, which are None here and keep their values.

    Raises:
      FileFormatError: `save` has not written the model, or the model is damaged.
      SavingError: the model has no weights.
      StructureError: `params` have another structure; each difference is listed.
    """
    sidecar, portables = _read_required_sidecar(folder)
    by_name = params.leaves if isinstance(params, PathWeights) else params
    if isinstance(by_name, Mapping) and by_name:
        variable_names = {variable.name for variable in sidecar.variables}
        if set(by_name) == variable_names:  # such as `params` of the loaded model
            return dict(by_name)
        learned = _find_learned_weights(sidecar)
        if set(by_name) == set(learned):
            unchanged = dict.fromkeys(variable_names)
            return unchanged | {v.name: _restore_dtype(by_name[n], v) for n, v in learned.items()}
    values: dict[str, Any] = {}
    for name, entry in sidecar.signatures.items():
        if entry.takes_params:
            tree = portables[name].first_argument
            leaves = match_leaves(tree, params, f"the weights of {folder}", PARAMS)
            values |= dict(zip(name_leaves(tree), leaves, strict=True))
    if not values:
        raise SavingError(
            Message(
                f"{folder} has no weights: none of its signatures takes ",
                Argument("params"),
                ". Publish it once with ",
                Argument("signatures"),
                " and ",
                Argument("params"),
                ", and weights alone from then on.",
            )
        )
    return values
