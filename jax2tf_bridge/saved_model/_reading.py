"""Reads a SavedModel of any tool: the whole directory, the served graph, or the weights."""

from __future__ import annotations

import errno
import hashlib
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
from jax2tf_bridge.portable import Aval
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
from jax2tf_bridge.saved_model._tensor_bundle import BundleEntry, TensorBundle, variable_name
from jax2tf_bridge.saved_model._tensors import TensorSpec
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
      more_entries: the number of entries that were not analysed.
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
        damaged, too large, or has no XlaCallModule op and was not written by save().
    """
    folder = as_path(path)
    message = read_message(folder)
    # TensorFlow writes one graph, and loads the one with the requested tags.
    graphs = _read_meta_graphs(message)
    modules: list[CalledModule] = []
    constants: list[StoredConstant] = []
    entries: list[EntryPoint] = []
    more_entries = 0
    missing_functions: list[str] = []
    for meta_graph in graphs:
        graph_modules = list(iterate_modules(meta_graph.graph, len(modules)))
        modules += graph_modules
        constants += iterate_constants(meta_graph.graph)
        graph_entries, more, missing = find_entry_points(meta_graph, graph_modules)
        entries += graph_entries
        more_entries += more
        missing_functions += missing
    # Models that save() writes for a target without XLA have no modules.
    if not (modules or accept_any_tool or (folder / SIDECAR).exists()):
        raise FileFormatError(
            f"The SavedModel {folder} has no XlaCallModule op, so it contains no function that JAX "
            "or the bridge converted to StableHLO.",
            file=str(folder),
        )
    sidecar, problem = read_sidecar_facts(folder)
    files = dict(islice(walk_files(folder), _MAX_FILES))
    return SavedModelContents(
        path=str(folder),
        graph_size=len(message),
        variables_size=sum(s for name, s in files.items() if name.startswith("variables/")),
        tensorflow=graphs[0].tensorflow,
        tags=tuple(dict.fromkeys(tag for graph in graphs for tag in graph.tags)),
        entries=tuple(_sort_ports(entry, sidecar) for entry in entries),
        more_entries=more_entries,
        modules=tuple(modules),
        constants=tuple(sorted(constants, key=lambda c: -c.size)[:_MAX_CONSTANTS]),
        constants_size=sum(c.size for c in constants),
        variables=tuple(v for graph in graphs for v in graph.variables()),
        assets=tuple(n.removeprefix("assets/") for n in files if n.startswith("assets/")),
        warm_up=read_warm_up(folder),
        sidecar=sidecar,
        sidecar_problem=problem,
        missing_functions=tuple(dict.fromkeys(missing_functions)),
        # If files were left out, nothing is known to be missing.
        missing_files=tuple(_find_missing_files(graphs, files)) if len(files) < _MAX_FILES else (),
    )


def _sort_ports(entry: EntryPoint, sidecar: Mapping[str, object]) -> EntryPoint:
    """Orders inputs and outputs as the sidecar does; saved_model.pb does not store an order."""
    signatures = sidecar.get("signatures")
    sidecar_entry = signatures.get(entry.name) if isinstance(signatures, dict) else None
    if not entry.is_signature or not isinstance(sidecar_entry, dict):
        return entry

    def order(ports: tuple[SignaturePort, ...], names: object) -> tuple[SignaturePort, ...]:
        if not isinstance(names, dict):
            return ports
        positions = {name: i for i, name in enumerate(names)}
        return tuple(sorted(ports, key=lambda port: positions.get(port.name, len(positions))))

    return replace(
        entry,
        inputs=order(entry.inputs, sidecar_entry.get("inputs")),
        outputs=order(entry.outputs, sidecar_entry.get("outputs")),
    )


def read_message(folder: AnyPath) -> ProtoMessage:
    """Reads saved_model.pb without parsing it.

    Raises:
      FileNotFoundError: the folder does not exist.
      FileFormatError: it is not a SavedModel, or too large for TensorFlow.
    """
    file = folder / GRAPH_FILE
    if not file.is_file():
        raise _make_not_a_saved_model_error(folder)
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
    graphs = _read_meta_graphs(read_message(as_path(path)))
    # Other graphs are for other devices or uses; TensorFlow 2 writes only one.
    return next((graph for graph in graphs if "serve" in graph.tags), graphs[0])


def _read_meta_graphs(message: ProtoMessage) -> list[MetaGraph]:
    messages = message.messages(SavedModelField.META_GRAPHS, "a graph of the model")
    graphs = list(map(MetaGraph, messages))
    if not graphs:
        raise message.error(message.start, "there is no graph")
    return graphs


def _make_not_a_saved_model_error(folder: AnyPath) -> OSError | FileFormatError:
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
        advice = "Save it with less than 2 GiB: its chunked form, saved_model.cpb, is not read."
    elif below:
        newest = max(below, key=lambda name: (int(name) if name.isdecimal() else -1, name))
        advice = f"There is one in {folder / newest}."
    else:
        advice = f"Name the folder that holds {GRAPH_FILE}."
    return FileFormatError(f"{folder} is not a SavedModel: {problem}. {advice}", file=str(folder))


def _find_missing_files(
    meta_graphs: Sequence[MetaGraph], files: Mapping[str, int]
) -> Iterator[str]:
    if any(graph.variables() for graph in meta_graphs) and "variables/variables.index" not in files:
        yield "variables/variables.index"
    for name in dict.fromkeys(name for graph in meta_graphs for name in graph.assets()):
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
    bundle = _open_variables(folder)
    weights = {}
    if bundle is not None:
        names = {variable_name(key): key for key in bundle.entries}
        weights = {
            name.removeprefix(_PARAMS): _read_array(bundle, key)
            for name, key in names.items()
            if name.startswith(_PARAMS)
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


class SavedVariables:
    """Variables of a SavedModel, read on demand."""

    def __init__(self, folder: AnyPath) -> None:
        """Opens the variables of the SavedModel in a folder.

        Raises:
          FileFormatError: the variables are damaged.
          OSError: the variables cannot be read.
        """
        self._index = str(folder / VARIABLES_FOLDER / "variables.index")
        self._bundle = _open_variables(folder)

    def get_entry(self, key: str) -> BundleEntry:
        """Returns the checkpoint entry of a variable.

        Raises:
          FileFormatError: the checkpoint has no variable of that key.
        """
        entry = None if self._bundle is None else self._bundle.entries.get(key)
        if entry is None:
            raise FileFormatError(
                f"The SavedModel has the variable {key!r}, and {self._index} lacks it: they do not "
                "belong together. Copy the SavedModel anew, or save it again.",
                file=self._index,
            )
        return entry

    def read(self, key: str, dtype: str, shape: tuple[int, ...]) -> bytes:
        """Reads the bytes of a variable, and checks its dtype (as TensorFlow stores it) and shape.

        Raises:
          FileFormatError: the variable is missing, damaged, or has another dtype or shape.
          OSError: the variable cannot be read.
        """
        entry = self.get_entry(key)
        # A model for converters has captured bools as uint8; the bytes are the same.
        is_bool = (entry.dtype, dtype) == ("uint8", "bool")
        if entry.shape != shape or not (is_bool or entry.dtype == dtype):
            raise FileFormatError(
                f"The variable {key!r} is {TensorSpec(dtype, shape)} in the SavedModel, and "
                f"{TensorSpec(entry.dtype, entry.shape)} in {self._index}: they do not belong "
                "together. Copy the SavedModel anew, or save it again.",
                file=self._index,
            )
        assert self._bundle is not None
        return self._bundle.read(key)

    def read_constant(self, key: str, digest: str, aval: Aval) -> bytes:
        """Reads the bytes of a captured array, and checks their SHA-256 digest.

        Raises:
          FileFormatError: as in `read`; or the digest differs.
          OSError: the variable cannot be read.
        """
        data = self.read(key, aval.op_dtype, aval.known_op_shape)
        if hashlib.sha256(data).hexdigest() != digest:
            raise FileFormatError(
                f"The variable {key!r} in {self._index} is not the array that the function "
                "captured: its SHA-256 is another. Save the model again.",
                file=self._index,
            )
        return data


def _open_variables(folder: AnyPath) -> TensorBundle | None:
    prefix = folder / VARIABLES_FOLDER / "variables"
    return TensorBundle(prefix) if prefix.with_name("variables.index").exists() else None


def _read_array(bundle: TensorBundle, key: str) -> np.ndarray[Any, Any]:
    entry = bundle.entries[key]
    row = find_dtype(entry.dtype)
    if row is None:
        raise FileFormatError(
            f"{bundle.index}: {key} has the dtype {entry.dtype}, which JAX does not have. Convert "
            "the variable in TensorFlow first.",
            file=bundle.index,
        )
    try:
        dtype = row.numpy()
    except ImportError:
        needed_for = f"reading {entry.dtype} from {bundle.index}"
        raise MissingDependencyError("ml_dtypes", "jax", needed_for) from None
    try:
        return np.frombuffer(bundle.read(key), dtype).reshape(entry.shape)
    except ValueError as e:
        raise FileFormatError(
            f"{bundle.index}: {key} has the shape {entry.shape!s:.80}, which NumPy's arrays cannot "
            "have. Save the variable in TensorFlow with another shape.",
            file=bundle.index,
        ) from e
