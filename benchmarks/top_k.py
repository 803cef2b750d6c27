"""Run-time cost of lowering top_k to a sort, since no TensorFlow runs its composite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from benchmarks import _measure
from jax2tf_bridge import convert

_BASELINE = "jax.jit"


def _make_jax_top_k(k: int) -> Callable[..., Any]:
    return lambda x: jax.lax.top_k(x, k)


def _make_tf_top_k(k: int) -> Callable[..., Any]:
    return lambda x: tf.math.top_k(x, k)


def _make_call(f: Callable[..., Any], x: Any) -> Callable[[], Any]:
    return lambda: np.asarray(f(x)[0])


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--k", type=int, nargs="+", default=[5, 100])
    options = parser.parse_args()
    rows, measured = [], []
    for size in options.sizes:
        array = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        for k in options.k:
            _measure.print_progress(f"the {k} largest of {size}")

            entrants = {
                "bridge": tf.function(convert(_make_jax_top_k(k)), autograph=False),
                "bridge, XLA": tf.function(
                    convert(_make_jax_top_k(k)), autograph=False, jit_compile=True
                ),
                _BASELINE: jax.jit(_make_jax_top_k(k)),
                "jax.jit, full sort": jax.jit(lambda x: (jnp.flip(jnp.sort(x)),)),
                "tf.math.top_k": tf.function(_make_tf_top_k(k), autograph=False),
                "tf.math.top_k, XLA": tf.function(
                    _make_tf_top_k(k), autograph=False, jit_compile=True
                ),
            }
            calls = {}
            for who, f in entrants.items():
                x = jax.device_put(array) if who.startswith("jax") else tf.constant(array)
                np.testing.assert_array_equal(np.asarray(f(x)[0])[:k], np.sort(array)[::-1][:k])
                calls[who] = _make_call(f, x)
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
            for who in calls:
                took = _measure.Spread.of(times[who])
                ratio = _measure.compute_ratios(times, who, _BASELINE)
                measured.append({"size": size, "k": k, "who": who, "seconds": took, "ratio": ratio})
                text = _measure.seconds_text(took.median)
                rows.append([f"{size:,}", str(k), who, text, ratio.ratio_text()])
    _measure.report(
        "top_k",
        ["size", "k", "run by", "median", f"x {_BASELINE}"],
        rows,
        measured,
        json_path=options.json,
    )


if __name__ == "__main__":
    main()
