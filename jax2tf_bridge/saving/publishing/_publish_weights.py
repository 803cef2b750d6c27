"""publish_weights(): writes a new version of a published model with other weights."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
    bullet_list,
    path_error,
)
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import SIDECAR, Sidecar, VariableEntry, read_sidecar
from jax2tf_bridge.saving._fingerprint import renew_fingerprint
from jax2tf_bridge.saving.publishing._publish import NewVersion, latest_version, publish_version
from jax2tf_bridge.saving.publishing._read_back import check_complete
from jax2tf_bridge.saving.weights import PARAMS, PathWeights, as_saved, leaf_names, leaves_for
from jax2tf_bridge.storage import AnyPath, on_disk

_VARIABLES = "variables"
# Tensors are handed to TensorFlow, which may copy them, in groups: as large as the largest tensor,
# or as this, so that small ones do not make many files.
_GROUP_BYTES = 32 << 20
_ALIGNMENT = 64  # bytes, of memory that TensorFlow's vector instructions read


@dataclass(frozen=True)
class _Entry:
    """Tensor of the checkpoint: `value` replaces it, or it is copied."""

    key: str
    dtype: tf.DType
    size: int
    value: Any = None


def publish_weights(
    root: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    keep: int | None = None,
    partial: bool = False,
) -> NewVersion[AnyPath]:
    """Publishes the newest version below `root` again, with other weights.

    Nothing is traced and no model is loaded. Files of the graph are not written again: the new
    version has them by hard links, or as copies where the file system has none. This is sound
    since nothing changes a published file: versions are replaced and removed as a whole. (Who
    edits one by hand should write a new file under its name, as most tools do.)

    Besides what `tensors` holds, memory for one copy of the largest tensor is used, or 32 MiB.

    Args:
      root: a folder with a version that `save` wrote.
      tensors: arrays or tensors by variable name ("dense/kernel"), of the same shapes and
        dtypes as the variables have.
      keep: how many of the newest versions stay, see `publish_version`.
      partial: whether variables may be missing in `tensors`, and keep their values.

    Returns:
      The version; its `result` is the directory whose graph it has.

    Raises:
      StructureError: a name is no variable's, or (unless `partial`) a variable is not given.
      ShapeError, DTypeError: values differ in shape, in dtype; ArgumentsError: in both.
      FileNotFoundError: there is no version below `root`.
      FileFormatError: the newest version was not written by `save`, or is damaged.
      OSError: as `publish_version`.
    """
    while True:
        base = _base(root)
        try:
            return _publish(root, base, tensors, keep, partial)
        except (OSError, FileFormatError, tf.errors.OpError):
            # Another publisher may have removed it meanwhile, after it published a newer one.
            if base.is_dir() or latest_version(root) in (None, base):
                raise


def _publish(
    root: str | os.PathLike[str],
    base: AnyPath,
    tensors: Mapping[str, Any],
    keep: int | None,
    partial: bool,
) -> NewVersion[AnyPath]:
    variables = _sidecar_of(base)[0].variables
    given = _checked(tensors, variables, base, partial)
    with on_disk(base) as source, tf.init_scope(), tf.device("CPU:0"):
        entries = _entries(base, source, variables, given)

        def write(folder: Path) -> AnyPath:
            folder.mkdir()
            _link_tree(source, folder)
            _write_checkpoint(base, source, folder / _VARIABLES, entries)
            renew_fingerprint(folder)
            return base

        needed = sum(entry.size for entry in entries)
        return publish_version(root, write, keep=keep, needed=needed, check=check_complete)


def _base(root: str | os.PathLike[str]) -> AnyPath:
    base = latest_version(root)
    if base is None:
        text = "has no published version yet: publish the model once with its signatures"
        raise path_error(FileNotFoundError, errno.ENOENT, text, root)
    return base


def _sidecar_of(folder: AnyPath) -> tuple[Sidecar, Mapping[str, PortableFunction]]:
    try:
        check_complete(folder)
    except FileFormatError as e:
        raise FileFormatError(
            f"The newest version, {folder}, is damaged, so no other version is made of it: {e} "
            "Remove that folder to take the version before it, or publish the whole model.",
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


def _checked(
    tensors: Mapping[str, Any], variables: Sequence[VariableEntry], base: AnyPath, partial: bool
) -> dict[str, Any]:
    """Checks weights against the variables, and returns them by key of the checkpoint."""
    by_name = {v.name: v for v in variables}
    unknown = [name for name in tensors if name not in by_name]
    missing = [name for name in by_name if name not in tensors]
    problems = [
        f"{name!r} is no variable of it{did_you_mean(str(name), by_name, quoted=True)}"
        for name in unknown
    ]
    if not partial:
        problems += [f"{name!r} is missing: it is {_described(by_name[name])}" for name in missing]
    if problems:
        hint = "" if partial or not missing else "\nTo keep the values of some, give partial=True."
        raise StructureError(
            f"The weights do not fit the variables of {base}:{bullet_list(problems)}{hint}"
        )
    values: dict[str, Any] = {}
    lines: list[str] = []
    errors: set[type[BridgeError]] = set()
    for name, value in tensors.items():
        variable = by_name[name]
        value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
        shape, dtype = tuple(value.shape), _dtype_name(value)
        if shape != variable.shape:
            errors.add(ShapeError)
        if dtype != variable.dtype:
            errors.add(DTypeError)
        if shape != variable.shape or dtype != variable.dtype:
            got = array_type_text(dtype, shape)
            lines.append(f"{variable.path}: expected {_described(variable)}, got {got}")
        values[variable.key] = value
    if errors:
        error = errors.pop() if len(errors) == 1 else ArgumentsError
        raise error(
            f"The weights do not fit the variables of {base}:{bullet_list(lines)}\n"
            "Publish the whole model if the function takes these."
        )
    return values


def _described(variable: VariableEntry) -> str:
    return array_type_text(variable.dtype, variable.shape)


def _dtype_name(value: Any) -> str:
    try:
        return str(tf.as_dtype(value.dtype).name)
    except TypeError:  # such as JAX's key types
        return str(value.dtype)


def _entries(
    base: AnyPath, source: Path, variables: Sequence[VariableEntry], given: Mapping[str, Any]
) -> list[_Entry]:
    """Lists what the new checkpoint holds: every key of the old one, `base`, of which is a copy."""
    try:
        reader = tf.train.load_checkpoint(str(source / _VARIABLES / "variables"))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError) as e:
        raise _unreadable_variables(base, e) from e
    for v in variables:
        found = "nothing"
        if v.key in shapes:
            found = array_type_text(dtypes[v.key].name, shapes[v.key])
        if found != _described(v):
            raise FileFormatError(
                f"{base / SIDECAR} does not belong to the variables beside it: {v.path} is "
                f"{_described(v)}, and {v.key!r} holds {found}. Publish the whole model instead.",
                file=str(base / SIDECAR),
            )
    return [
        _Entry(
            key,
            dtypes[key],
            int(np.prod(shapes[key], dtype=np.int64)) * dtypes[key].size,
            given.get(key),
        )
        for key in sorted(shapes)
    ]


def _link_tree(source: Path, target: Path) -> None:
    """Gives `target` the files of `source`, but its variables."""
    for path, folders, files in os.walk(source, onerror=_raise, followlinks=True):
        relative = Path(path).relative_to(source)
        if relative == Path("."):
            folders.remove(_VARIABLES)
        for folder in folders:
            (target / relative / folder).mkdir()
        for file in files:
            _link(Path(path, file), target / relative / file)


def _raise(error: OSError) -> None:
    raise error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except FileNotFoundError:
        raise
    except OSError:  # not on this file system, too many, or another user's file
        shutil.copy2(source, target)


def _write_checkpoint(base: AnyPath, source: Path, folder: Path, entries: Sequence[_Entry]) -> None:
    folder.mkdir()
    parts = []
    for i, group in enumerate(_groups(entries)):
        parts.append(str(folder / "parts" / f"{i:05}"))
        _save_group(parts[-1], group, _restored(base, source, group))
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=str(folder / "variables")
    )
    with contextlib.suppress(FileNotFoundError):
        (folder / "parts").rmdir()


def _groups(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    limit = max([_GROUP_BYTES, *(entry.size for entry in entries)])
    group: list[_Entry] = []
    size = 0
    for entry in entries:
        if group and size + entry.size > limit:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _restored(base: AnyPath, source: Path, group: Sequence[_Entry]) -> dict[str, tf.Tensor]:
    """Reads the tensors that are copied from `base`, of which `source` is a copy on disk."""
    copied = [entry for entry in group if entry.value is None]
    if not copied:
        return {}
    try:
        tensors = tf.raw_ops.RestoreV2(
            prefix=str(source / _VARIABLES / "variables"),
            tensor_names=[entry.key for entry in copied],
            shape_and_slices=[""] * len(copied),
            dtypes=[entry.dtype for entry in copied],
        )
    except tf.errors.OpError as e:
        raise _unreadable_variables(base, e) from e
    return {entry.key: tensor for entry, tensor in zip(copied, tensors, strict=True)}


def _unreadable_variables(base: AnyPath, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"The variables of {base} cannot be read: {error}. Publish the whole model instead.",
        file=f"{base / _VARIABLES / 'variables'}.index",
    )


def _save_group(prefix: str, group: Sequence[_Entry], restored: Mapping[str, tf.Tensor]) -> None:
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[entry.key for entry in group],
        shape_and_slices=[""] * len(group),
        tensors=[
            restored[entry.key] if entry.value is None else _tensor(entry.value) for entry in group
        ],
    )


def _tensor(value: Any) -> tf.Tensor:
    """Makes a tensor with one copy of the memory at most.

    `tf.convert_to_tensor` copies an array, and its copy once more where that is not aligned.
    """
    if isinstance(value, tf.Tensor | tf.Variable):
        return tf.convert_to_tensor(value)
    array = np.asarray(value)
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return tf.bitcast(_tensor(array.view(np.uint16)), tf.bfloat16)
    if array.dtype.kind not in "iufc":
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(_aligned_copy(array).__dlpack__())


def _aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies numbers to memory that TensorFlow takes as it is."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    native = array.dtype.newbyteorder("=")
    copy: np.ndarray[Any, Any] = memory[start : start + array.nbytes].view(native)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy


def weights_by_name(folder: AnyPath, params: Any) -> dict[str, Any]:
    """Returns the leaves of `params` by the names that `save` gave to their variables.

    Args:
      folder: of the SavedModel.
      params: what `leaves_for` takes: of the structure that was saved, or by paths; containers
        that stand for custom nodes are dicts and tuples where their types are not registered. Or a
        mapping by these names, as `params` of the loaded model.

    Raises:
      FileFormatError: `save` has not written the model, or it is damaged.
      SavingError: it has no weights.
      StructureError: `params` have another structure; each difference is listed.
    """
    sidecar, portables = _sidecar_of(folder)
    leaves = params.leaves if isinstance(params, PathWeights) else params
    names_there = {variable.name for variable in sidecar.variables}
    if names_there and isinstance(leaves, Mapping) and set(leaves) == names_there:
        return dict(leaves)  # `params` of the loaded model has these names
    names: dict[str, Any] = {}
    for name, entry in sidecar.signatures.items():
        if entry.takes_params:
            tree = portables[name].in_tree.children[0].children[0]
            leaves = leaves_for(tree, params, f"the weights of {folder}", PARAMS)
            names |= dict(zip(leaf_names(tree), leaves, strict=True))
    if not names:
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
    return names


def as_variables(folder: AnyPath, named: Mapping[str, Any]) -> dict[str, Any]:
    """Casts leaves to the dtypes of their variables, where `save` would.

    Raises:
      FileFormatError: the model's sidecar is damaged.
    """
    found = read_sidecar(folder)
    variables = () if found is None else found[0].variables
    dtypes = {variable.name: variable.dtype for variable in variables}
    return {n: as_saved(leaf, dtypes[n]) if n in dtypes else leaf for n, leaf in named.items()}
