"""Requests of many sizes, served from C++.

Compares jax2tf's model, the bridge's model with buckets, and the bridge's model as TensorFlow's
own operations.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf_bridge as bridge
from benchmarks import _measure
from jax2tf_bridge import Target
from tests.consumers.cpp_programs import compile_program
from tests.consumers.own_operations import without_xla
from tests.consumers.replaying import Replay, Run, numbers, replay

_WIDTHS = (784, 512, 512, 10)
_MAX_SIZE = 128
_JAX2TF, _PLAIN, _BUCKETS = "jax2tf", "bridge, no buckets", "bridge, buckets and warm-up"
_OWN = "bridge, TensorFlow's operations"
_STEADY = "bridge, no buckets, again"


def weights() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        ((rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(_WIDTHS)
    ]


def mlp(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def trace(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randint(1, _MAX_SIZE) for _ in range(count)]


def write_jax2tf(path: Path) -> None:
    from jax.experimental import jax2tf

    f = jax2tf.convert(mlp, polymorphic_shapes=[None, f"(b, {_WIDTHS[0]})"])
    module = tf.Module()
    module.params = [[tf.Variable(w), tf.Variable(b)] for w, b in weights()]
    module.f = tf.function(
        lambda x: {"output_0": f([tuple(pair) for pair in module.params], x)},
        input_signature=[tf.TensorSpec((None, _WIDTHS[0]), tf.float32, name="x")],
        autograph=False,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(
        module, str(path), signatures={"serving_default": module.f}, options=options
    )


def write_ours(path: Path, target: Target | None = None, **options: Any) -> None:
    x = jax.ShapeDtypeStruct((4, _WIDTHS[0]), np.float32)
    params = weights()
    shapes = [None, f"(b, {_WIDTHS[0]})"]
    portable = bridge.export(mlp, polymorphic_shapes=shapes, target=target)(params, x)
    bridge.save(path, portable, params=params, **options)


@dataclass(frozen=True)
class Figures:
    """The figures of one process: compilations before and in the trace, and seconds."""

    before: int
    compilations: int
    median: float
    p99: float
    total: float
    warm_up: float

    @staticmethod
    def of(runs: Sequence[Run], warm_up: Sequence[Run] = (), before: int = 0) -> Figures:
        seconds = sorted(run.seconds for run in runs)
        return Figures(
            before,
            runs[-1].compilations - before,
            statistics.median(seconds),
            seconds[int(0.99 * (len(seconds) - 1))],
            sum(seconds),
            sum(run.seconds for run in warm_up),
        )


def measure(
    models: Mapping[str, Path], run: Callable[[Path, Sequence[int]], Replay], sizes: list[int]
) -> dict[str, Figures]:
    """Measures one round; every model has its own process."""
    figures = {}
    for name, model in models.items():
        _measure.print_progress(name)
        twice = name == _PLAIN
        replayed = run(model, [*sizes, *sizes] if twice else sizes)
        check(replayed, sizes)
        first = replayed.requests[: len(sizes)]
        before = replayed.compilations()[0]
        figures[name] = Figures.of(first, replayed.warm_up, before)
        if twice:
            again = replayed.requests[len(sizes) :]
            figures[_STEADY] = Figures.of(again, before=first[-1].compilations)
    return figures


def check(replayed: Replay, sizes: Sequence[int]) -> None:
    """Compares the answers with JAX's; every 25th request is checked."""
    params, start = weights(), 0
    for number, size in enumerate(sizes):
        stop = start + size * _WIDTHS[-1]
        if number % 25 == 0:
            expected = np.asarray(mlp(params, numbers(number, size, _WIDTHS[0])))
            answer = replayed.answers[start:stop].reshape(size, -1)
            np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-3)
        start = stop


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=3)
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    sizes = trace(options.requests, seed=0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = folder / "replay"
        compile_program("replay.cc", Path(tf.__file__).parent, program)
        models = {name: folder / str(i) for i, name in enumerate((_JAX2TF, _PLAIN, _BUCKETS, _OWN))}
        write_jax2tf(models[_JAX2TF])
        write_ours(models[_PLAIN], warm_up=False)
        write_ours(models[_OWN], without_xla(), warm_up=False)
        write_ours(models[_BUCKETS], expected_sizes=trace(1000, seed=1))

        def run(model: Path, asked: Sequence[int]) -> Replay:
            return replay(program, model, asked, folder / "answers")

        rounds = [measure(models, run, sizes) for _ in range(options.rounds)]
    report(rounds, options.json)


def report(rounds: Sequence[Mapping[str, Figures]], json_path: Path | None) -> None:
    rows, measured = [], []
    for name in (_JAX2TF, _PLAIN, _STEADY, _BUCKETS, _OWN):
        figures_by_name = {
            key: [getattr(r[name], key) for r in rounds] for key in Figures.__annotations__
        }
        spreads = {key: _measure.Spread.of(values) for key, values in figures_by_name.items()}
        ratios = {
            key: _measure.Spread.of(
                [getattr(r[name], key) / getattr(r[_JAX2TF], key) for r in rounds], is_ratio=True
            )
            for key in ("p99", "total")
        }
        to_steady = _measure.Spread.of(
            [r[name].median / r[_STEADY].median for r in rounds], is_ratio=True
        )
        rows.append(
            [
                name,
                f"{figures_by_name['before'][0]} + {figures_by_name['compilations'][0]}",
                _measure.seconds_text(spreads["warm_up"].median),
                *(_measure.seconds_text(spreads[key].median) for key in ("median", "p99", "total")),
                *(ratios[key].ratio_text() for key in ("p99", "total")),
                to_steady.ratio_text(),
            ]
        )
        measured.append(
            {
                "who": name,
                **spreads,
                "p99 to jax2tf": ratios["p99"],
                "total to jax2tf": ratios["total"],
                "median to the unpadded": to_steady,
            }
        )
    header = ["model", "compiles: warm-up + trace", "warm-up", "median", "p99", "total"]
    header += ["p99 x jax2tf", "total x jax2tf", "median x unpadded"]
    _measure.report("A trace of requests", header, rows, measured, json_path=json_path)


if __name__ == "__main__":
    main()
