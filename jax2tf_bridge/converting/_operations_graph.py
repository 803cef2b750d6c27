"""Makes graphs of SavedModels with TensorFlow's own operations in place of StableHLO modules."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import PortableFunction, make_called_function
from jax2tf_bridge.saved_model import (
    GRAPH_FILE,
    CalledModule,
    SavedModelContents,
    read_saved_model,
)
from jax2tf_bridge.storage import as_path
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import replace_call_modules, saved_model_message


def make_operations_graph(contents: SavedModelContents, target: Target) -> bytes:
    """Returns saved_model.pb with operations instead of XlaCallModule ops.

    Args:
      contents: the SavedModel, which any tool may have written.
      target: a target without XLA.

    Raises:
      ModuleError: TensorFlow lacks an operation of a module, or a module calls TensorFlow
        functions itself.
    """
    functions = {(m.function, m.node): _make_function(m, target) for m in contents.modules}
    graph = (as_path(contents.path) / GRAPH_FILE).read_bytes()
    return replace_call_modules(graph, functions, for_converters=target.for_converters)


def copy_as_operations(source: Path, folder: Path, target: Target) -> None:
    """Makes a SavedModel with the graph of `make_operations_graph`, and links to the variables.

    Args:
      source: the SavedModel, which any tool may have written.
      folder: the folder to make; it has no sidecar.
      target: a target without XLA.

    Raises:
      ModuleError: as for `make_operations_graph`.
    """
    graph = make_operations_graph(read_saved_model(source, accept_any_tool=True), target)
    folder.mkdir()
    (folder / GRAPH_FILE).write_bytes(graph)
    for name in ("variables", "assets"):
        if (source / name).is_dir():
            os.symlink((source / name).absolute(), folder / name)


@contextlib.contextmanager
def edit_graph(folder: Path, models: str) -> Iterator[Any]:
    """Yields the MetaGraphDef of a SavedModel on disk, and writes it back.

    Args:
      folder: the SavedModel.
      models: the models that are made from it, for messages, as "LiteRT models".

    Raises:
      ModuleError: the installed TensorFlow has no protocol buffer of SavedModels.
    """
    message_class = saved_model_message()
    if message_class is None:
        raise ModuleError(
            f"TensorFlow {tf.__version__} does not have the protocol buffer of SavedModels at the "
            f"place where TensorFlow 2.15 to 2.22 have it. Write {models} with one of these."
        )
    message = message_class.FromString((folder / GRAPH_FILE).read_bytes())
    yield message.meta_graphs[0]
    (folder / GRAPH_FILE).write_bytes(message.SerializeToString(deterministic=True))


def _make_function(called: CalledModule, target: Target) -> PortableFunction:
    if called.functions:
        raise ModuleError(
            f"The module of {called.place} calls TensorFlow functions, and their graphs would be "
            "missing from the new model. Export the function again without XLA."
        )
    return make_called_function(
        bytes(called.module),
        called.stablehlo_version,
        name=called.place,
        argument_dtypes=called.arguments,
        result_dtypes=[result.dtype for result in called.results],
        platforms=called.platforms or ("cpu",),
        disabled_checks=called.disabled_checks,
        has_tokens=called.has_tokens,
        calling_convention_version=called.calling_convention_version,
        target=target,
    )
