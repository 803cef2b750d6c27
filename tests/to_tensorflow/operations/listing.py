"""Lists the operations that are made of a module, but for those that every graph has."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.to_tensorflow import to_tf
from tests.to_tensorflow.operations.running import op_names, portable_of

_EVERYWHERE = {"Const", "Placeholder", "Identity", "NoOp", "PreventGradient"}


def run_and_list(
    text: str, *args: Any, symbols: str = "abcdefgh"
) -> tuple[list[np.ndarray[Any, Any]], list[str]]:
    """Runs a module's main function, and lists its operations; the graph is made once."""
    function = to_tf(portable_of(text, symbols=symbols), with_gradient=False)
    specs = [tf.TensorSpec(np.shape(a), np.asarray(a).dtype) for a in args]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    names = sorted(name for name in op_names(concrete.graph) if name not in _EVERYWHERE)
    assert not {name for name in names if "Xla" in name}
    results = concrete(*(tf.constant(a) for a in args))
    found = results if isinstance(results, (tuple, list)) else [results]
    return [np.asarray(result) for result in found], names


def kinds(text: str, *args: Any, symbols: str = "abcdefgh") -> list[str]:
    """Lists the operations of a module's main function."""
    return run_and_list(text, *args, symbols=symbols)[1]
