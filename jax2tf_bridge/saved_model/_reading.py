"""read_saved_model(): reads the directory of a SavedModel, whoever wrote it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError, path_error
from jax2tf_bridge.saved_model._entry_points import called_modules, constants, entry_points
from jax2tf_bridge.saved_model._extras import files_below, read_sidecar, read_warm_up
from jax2tf_bridge.saved_model._meta_graph import MetaGraph
from jax2tf_bridge.saved_model._protobuf import Message
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    GraphConstant,
    SavedModelContents,
)
from jax2tf_bridge.saved_model._schema import SavedModelField

GRAPH_FILE = "saved_model.pb"
MOST_BYTES = 2**31 - 1
"""A larger message cannot be read by TensorFlow."""

_MOST_CONSTANTS = 20


def read_saved_model(path: str | os.PathLike[str]) -> SavedModelContents:
    """What the SavedModel in a directory holds; its arrays are not read.

    Raises:
      FileNotFoundError: there is no SavedModel; the text says where there may be one.
      NotADirectoryError: it is a file.
      FileFormatError: saved_model.pb is damaged, too large, or has no XlaCallModule.
    """
    folder = Path(path)
    message = read_message(folder)
    meta_graphs = list(message.messages(SavedModelField.META_GRAPHS, "a graph of the model"))
    if not meta_graphs:
        raise message.error(message.start, "there is no graph")
    # TensorFlow writes one, and reads the one with the tags that it is asked for.
    graphs = [MetaGraph(meta_graph) for meta_graph in meta_graphs]
    modules: list[CalledModule] = []
    arrays: list[GraphConstant] = []
    entries: list[EntryPoint] = []
    more = 0
    missing: dict[str, None] = {}
    for each in graphs:
        own = list(called_modules(each.graph, len(modules)))
        modules += own
        arrays += constants(each.graph)
        found = entry_points(each, own)
        entries += found.entries
        more += found.more
        missing |= dict.fromkeys(found.missing)
    if not modules:
        raise FileFormatError(
            f"The SavedModel {folder} has no XlaCallModule op: nothing in it was made by JAX's or "
            "the bridge's conversion to StableHLO.",
            file=str(folder),
        )
    sidecar: Mapping[str, object] = {}
    problem = None
    try:
        sidecar = read_sidecar(folder)
    except ValueError as e:
        problem = str(e)
    variables = tuple(v for each in graphs for v in each.variables())
    files = files_below(folder)
    return SavedModelContents(
        path=str(folder),
        graph_size=len(message),
        variables_size=sum(s for name, s in files.items() if name.startswith("variables/")),
        tensorflow=graphs[0].tensorflow,
        tags=tuple(dict.fromkeys(tag for each in graphs for tag in each.tags)),
        entries=tuple(entries),
        more_entries=more,
        modules=tuple(modules),
        constants=tuple(sorted(arrays, key=lambda c: -c.size)[:_MOST_CONSTANTS]),
        constants_size=sum(c.size for c in arrays),
        variables=variables,
        assets=tuple(n.removeprefix("assets/") for n in files if n.startswith("assets/")),
        warm_up=read_warm_up(folder),
        sidecar=sidecar,
        sidecar_problem=problem,
        missing_functions=tuple(missing),
        missing_files=tuple(_missing_files(graphs, files)),
    )


def read_message(folder: Path) -> Message:
    """The content of saved_model.pb, not looked into yet.

    Raises:
      FileNotFoundError, NotADirectoryError, FileFormatError: as `read_saved_model`.
    """
    file = folder / GRAPH_FILE
    if not file.is_file():
        raise _no_saved_model(folder)
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise FileFormatError(
            f"The file {file} has {size:,} bytes. TensorFlow reads at most 2 GiB: save the model "
            "with its weights and constants as variables.",
            file=str(file),
        )
    return Message(file.read_bytes(), "the SavedModel", str(file))


def _no_saved_model(folder: Path) -> OSError:
    if not folder.exists():
        return path_error(FileNotFoundError, errno.ENOENT, "does not exist", folder)
    if not folder.is_dir():
        return path_error(NotADirectoryError, errno.ENOTDIR, "is a file, and no SavedModel", folder)
    problem = f"is no SavedModel: it has no {GRAPH_FILE}"
    if (folder / "saved_model.pbtxt").exists():
        problem += ", but its text form, which is not read: load and save it again"
    elif (folder / "saved_model.cpb").exists():
        problem += ", but its chunked form, which is not read: it is larger than 2 GiB"
    else:
        below = sorted(p.parent.name for p in folder.glob(f"*/{GRAPH_FILE}"))
        if below:
            newest = max(below, key=lambda name: (int(name) if name.isdecimal() else -1, name))
            problem += f"; there is one in {folder / newest}"
    return path_error(FileNotFoundError, errno.ENOENT, problem, folder)


def _missing_files(meta_graphs: Sequence[MetaGraph], files: Mapping[str, int]) -> Iterator[str]:
    if any(each.variables() for each in meta_graphs) and "variables/variables.index" not in files:
        yield "variables/variables.index"
    for name in dict.fromkeys(name for each in meta_graphs for name in each.assets()):
        if f"assets/{name}" not in files:
            yield f"assets/{name}"
