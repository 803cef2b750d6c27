"""Loads the JAX functions and the weights of a SavedModel."""

from __future__ import annotations

import os

from jax2tf_bridge.loading._bridge_models import load_bridge_model
from jax2tf_bridge.loading._functions import LoadedModel
from jax2tf_bridge.loading._graph_models import load_graph_model
from jax2tf_bridge.saved_model import read_serving_graph, read_sidecar
from jax2tf_bridge.storage import as_path


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Reads a SavedModel back into JAX; TensorFlow is not needed.

    If `save` wrote the SavedModel, the functions have their original arguments and structure, the
    weights are the pytree that was saved, and the saved gradients are there. If another tool wrote
    it (jax2tf, Orbax), each signature that only calls JAX functions becomes a function of a dict
    of its variables and its named inputs. Such a function has a gradient if it was saved with
    experimental_custom_gradients.

    Args:
      path: the folder that holds saved_model.pb, a local path or a URL ("gs://bucket/model").

    Returns:
      The model. Its functions run on every platform that JAX runs on, at every size that they were
      exported for.

    Raises:
      FileFormatError: the folder is not a SavedModel, holds no JAX function, or is damaged. `load`
        does not read TensorFlow's graph in a SavedModel that `save` wrote; `inspect` does.
      DTypeError: the model has 64-bit weights, and jax_enable_x64 is off.
      OSError: the SavedModel does not exist, or cannot be read.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, save
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> _ = save(folder, dense, params={"w": np.ones((3, 2), np.float32)})
    >>> model = load(folder)
    >>> model.serving_default(np.ones((1, 3), np.float32)).tolist()
    [[3.0, 3.0]]
    >>> model.signatures["serving_default"]
    <LoadedSignature serving_default(x: float32[b,3]) -> (output_0: float32[b,2])>
    """
    folder = as_path(path)
    graph = read_serving_graph(folder)
    bridge_model = read_sidecar(folder)
    if bridge_model is None:
        return load_graph_model(folder, graph)
    return load_bridge_model(folder, *bridge_model)
