"""Reads a SavedModel of any tool: the whole directory, or only the served graph."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from jax2tf_bridge.errors import FileFormatError, make_path_error
from jax2tf_bridge.saved_model._entry_points import constants, entry_points, iterate_modules
from jax2tf_bridge.saved_model._extras import files_below, read_warm_up
from jax2tf_bridge.saved_model._meta_graph import MetaGraph
from jax2tf_bridge.saved_model._protobuf import ProtoMessage
from jax2tf_bridge.saved_model._saved_model import (
    CalledModule,
    EntryPoint,
    GraphConstant,
    SavedModelContents,
)
from jax2tf_bridge.saved_model._schema import SavedModelField
from jax2tf_bridge.saved_model._sidecar import SIDECAR, sidecar_facts
from jax2tf_bridge.storage import AnyPath, as_path

GRAPH_FILE = "saved_model.pb"
MAX_MESSAGE_BYTES = 2**31 - 1
"""Maximum size of a message that TensorFlow reads."""

_MAX_CONSTANTS = 20


def read_saved_model(
    path: str | os.PathLike[str], *, of_any_tool: bool = False
) -> SavedModelContents:
    """Reads a SavedModel without its arrays.

    Args:
      path: the folder.
      of_any_tool: whether to accept a SavedModel without modules and without a sidecar.

    Raises:
      FileNotFoundError: the folder does not exist.
      FileFormatError: it is not a SavedModel (the text names a nearby one); or saved_model.pb is
        damaged, too large, or has no XlaCallModule and was not written by save().
    """
    folder = as_path(path)
    message = read_message(folder)
    # TensorFlow writes one graph, and loads the one with the requested tags.
    graphs = _meta_graphs(message)
    modules: list[CalledModule] = []
    arrays: list[GraphConstant] = []
    entries: list[EntryPoint] = []
    more = 0
    missing: dict[str, None] = {}
    for each in graphs:
        own = list(iterate_modules(each.graph, len(modules)))
        modules += own
        arrays += constants(each.graph)
        points = entry_points(each, own)
        entries += points.entries
        more += points.more
        missing |= dict.fromkeys(points.missing)
    # Models that save() writes for a target without XLA have no modules.
    if not (modules or of_any_tool or (folder / SIDECAR).exists()):
        raise FileFormatError(
            f"The SavedModel {folder} has no XlaCallModule op: nothing in it was made by JAX's or "
            "the bridge's conversion to StableHLO.",
            file=str(folder),
        )
    sidecar, problem = sidecar_facts(folder)
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
        constants=tuple(sorted(arrays, key=lambda c: -c.size)[:_MAX_CONSTANTS]),
        constants_size=sum(c.size for c in arrays),
        variables=variables,
        assets=tuple(n.removeprefix("assets/") for n in files if n.startswith("assets/")),
        warm_up=read_warm_up(folder),
        sidecar=sidecar,
        sidecar_problem=problem,
        missing_functions=tuple(missing),
        missing_files=tuple(_missing_files(graphs, files)),
    )


def read_message(folder: AnyPath) -> ProtoMessage:
    """Reads saved_model.pb without parsing it.

    Raises:
      FileNotFoundError: the folder does not exist.
      FileFormatError: it is not a SavedModel, or too large for TensorFlow.
    """
    file = folder / GRAPH_FILE
    if not file.is_file():
        raise _not_a_saved_model(folder)
    size = file.stat().st_size
    if size > MAX_MESSAGE_BYTES:
        raise FileFormatError(
            f"The file {file} has {size:,} bytes. TensorFlow reads at most 2 GiB: save the model "
            "with its weights and constants as variables.",
            file=str(file),
        )
    return ProtoMessage(file.read_bytes(), "the SavedModel", str(file))


def read_serving_graph(path: str | os.PathLike[str]) -> MetaGraph:
    """Returns the served graph, whose parts are read on demand.

    Raises:
      FileNotFoundError, FileFormatError: as in `read_message`; or the file is damaged.
      OSError: the file cannot be read.
    """
    graphs = _meta_graphs(read_message(as_path(path)))
    # Other graphs are for other devices or uses; TensorFlow 2 writes only one.
    return next((graph for graph in graphs if "serve" in graph.tags), graphs[0])


def _meta_graphs(message: ProtoMessage) -> list[MetaGraph]:
    graphs = message.messages(SavedModelField.META_GRAPHS, "a graph of the model")
    meta_graphs = [MetaGraph(graph) for graph in graphs]
    if not meta_graphs:
        raise message.error(message.start, "there is no graph")
    return meta_graphs


def _not_a_saved_model(folder: AnyPath) -> OSError | FileFormatError:
    if not folder.exists():
        text = f"does not exist; name the folder that holds {GRAPH_FILE}"
        return make_path_error(FileNotFoundError, errno.ENOENT, text, folder)
    if folder.is_file():
        problem, below = "it is a file", []
    else:
        problem = f"it has no {GRAPH_FILE}"
        below = sorted(p.name for p in folder.iterdir() if (p / GRAPH_FILE).exists())
    if (folder / "saved_model.pbtxt").exists():
        advice = "Load and save it again: its text form, saved_model.pbtxt, is not read."
    elif (folder / "saved_model.cpb").exists():
        advice = "Its chunked form, saved_model.cpb, is not read: save it with less than 2 GiB."
    elif below:
        newest = max(below, key=lambda name: (int(name) if name.isdecimal() else -1, name))
        advice = f"There is one in {folder / newest}."
    else:
        advice = f"Name the folder that holds {GRAPH_FILE}."
    return FileFormatError(f"{folder} is not a SavedModel: {problem}. {advice}", file=str(folder))


def _missing_files(meta_graphs: Sequence[MetaGraph], files: Mapping[str, int]) -> Iterator[str]:
    if any(each.variables() for each in meta_graphs) and "variables/variables.index" not in files:
        yield "variables/variables.index"
    for name in dict.fromkeys(name for each in meta_graphs for name in each.assets()):
        if f"assets/{name}" not in files:
            yield f"assets/{name}"
