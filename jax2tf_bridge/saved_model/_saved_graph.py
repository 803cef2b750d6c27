"""read_serving_graph(): the graph of a SavedModel that is served, as `load` asks for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError, path_error
from jax2tf_bridge.saved_model._meta_graph import MetaGraph
from jax2tf_bridge.saved_model._reading import GRAPH_FILE, read_message
from jax2tf_bridge.saved_model._schema import SavedModelField


def read_serving_graph(path: str | os.PathLike[str]) -> MetaGraph:
    """The graph of the SavedModel in a folder; its parts are read when they are asked for.

    Raises:
      FileFormatError: there is none, or it is damaged.
      OSError: the folder does not exist, or cannot be read.
    """
    folder = Path(path)
    _check_is_saved_model(folder)
    message = read_message(folder)
    messages = message.messages(SavedModelField.META_GRAPHS, "a graph of the model")
    graphs = [MetaGraph(each) for each in messages]
    if not graphs:
        raise message.error(0, "there is no graph")
    # Others are for other devices or uses; TensorFlow 2 writes one.
    return next((graph for graph in graphs if "serve" in graph.tags), graphs[0])


def _check_is_saved_model(folder: Path) -> None:
    if not folder.exists():
        text = f"does not exist; name the folder that holds {GRAPH_FILE}"
        raise path_error(FileNotFoundError, errno.ENOENT, text, folder)
    if (folder / GRAPH_FILE).is_file():
        return
    if folder.is_file():
        what = f"{folder} is a file, and no folder with a {GRAPH_FILE}"
    elif (folder / "saved_model.pbtxt").exists():
        what = f"{folder} has a saved_model.pbtxt, a text, which is not read here"
    else:
        what = f"{folder} has no {GRAPH_FILE}"
        versions = sorted(p.parent.name for p in folder.glob(f"*/{GRAPH_FILE}"))
        if versions:
            what += f" (its folders have: {', '.join(versions[:5])})"
    raise FileFormatError(
        f"{what}: it is no SavedModel. Name the folder that holds {GRAPH_FILE}.",
        file=str(folder),
    )
