"""Reads a SavedModel of any tool: the whole directory, the served graph, or the weights."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import (
    Argument,
    FileFormatError,
    Message,
    MissingDependencyError,
    make_path_error,
)
from jax2tf_bridge.saved_model._entry_points import (
    CalledModule,
    EntryPoint,
    StoredConstant,
    find_entry_points,
    iterate_constants,
    iterate_modules,
)
from jax2tf_bridge.saved_model._meta_graph import MetaGraph, ModelVariable, SignaturePort
from jax2tf_bridge.saved_model._schema import SavedModelField
from jax2tf_bridge.saved_model._sidecar import SIDECAR, read_sidecar_facts
from jax2tf_bridge.saved_model._tensor_bundle import TensorBundle, variable_name
from jax2tf_bridge.saved_model._warm_up import WarmUp, read_warm_up
from jax2tf_bridge.serialization import ProtoMessage
from jax2tf_bridge.storage import AnyPath, as_path, walk_files

GRAPH_FILE = "saved_model.pb"
VARIABLES_FOLDER = "variables"
MAX_MESSAGE_BYTES = 2**31 - 1
"""Maximum size of a message that TensorFlow reads."""

_MAX_CONSTANTS = 20
_MAX_FILES = 10_000
_PARAMS = "params/"
"""Attribute in which `save` stores the variables of the weights."""


@dataclass(frozen=True)
class SavedModelContents:
    """Contents of a SavedModel.

    Attributes:
      path: the directory.
      graph_size: the size of saved_model.pb in bytes.
      variables_size: the size of the files in variables/ in bytes.
      tensorflow: the TensorFlow version that wrote it, "" if unknown.
      tags: the tags of its graphs.
      entries: the signatures, then the methods that run modules.
      more_entries: the number of others, which were not analysed.
      modules: all XlaCallModule nodes.
      constants: the largest constants of the graph, outside of modules, in descending order.
      constants_size: the size of all constants in bytes.
      variables: the variables of the model.
      assets: the names of the files in assets/.
      warm_up: the warm-up requests; None without such a file.
      sidecar: the contents of assets.extra/jax2tf_bridge.json; empty if it is missing.
      sidecar_problem: the reason why the sidecar cannot be read; None if it can.
      missing_functions: the names of called functions that are missing.
      missing_files: required files that are missing.
    """

    path: str
    graph_size: int
    variables_size: int
    tensorflow: str
    tags: tuple[str, ...]
    entries: tuple[EntryPoint, ...]
    more_entries: int
    modules: tuple[CalledModule, ...]
    constants: tuple[StoredConstant, ...]
    constants_size: int
    variables: tuple[ModelVariable, ...]
    assets: tuple[str, ...]
    warm_up: WarmUp | None
    sidecar: Mapping[str, object]
    sidecar_problem: str | None
    missing_functions: tuple[str, ...]
    missing_files: tuple[str, ...]


def read_saved_model(
    path: str | os.PathLike[str], *, accept_any_tool: bool = False
) -> SavedModelContents:
    """Reads a SavedModel without its arrays.

    Args:
      path: the folder.
      accept_any_tool: whether to accept a SavedModel without modules and without a sidecar.

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
    arrays: list[StoredConstant] = []
    entries: list[EntryPoint] = []
    more = 0
    missing: dict[str, None] = {}
    for each in graphs:
        own = list(iterate_modules(each.graph, len(modules)))
        modules += own
        arrays += iterate_constants(each.graph)
        own_entries, own_more, own_missing = find_entry_points(each, own)
        entries += own_entries
        more += own_more
        missing |= dict.fromkeys(own_missing)
    # Models that save() writes for a target without XLA have no modules.
    if not (modules or accept_any_tool or (folder / SIDECAR).exists()):
        raise FileFormatError(
            f"The SavedModel {folder} has no XlaCallModule op, so it contains no function that JAX "
            "or the bridge converted to StableHLO.",
            file=str(folder),
        )
    sidecar, problem = read_sidecar_facts(folder)
    variables = tuple(v for each in graphs for v in each.variables())
    files = dict(islice(walk_files(folder), _MAX_FILES))
    return SavedModelContents(
        path=str(folder),
        graph_size=len(message),
        variables_size=sum(s for name, s in files.items() if name.startswith("variables/")),
        tensorflow=graphs[0].tensorflow,
        tags=tuple(dict.fromkeys(tag for each in graphs for tag in each.tags)),
        entries=tuple(_in_order_of_function(entry, sidecar) for entry in entries),
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


def _in_order_of_function(entry: EntryPoint, sidecar: Mapping[str, object]) -> EntryPoint:
    """Orders inputs and outputs as the sidecar does; saved_model.pb does not store an order."""
    signatures = sidecar.get("signatures")
    known = signatures.get(entry.name) if isinstance(signatures, dict) else None
    if not entry.is_signature or not isinstance(known, dict):
        return entry

    def order(ports: tuple[SignaturePort, ...], names: object) -> tuple[SignaturePort, ...]:
        if not isinstance(names, dict):
            return ports
        positions = {name: i for i, name in enumerate(names)}
        return tuple(sorted(ports, key=lambda port: positions.get(port.name, len(positions))))

    return replace(
        entry,
        inputs=order(entry.inputs, known.get("inputs")),
        outputs=order(entry.outputs, known.get("outputs")),
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
        return make_path_error(errno.ENOENT, text, folder)
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


def read_saved_weights(folder: AnyPath) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the weights in a SavedModel by name, such as "dense/kernel".

    The checkpoint has the names, so this also works after TensorFlow has trained the model and
    saved it again.

    Raises:
      FileNotFoundError: the folder does not exist.
      FileFormatError: it is not a SavedModel, it has no weights, or its variables are damaged.
      MissingDependencyError: a dtype needs ml_dtypes, which is not installed.
    """
    read_message(folder)  # raises if it is not a SavedModel
    bundle = open_variables(folder)
    keys = {variable_name(key): key for key in (bundle.entries if bundle else ())}
    weights = {
        name.removeprefix(_PARAMS): _array(bundle, key)
        for name, key in keys.items()
        if bundle is not None and name.startswith(_PARAMS)
    }
    if not weights:
        raise FileFormatError(
            Message(
                f"{folder} has no weights: none of its variables is below `params`. Save it with ",
                Argument("params"),
                ".",
            ),
            file=str(folder),
        )
    return weights


def open_variables(folder: AnyPath) -> TensorBundle | None:
    """Opens the variables of a SavedModel; None if it has none.

    Raises:
      FileFormatError: the variables are damaged.
      OSError: the variables cannot be read.
    """
    prefix = folder / VARIABLES_FOLDER / "variables"
    return TensorBundle(prefix) if prefix.with_name("variables.index").exists() else None


def _array(bundle: TensorBundle, key: str) -> np.ndarray[Any, Any]:
    entry = bundle.entries[key]
    row = find_dtype(entry.dtype)
    if row is None:
        raise FileFormatError(
            f"{bundle.index}: {key} has the dtype {entry.dtype}, which JAX does not have.",
            file=bundle.index,
        )
    try:
        dtype = row.numpy()
    except ImportError:
        needed_for = f"reading {entry.dtype} from {bundle.index}"
        raise MissingDependencyError("ml_dtypes", "jax", needed_for) from None
    return np.frombuffer(bundle.read(key), dtype).reshape(entry.shape)
