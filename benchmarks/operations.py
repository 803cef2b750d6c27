"""TensorFlow's own operations, compared with XlaCallModule and the same model in Keras.

Measures the time of a call, of the first call at a new size, of requests of random sizes and of
converting, and counts the operations of the graphs.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import _measure
from benchmarks._models import MODELS, Model, write_keras_model
from jax2tf_bridge import Target, convert
from tests.consumers.own_operations import (
    foreign_operations,
    operation_counts,
    switch_off_xla,
    without_xla,
)

_XLA, _OWN, _KERAS = "XlaCallModule", "TensorFlow's operations", "Keras"
_MAX_ROWS = 128
# Each size is used once, so that it is new.
_NEW_SIZES = (3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22)


def _make_spec(model: Model) -> tf.TensorSpec:
    return tf.TensorSpec((None, *model.shape), tf.int32 if model.vocabulary else tf.float32)


def _convert(model: Model, target: Target) -> Any:
    """Converts a model to serve: its weights are variables, and its batch size is open."""
    weights = {name: tf.Variable(value) for name, value in model.weights.items()}
    f = convert(model.apply, polymorphic_shapes=[None, model.polymorphic_shape], target=target)
    return tf.function(
        lambda x: f(weights, x), input_signature=[_make_spec(model)], autograph=False
    )


def _write_in_keras(name: str, model: Model) -> Any:
    keras_model = write_keras_model(name, model)
    return tf.function(
        lambda x: keras_model(x, training=False),
        input_signature=[_make_spec(model)],
        autograph=False,
    )


def makers(name: str, model: Model) -> Mapping[str, Callable[[], Any]]:
    """Returns makers of the functions to compare, by name."""
    return {
        _XLA: lambda: _convert(model, Target.widest()),
        _OWN: lambda: _convert(model, without_xla()),
        _KERAS: lambda: _write_in_keras(name, model),
    }


def first_calls(functions: Mapping[str, Any], model: Model) -> dict[str, list[float]]:
    """Measures the seconds of first calls at new sizes.

    Each function has its own sizes, because TensorFlow's caches for a size are shared.
    """
    times: dict[str, list[float]] = {who: [] for who in functions}
    for size, who in zip(_NEW_SIZES, itertools.cycle(functions), strict=False):
        x = tf.constant(model.inputs(size))
        start = time.perf_counter()
        np.asarray(functions[who](x))
        times[who].append(time.perf_counter() - start)
    return times


def trace(functions: Mapping[str, Any], model: Model, sizes: Sequence[int]) -> dict[str, float]:
    """Measures the total seconds of sequential requests; the functions take turns to go first."""
    tensors = {size: tf.constant(model.inputs(size)) for size in set(sizes)}
    seconds = dict.fromkeys(functions, 0.0)
    for i, size in enumerate(sizes):
        first = i % len(functions)
        for who in [*functions][first:] + [*functions][:first]:
            start = time.perf_counter()
            np.asarray(functions[who](tensors[size]))
            seconds[who] += time.perf_counter() - start
    return seconds


@dataclass
class _Table:
    """The rows of a table, and their measurements."""

    rows: list[list[str]] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)


def measure(name: str, options: Any, steady: _Table, news: _Table) -> None:
    """Measures one model, and adds rows per function and batch, and per function at new sizes."""
    model = MODELS[name]()
    functions, conversion_times = {}, {}
    for who, make in makers(name, model).items():
        start = time.process_time()
        functions[who] = make()
        functions[who].get_concrete_function()
        conversion_times[who] = time.process_time() - start
    assert foreign_operations(functions[_OWN].get_concrete_function().graph) == []
    counts = {
        who: operation_counts(f.get_concrete_function().graph).total()
        for who, f in functions.items()
    }
    warm = tf.constant(model.inputs(2))
    expected = np.asarray(functions[_XLA](warm))
    for f in functions.values():
        np.testing.assert_allclose(np.asarray(f(warm)), expected, rtol=2e-3, atol=2e-3)
    _measure.print_progress(f"{name}: sizes that are new")
    firsts = {
        who: _measure.Spread.of(times) for who, times in first_calls(functions, model).items()
    }
    random_sizes = [random.Random(i).randint(1, _MAX_ROWS) for i in range(options.requests)]
    _measure.print_progress(f"{name}: {options.requests} requests")
    totals = trace(functions, model, random_sizes)
    for batch in options.batches:
        _measure.print_progress(f"{name}: batch {batch}")
        x = tf.constant(model.inputs(batch))
        calls = {who: lambda f=f, x=x: np.asarray(f(x)) for who, f in functions.items()}
        times = _measure.measure_interleaved(calls, rounds=options.rounds)
        for who in functions:
            spread = _measure.Spread.of(times[who])
            ratios = {b: _measure.compute_ratios(times, who, b) for b in (_XLA, _KERAS)}
            steady.measured.append(
                {
                    "model": name,
                    "batch": batch,
                    "who": who,
                    "seconds": spread,
                    **{f"to {b}": ratio for b, ratio in ratios.items()},
                }
            )
            ratio_texts = [ratio.ratio_text() for ratio in ratios.values()]
            median = _measure.seconds_text(spread.median)
            steady.rows.append([name, str(batch), who, median, *ratio_texts])
    for who in functions:
        first, total = firsts[who], totals[who]
        news.measured.append(
            {
                "model": name,
                "who": who,
                "first call": first,
                "requests": total,
                "operations": counts[who],
                "converting": conversion_times[who],
            }
        )
        texts = [*map(_measure.seconds_text, (first.median, total)), str(counts[who])]
        news.rows.append([name, who, *texts, _measure.seconds_text(conversion_times[who])])


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=31)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    switch_off_xla()
    steady, news = _Table(), _Table()
    for name in options.models:
        measure(name, options, steady, news)
    _measure.report(
        "TensorFlow's own operations",
        ["model", "batch", "run by", "median", f"x {_XLA}", f"x {_KERAS}"],
        steady.rows,
        steady.measured,
        json_path=options.json,
    )
    _measure.report(
        "TensorFlow's own operations at new sizes",
        ["model", "run by", "first call at a size", "requests", "operations", "converting, CPU"],
        news.rows,
        news.measured,
        json_path=options.json,
        notes=[
            f"{options.requests} requests of 1 to {_MAX_ROWS} rows, one after another. Operations: "
            "without constants, arguments and reads of variables."
        ],
    )


if __name__ == "__main__":
    main()
