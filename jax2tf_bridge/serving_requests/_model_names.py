"""Where TensorFlow Serving listens, and the names of the models that it serves."""

from __future__ import annotations

from jax2tf_bridge.storage import AnyPath

GRPC_PORT, REST_PORT = 8500, 8501
"""Ports of the command that `print(saved.serving)` shows."""


def find_versions_folder(model: AnyPath) -> AnyPath:
    """Returns the folder of versions that a SavedModel is in; its name is the model's name.

    A SavedModel that is not in such a folder is served under its own name.
    """
    absolute = model.absolute()
    return absolute.parent if absolute.name.isdecimal() else absolute
