"""read_serving_graph(): the graph of a SavedModel that is served, as `load` asks for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError, path_error
from jax2tf_bridge.saved_model._meta_graph import MetaGraph
from jax2tf_bridge.saved_model._protobuf import Message
from jax2tf_bridge.saved_model._schema import SavedModelField

_MOST_BYTES = 2**31 - 1  # of a protocol buffer


def read_serving_graph(folder: str | os.PathLike[str]) -> MetaGraph:
    """The graph of the SavedModel in a folder; its parts are read when they are asked for.

    Raises:
      FileFormatError: there is none, or it is damaged.
      OSError: the folder does not exist, or cannot be read.
    """
    file = Path(folder, "saved_model.pb")
    message = Message(_content(Path(folder), file), "the SavedModel", str(file))
    messages = message.messages(SavedModelField.META_GRAPHS, "a graph of the model")
    graphs = [MetaGraph(each) for each in messages]
    if not graphs:
        raise message.error(0, "there is no graph")
    # Others are for other devices or uses; TensorFlow 2 writes one.
    return next((graph for graph in graphs if "serve" in graph.tags), graphs[0])


def _content(folder: Path, file: Path) -> bytes:
    if not folder.exists():
        text = "does not exist; name the folder that holds saved_model.pb"
        raise path_error(FileNotFoundError, errno.ENOENT, text, folder)
    if not file.is_file():
        if folder.is_file():
            what = f"{folder} is a file, and no folder with a saved_model.pb"
        elif (folder / "saved_model.pbtxt").exists():
            what = f"{folder} has a saved_model.pbtxt, a text, which is not read here"
        else:
            what = f"{folder} has no saved_model.pb"
            versions = sorted(p.parent.name for p in folder.glob("*/saved_model.pb"))
            if versions:
                what += f" (its folders have: {', '.join(versions[:5])})"
        raise FileFormatError(
            f"{what}: it is no SavedModel. Name the folder that holds saved_model.pb.",
            file=str(folder),
        )
    size = file.stat().st_size
    if size > _MOST_BYTES:
        raise FileFormatError(
            f"{file} is no SavedModel: it has {size} bytes, and a protocol buffer has at most "
            f"{_MOST_BYTES}.",
            file=str(file),
        )
    return file.read_bytes()
