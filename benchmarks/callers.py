"""Requests of one row from many threads at once, joined by the model itself or not.

Calls each model from C++, and the largest also from Python, each time in a fresh process.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _measure

_BUCKETS = (1, 2, 4, 8, 16)
_CALLERS = 16
_APART, _JOINED = "apart", "joined"
_LARGE = "MLP of 33 MB"


def make_models() -> dict[str, Any]:
    """Makes the models by name."""
    import jax
    import numpy as np

    from benchmarks._models import Model, mlp, transformer

    rng = np.random.default_rng(1)
    sizes = (1024, 2048, 2048, 1024)
    weights = {
        f"w{i}": (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }

    def apply(w: Mapping[str, Any], x: Any) -> Any:
        for i in range(len(w)):
            x = jax.nn.relu(x @ w[f"w{i}"])
        return x

    large = Model(apply, weights, (1024,), "(b, 1024)")
    return {"MLP": mlp(), _LARGE: large, "transformer": transformer(layers=1)}


def save_models(folder: Path) -> dict[tuple[str, str], dict[str, tuple[Path, tuple[int, ...]]]]:
    """Saves each model with and without batching; returns paths and sizes after the batch."""
    from jax2tf_bridge import Batching, Signature, Target, save

    saved: dict[tuple[str, str], dict[str, tuple[Path, tuple[int, ...]]]] = {}
    for name, model in make_models().items():
        for ops, target in (("XLA", None), ("TensorFlow's", Target.widest(xla=False))):
            for who, batching in ((_APART, None), (_JOINED, Batching())):
                path = folder / f"{len(saved)}-{who}"
                save(
                    path,
                    Signature(
                        model.apply,
                        args=[model.inputs(2)],
                        polymorphic_shapes=model.polymorphic_shape,
                    ),
                    params=model.weights,
                    vjp_order=0,
                    buckets={"b": _BUCKETS},
                    batching=batching,
                    target=target,
                )
                saved.setdefault((name, ops), {})[who] = (path, model.shape)
    return saved


def call_here(path: str, seconds: float, sizes: Sequence[int]) -> None:
    """Calls a model in this process, and prints the seconds of each request."""
    import tensorflow as tf

    signature = tf.saved_model.load(path).signatures["serving_default"]
    for rows in _BUCKETS:
        signature(x=tf.zeros((rows, *sizes)))
    times: list[list[float]] = [[] for _ in range(_CALLERS)]
    end = time.perf_counter() + seconds

    def call(own: list[float]) -> None:
        x = tf.fill((1, *sizes), 0.01)
        while (start := time.perf_counter()) < end:
            signature(x=x)["output_0"].numpy()
            own.append(time.perf_counter() - start)

    threads = [threading.Thread(target=call, args=(own,)) for own in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(f"{t:.9f}" for own in times for t in own))


@dataclass(frozen=True)
class Figures:
    """Figures of one process: seconds per request over all callers, and quantiles of a request."""

    per_request: float
    p50: float
    p99: float


def measure(command: Sequence[str], seconds: float) -> Figures:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times = sorted(map(float, done.stdout.split()))
    p99 = times[int(0.99 * (len(times) - 1))]
    return Figures(seconds / len(times), statistics.median(times), p99)


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of calls (%(default)s)")
    parser.add_argument("--call", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        path, *sizes = options.call
        call_here(path, options.seconds, [int(size) for size in sizes])
        return
    import tensorflow as tf

    from tests.consumers.cpp_programs import compile_program

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = folder / "callers"
        compile_program("callers.cc", Path(tf.__file__).parent, program)
        saved = save_models(folder)
        results: dict[tuple[str, str, str], dict[str, list[Figures]]] = {}
        for number in range(options.rounds):
            for (name, ops), language in itertools.product(saved, ("C++", "Python")):
                # Smaller models would measure Python's lock.
                if language == "Python" and name != _LARGE:
                    continue
                _measure.print_progress(f"round {number + 1}: {name}, {ops}, {language}")
                contestants = list(saved[name, ops].items())
                random.Random(number).shuffle(contestants)
                for who, (path, shape) in contestants:
                    sizes = [str(size) for size in shape]
                    seconds = str(options.seconds)
                    command = [str(program), str(path), str(_CALLERS), seconds, *sizes]
                    if language == "Python":
                        module = [sys.executable, "-m", "benchmarks.callers"]
                        command = [*module, "--seconds", seconds, "--call", str(path), *sizes]
                    by_who = results.setdefault((name, ops, language), {})
                    by_who.setdefault(who, []).append(measure(command, options.seconds))
    report(results, options.json)


def report(
    results: Mapping[tuple[str, str, str], Mapping[str, Sequence[Figures]]],
    json_path: Path | None,
) -> None:
    rows, measured = [], []
    for (name, ops, language), by_who in results.items():
        for who in by_who:
            row: dict[str, Any] = {"model": name, "ops": ops, "callers": language, "who": who}
            ratios = []
            for key in ("per_request", "p50", "p99"):
                times = {w: [getattr(f, key) for f in each] for w, each in by_who.items()}
                row[key] = _measure.Spread.of(times[who])
                row[f"{key} to apart"] = _measure.compute_ratios(times, who, _APART)
                ratios.append(row[f"{key} to apart"].ratio_text())
            measured.append(row)
            texts = [_measure.seconds_text(row[key].median) for key in ("p50", "p99")]
            per_second = f"{1 / row['per_request'].median:,.0f}"
            per_request, _, p99 = ratios
            rows.append([name, ops, language, who, per_second, per_request, *texts, p99])
    header = ["model", "operations", "callers", "requests", "a second", "time x apart"]
    header += ["median", "p99", "p99 x apart"]
    _measure.report("Sixteen callers", header, rows, measured, json_path=json_path)


if __name__ == "__main__":
    main()
