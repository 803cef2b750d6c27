"""load(): the JAX functions and the weights in a SavedModel."""

from __future__ import annotations

import os

from jax2tf_bridge.loading._bridge_models import load_bridge_model
from jax2tf_bridge.loading._functions import LoadedModel
from jax2tf_bridge.loading._graph_models import load_graph_model
from jax2tf_bridge.saved_model._reading import read_serving_graph
from jax2tf_bridge.saved_model._sidecar import read_sidecar
from jax2tf_bridge.storage._paths import as_path


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Reads a SavedModel back into JAX; TensorFlow is not needed.

    A SavedModel of `save` comes back as what was saved: functions with their arguments and
    structure, gradients as far as they were saved, the weights as a pytree. Of one that another
    tool wrote (jax2tf, Orbax) each signature that does nothing but call JAX functions becomes a
    function of a dict of its variables and its named inputs; its gradient is there if it was
    saved with experimental_custom_gradients.

    Args:
      path: the folder that holds saved_model.pb, on disk or behind a scheme ("gs://bucket/model").

    Returns:
      The model; its functions run on whatever JAX runs on, at any size that they were exported
      for.

    Raises:
      FileFormatError: it is no SavedModel, holds no JAX function, or what is read of it is
        damaged. Of a SavedModel of `save` TensorFlow's graph is not read: `inspect` does that.
      DTypeError: it has weights of 64 bits, and those of JAX are switched off.
      OSError: it does not exist, or cannot be read.

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
    found = read_sidecar(folder)
    if found is None:
        return load_graph_model(folder, graph)
    return load_bridge_model(folder, *found)
