"""A classifier of texts whose words are looked up in TensorFlow, for tests of save()."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf_bridge import Signature
from tests.saving.flat_signatures import flat_signature

WORDS = ("good", "bad", "film", "not")
PARAMS = {
    "embedding": np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32),
    "head": np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32),
}


def classify(params: Any, tokens: Any, mask: Any) -> Any:
    """Computes the probabilities of the kinds; 0 is padding, as is what the mask says."""
    words = jnp.where((mask & (tokens > 0))[..., None], params["embedding"][tokens], 0)
    return {"scores": jax.nn.softmax(words.sum(1) @ params["head"])}


def signature(**options: Any) -> Signature:
    """Makes the classifier over strings: its table gives int64, and it takes int32."""
    ids = tf.range(1, len(WORDS) + 1, dtype=tf.int64)
    init = tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), ids)
    table = tf.lookup.StaticHashTable(init, default_value=len(WORDS) + 1)
    kinds = tf.constant(["negative", "positive"])

    def tokens(text: Any) -> Any:
        return table.lookup(tf.strings.split(text)).to_tensor()

    def labels(scores: Any) -> Any:
        return {"label": tf.gather(kinds, tf.argmax(scores, axis=1)), "scores": scores}

    given: dict[str, Any] = {
        "args": [np.zeros((2, 3), np.int32), np.ones((2, 3), bool)],
        "polymorphic_shapes": "(b, l)",
        "mask": "mask",
        "preprocess": tokens,
        "inputs": {"text": tf.TensorSpec([None], tf.string)},
        "postprocess": labels,
    }
    return flat_signature(classify, **{**given, **options})


def scores_of(texts: list[str]) -> Any:
    """Computes what the classifier should give for texts of known words."""
    rows = [[WORDS.index(word) + 1 for word in text.split()] for text in texts]
    longest = max(map(len, rows))
    tokens = np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)
    return classify(PARAMS, tokens, np.ones(tokens.shape, bool))["scores"]
