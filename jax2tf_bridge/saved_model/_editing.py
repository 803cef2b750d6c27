"""Makes changed copies of SavedModels, and replaces the modules in saved_model.pb.

Everything else in saved_model.pb stays the same, byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from jax2tf_bridge.errors import FileFormatError, make_path_error
from jax2tf_bridge.saved_model._graph import CALL_MODULE, Graph
from jax2tf_bridge.saved_model._reading import GRAPH_FILE, MAX_MESSAGE_BYTES
from jax2tf_bridge.saved_model._schema import (
    AttributeField,
    FunctionField,
    GraphField,
    LibraryField,
    MetaGraphField,
    NodeField,
    SavedModelField,
)
from jax2tf_bridge.saved_model._sidecar import MANIFEST
from jax2tf_bridge.serialization import (
    BYTES,
    ProtoMessage,
    bytes_field,
    tag,
    varint,
    varint_field,
)
from jax2tf_bridge.storage import AnyPath, on_disk, whole_directory

_SHARDY = "use_shardy_partitioner"


def check_place(path: AnyPath) -> None:
    """Raises if TensorFlow reads a part of a path as a pattern that does not match itself.

    TensorFlow finds the variables by patterns, on disk and behind schemes: "*" also matches itself,
    but "[1]" only matches "1".

    Raises:
      OSError: the path has such a part; the text names it.
    """
    whole = path if not isinstance(path, Path) else Path(os.path.realpath(path))
    for part in str(whole).split(os.sep if isinstance(path, Path) else "/"):
        if "\\" in part or not fnmatchcase(part, part):
            text = (
                f"cannot hold a SavedModel: TensorFlow reads {part!r} as a pattern, which does not "
                "match that name. Use a path without brackets and backslashes"
            )
            raise make_path_error(errno.EINVAL, text, path)


@contextlib.contextmanager
def edit_copy(source: AnyPath, path: AnyPath, *, overwrite: bool) -> Iterator[Path]:
    """Yields a copy of a directory to change, and renames it to `path` at the end.

    Args:
      source: the directory; it may equal `path`.
      path: the final path; it must not exist or must be an empty folder.
      overwrite: whether to replace a SavedModel at `path`.

    Raises:
      OSError: as in `whole_directory`; or TensorFlow could not read a SavedModel at `path`.
    """
    check_place(path)
    with (
        whole_directory(path, overwrite=overwrite, has=GRAPH_FILE) as new,
        on_disk(source) as here,
    ):
        # A model that is replaced, or is already a copy, shares its weights' files by hard links.
        linked = here != source or (path.exists() and os.path.samefile(path, source))
        shutil.copytree(here, new, copy_function=_link if linked else shutil.copy2)
        (new / MANIFEST).unlink(missing_ok=True)  # it does not describe the changed model
        yield new


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)
    return target


def break_hard_link(path: Path) -> None:
    """Removes a file of a copy before it is rewritten, because the source may share it."""
    path.unlink(missing_ok=True)


@dataclass(frozen=True)
class NewModule:
    """New attributes of an XlaCallModule node.

    Attributes:
      module: the portable artifact.
      calling_convention_version: the attribute `version`.
      uses_shardy: the attribute `use_shardy_partitioner`; False omits it, because TensorFlow before
        2.20 does not know it.
    """

    module: bytes
    calling_convention_version: int
    uses_shardy: bool


_Pieces: TypeAlias = "list[bytes | memoryview]"
"""Pieces of a message, in order."""

_Edits: TypeAlias = "Mapping[int, Callable[[ProtoMessage], _Pieces | None] | _Edits]"
"""Edits by field number: nested edits, or a function that returns the new message or None."""


def replace_modules(
    saved_model: ProtoMessage, modules: Sequence[NewModule]
) -> list[bytes | memoryview]:
    """Replaces the modules of a SavedModel; returns the pieces of the new file, in order.

    Args:
      saved_model: the message from `read_message`.
      modules: the new modules, by the numbers of `read_saved_model`.

    Raises:
      FileFormatError: the file is damaged, or would be too large for TensorFlow.
    """
    numbers = _number_nodes(saved_model)
    if len(numbers) != len(modules):
        raise ValueError(f"the model has {len(numbers)} modules, not {len(modules)}")

    def edit_node(message: ProtoMessage) -> _Pieces | None:
        number = numbers.get(message.start)
        return None if number is None else _replace_module(message, modules[number])

    library: _Edits = {LibraryField.FUNCTIONS: {FunctionField.NODES: edit_node}}
    graph: _Edits = {GraphField.NODES: edit_node, GraphField.LIBRARY: library}
    edits: _Edits = {SavedModelField.META_GRAPHS: {MetaGraphField.GRAPH: graph}}
    pieces = _apply_edits(saved_model, edits)
    if pieces is None:
        return [memoryview(saved_model.data)[saved_model.start : saved_model.end]]
    size = sum(map(len, pieces))
    if size > MAX_MESSAGE_BYTES:
        raise FileFormatError(
            f"The file {saved_model.file} would have {size:,} bytes, and TensorFlow reads at most "
            "2 GiB: save the model with its constants as variables.",
            file=saved_model.file,
        )
    return pieces


def _number_nodes(saved_model: ProtoMessage) -> dict[int, int]:
    """Maps the start of each module's node to the number that `read_saved_model` gives it."""
    numbers: dict[int, int] = {}
    for meta_graph in saved_model.messages(SavedModelField.META_GRAPHS, "a graph of the model"):
        for _, node in Graph(meta_graph).iterate_nodes():
            if node.op == CALL_MODULE:
                numbers[node.message.start] = len(numbers)
    return numbers


def _apply_edits(message: ProtoMessage, edits: _Edits) -> _Pieces | None:
    """Applies edits to a message; returns None if nothing changes."""
    pieces: _Pieces = []
    view = memoryview(message.data)
    unchanged_from = message.start
    for field in message.fields():
        edit = edits.get(field.number)
        if edit is None:
            continue
        inner = message.message(field, "a part of the model")
        edited = edit(inner) if callable(edit) else _apply_edits(inner, edit)
        if edited is None:
            continue
        pieces.append(view[unchanged_from : field.start])
        pieces.append(tag(field.number, BYTES) + varint(sum(map(len, edited))))
        pieces += edited
        unchanged_from = field.end
    return [*pieces, view[unchanged_from : message.end]] if pieces else None


def _replace_module(node: ProtoMessage, new: NewModule) -> _Pieces:
    old_attributes = {"module", "version", *(() if new.uses_shardy else (_SHARDY,))}
    pieces: _Pieces = []
    view = memoryview(node.data)
    for field in node.fields():
        if field.number == NodeField.ATTRIBUTES:
            key, _ = node.entry(field, "an attribute of a node")
            if key in old_attributes:
                continue
        pieces.append(view[field.start : field.end])
    version = varint_field(AttributeField.INTEGER, new.calling_convention_version)
    entry = bytes_field(1, "version") + bytes_field(2, version)
    pieces.append(bytes_field(NodeField.ATTRIBUTES, entry))
    # The module may be large, so it is not copied into the enclosing messages.
    size = len(new.module)
    value = tag(AttributeField.BYTES, BYTES) + varint(size)
    entry = bytes_field(1, "module") + tag(2, BYTES) + varint(len(value) + size) + value
    pieces.append(tag(NodeField.ATTRIBUTES, BYTES) + varint(len(entry) + size) + entry)
    pieces.append(new.module)
    return pieces
