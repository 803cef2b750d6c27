"""TF functions that are traced once, whatever calls them, and not again for a SavedModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.to_tensorflow import TracedOnce


def test_one_trace_for_all_callers(tmp_path: Path) -> None:
    traces = []

    def double(x: Any) -> Any:
        traces.append(x)
        return [2 * x]

    once = TracedOnce(double, [tf.TensorSpec([None], tf.float32)])
    assert once(tf.ones(2))[0].numpy().tolist() == [2, 2]
    module = tf.Module()
    module.f = tf.function(lambda x: once(once(x)[0]), [tf.TensorSpec([None], tf.float32)])
    module.held = [once.concrete]
    tf.saved_model.save(module, str(tmp_path))
    assert len(traces) == 1
    loaded = tf.saved_model.load(str(tmp_path))
    x = tf.constant([1.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = loaded.f(x)
    assert y.numpy().tolist() == [4, 12]
    assert tape.gradient(y, x).numpy().tolist() == [4, 4]
    assert loaded.held[0](x)[0].numpy().tolist() == [2, 6]
