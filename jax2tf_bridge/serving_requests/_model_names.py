"""Where TensorFlow Serving listens, and the names of the models that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.publishing import STABLE, read_configured_model
from jax2tf_bridge.storage import AnyPath, StoragePath, local_path

GRPC_PORT, REST_PORT = 8500, 8501
"""Ports of the command that `print(saved.serving)` shows."""


@dataclass(frozen=True)
class ServedName:
    """Name of a version in requests.

    Attributes:
      model: the name of the model.
      label: the label of the version; "" if it has none.
      configured: the folder of its versions, if models.config beside the folder lists the model.
    """

    model: str
    label: str = ""
    configured: AnyPath | None = None


def find_versions_folder(model: AnyPath) -> AnyPath:
    """Returns the folder of versions that a SavedModel is in.

    A SavedModel that is not in such a folder is served by itself.
    """
    absolute = model.absolute()
    return absolute.parent if absolute.name.isdecimal() else absolute


def find_served_name(model: AnyPath) -> ServedName:
    """Returns the name of a SavedModel in requests: that in models.config, or its folder's.

    Of several labels it has "stable", or else the first by the alphabet.
    """
    root = find_versions_folder(model)
    # publish writes the file beside the folder that a link leads to.
    folder = root if isinstance(root, StoragePath) else local_path(root)
    try:
        configured = read_configured_model(folder)
    except (FileFormatError, OSError):  # it may be damaged in the entry of another model
        configured = None
    if configured is None:
        return ServedName(root.name)
    is_version = root != model.absolute()
    labels = [
        label
        for label, number in configured.labels.items()
        if is_version and number == int(model.absolute().name)
    ]
    label = min(labels, key=lambda each: (each != STABLE, each), default="")
    return ServedName(configured.name, label, folder)
