"""Reads the weights of a SavedModel by the names of the variables, without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import Argument, FileFormatError, Message, MissingDependencyError
from jax2tf_bridge.saved_model._reading import read_message
from jax2tf_bridge.saved_model._tensor_bundle import TensorBundle, variable_name
from jax2tf_bridge.storage import AnyPath

_PARAMS = "params/"
"""Attribute in which `save` stores the variables of the weights."""


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
    prefix = folder / "variables" / "variables"
    index = prefix.with_name("variables.index")
    bundle = TensorBundle(prefix) if index.exists() else None
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
