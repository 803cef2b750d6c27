"""Models of which the tests score rows."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge import Padding, Signature, save

_RNG = np.random.default_rng(0)
_TABLE = _RNG.standard_normal((50, 4), np.float32)
_KERNEL = _RNG.standard_normal((3, 2), np.float32)


def classify(params: Any, x: Any) -> Any:
    return {"scores": jax.nn.softmax(x @ params["kernel"])}


def embed(params: Any, ids: Any, attention_mask: Any, *, scale: Any) -> Any:
    """Returns a vector for each text, and one number for each of its words."""
    words = params["table"][ids] * attention_mask[..., None]
    mean = words.sum(1) / jnp.maximum(attention_mask.sum(1), 1)[:, None]
    return {"embedding": mean * scale, "words": words[..., 0]}


def compare(params: Any, x: Any, real: Any) -> Any:
    """Returns results that depend on the other rows."""
    return x @ params["kernel"] - (real[:, None] * (x @ params["kernel"])).sum(0)


def save_models(folder: Path) -> None:
    """Saves "model" with three signatures, "mixing", and "plain", which has no buckets."""
    params = {"table": _TABLE, "kernel": _KERNEL}
    x, ids = np.ones((2, 3), np.float32), np.ones((2, 4), np.int32)
    dense = Signature(classify, args=[x], polymorphic_shapes="(b, 3)")
    text = Signature(
        embed,
        args=[ids, ids],
        kwargs={"scale": np.float32(1)},
        polymorphic_shapes="(b, n)",
        defaults={"scale": 1.0},
    )
    masked = Signature(
        lambda params, ids, mask: {"count": mask.sum(1) + 0 * ids.sum(1)},
        args=[ids, ids],
        polymorphic_shapes="(b, n)",
        padding=Padding(mask="mask"),
    )
    mixing = Signature(
        compare,
        args=[x, np.ones(2, np.float32)],
        polymorphic_shapes=["(b, 3)", "(b,)"],
        padding=Padding(mask="real"),
    )
    served = {"dense": dense, "text": text, "masked": masked}
    buckets = {"b": [1, 4], "n": [4, 8]}
    save(folder / "model", served, params=params, buckets=buckets)
    save(folder / "mixing", mixing, params=params, buckets={"b": [4]}, oversize="as is")
    save(folder / "plain", dense, params=params)
