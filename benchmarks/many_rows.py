"""Rows per second of RowScorer, against a loop over batches, with one and two workers.

Each contestant runs in processes of its own, with one TensorFlow thread each, which begin together
after they have loaded the model. Compilations count. Ratios are those of CPU time, of the worker
that has most to do: so long it takes on cores that are free.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _measure

_LOOP, _ONE, _TWO = "plain loop", "RowScorer, 1 worker", "RowScorer, 2 workers"
_WORKERS = {_LOOP: 1, _ONE: 1, _TWO: 2}
_BATCH, _CHUNK, _LONGEST = 256, 4096, 128
_DEFAULT_ROWS = {"table": 200_000, "text": 20_000}
_MEMORY_ROWS = 1_000_000
_FEATURES = 64


def save_models(folder: Path) -> None:
    """Saves each model with and without buckets."""
    import jax
    import jax.numpy as jnp

    from jax2tf_bridge import Signature, save

    rng = np.random.default_rng(0)
    params = {
        "table": rng.standard_normal((1000, _FEATURES), np.float32),
        "hidden": rng.standard_normal((_FEATURES, _FEATURES), np.float32) / 8,
        "head": rng.standard_normal((_FEATURES, 10), np.float32),
    }

    def classify(params: Any, x: Any) -> Any:
        return jax.nn.softmax(jnp.tanh(x @ params["hidden"]) @ params["head"])

    def classify_text(params: Any, ids: Any, mask: Any) -> Any:
        words = jnp.tanh(params["table"][ids] @ params["hidden"]) * mask[..., None]
        return jax.nn.softmax(words.sum(1) / jnp.maximum(mask.sum(1), 1)[:, None] @ params["head"])

    x, ids = np.ones((2, _FEATURES), np.float32), np.ones((2, 5), np.int32)
    table = Signature(classify, [x], polymorphic_shapes=f"(b, {_FEATURES})")
    text = Signature(classify_text, [ids, ids], polymorphic_shapes="(b, n)")
    rows, lengths = [_BATCH], [16, 32, 64, _LONGEST]
    save(folder / "table", table, params=params)
    save(folder / "table-buckets", table, params=params, buckets={"b": rows})
    save(folder / "text", text, params=params)
    save(folder / "text-buckets", text, params=params, buckets={"b": rows, "n": lengths})


def _make_chunks(model: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields columns of rows; most texts are short."""
    rng = np.random.default_rng(seed)
    for first in range(0, count, _CHUNK):
        size = min(_CHUNK, count - first)
        if model == "table":
            yield {"x": rng.random((size, _FEATURES), np.float32)}
            continue
        lengths = np.clip(rng.lognormal(3, 0.7, size), 1, _LONGEST).astype(int)
        ids = [rng.integers(1, 1000, length, np.int32) for length in lengths]
        yield {"ids": ids, "mask": [np.ones(length, np.int32) for length in lengths]}


def _run_loop(signature: Any, chunk: Mapping[str, Any]) -> float:
    """Runs batches in order, each padded to its longest row, and sums the scores."""
    import tensorflow as tf

    total = 0.0
    for first in range(0, len(next(iter(chunk.values()))), _BATCH):
        batch = {}
        for name, column in chunk.items():
            rows = column[first : first + _BATCH]
            if isinstance(rows, list):
                padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
                for row, value in zip(padded, rows, strict=True):
                    row[: len(value)] = value
                rows = padded
            batch[name] = tf.constant(rows)
        total += float(signature(**batch)["output_0"].numpy()[:, 0].sum())
    return total


def work(who: str, model: str, folder: Path, count: int, seed: int) -> None:
    """Scores rows as one worker: prints a line when it is ready, and one when it has finished."""
    import tensorflow as tf

    from jax2tf_bridge import RowScorer

    if who == _LOOP:
        loaded = tf.saved_model.load(str(folder / model))
        signature = loaded.signatures["serving_default"]
    else:
        scorer = RowScorer(folder / f"{model}-buckets").load()
    print("ready", flush=True)
    sys.stdin.readline()
    total, seconds, cpu, peaks = 0.0, 0.0, 0.0, []
    for chunk in _make_chunks(model, count, seed):
        start, cpu_start = time.perf_counter(), time.process_time()
        if who == _LOOP:
            total += _run_loop(signature, chunk)
        else:
            total += float(scorer.score_columns(chunk)["output_0"][:, 0].sum())
        seconds += time.perf_counter() - start
        cpu += time.process_time() - cpu_start
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    early = peaks[len(peaks) // 10]
    result = {"seconds": seconds, "cpu": cpu, "total": total, "early": early, "peak": peaks[-1]}
    print(json.dumps(result))


def _measure_once(who: str, model: str, folder: Path, count: int) -> dict[str, float]:
    """Runs the workers of a contestant; returns the times of the slowest, and memory in KiB."""
    workers = _WORKERS[who]
    command = [sys.executable, "-m", "benchmarks.many_rows", "--work", who, model, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(count // workers), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "1",
            },
        )
        for seed in range(workers)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{who} does not start"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [json.loads(process.communicate()[0]) for process in processes]
    slowest = {name: max(result[name] for result in results) for name in ("seconds", "cpu")}
    return {**results[0], **slowest}


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_models(folder)
        _report_rates(options, folder)
        if options.memory:
            _report_memory(options, folder)


def _report_rates(options: argparse.Namespace, folder: Path) -> None:
    rows, measured = [], []
    for model, default in _DEFAULT_ROWS.items():
        count = max(_CHUNK, int(default * options.scale))
        times: dict[str, list[float]] = {who: [] for who in _WORKERS}
        rates: dict[str, list[float]] = {who: [] for who in _WORKERS}
        for turn in range(options.rounds):
            _measure.print_progress(f"{model}, round {turn + 1}")
            results = {who: _measure_once(who, model, folder, count) for who in _WORKERS}
            np.testing.assert_allclose(results[_ONE]["total"], results[_LOOP]["total"], rtol=1e-4)
            for who, result in results.items():
                times[who].append(result["cpu"])
                rates[who].append(count / result["seconds"])
        for who in _WORKERS:
            rate, cpu = _measure.Spread.of(rates[who]), _measure.Spread.of(times[who])
            to_loop = _measure.compute_ratios(times, who, _LOOP)
            to_one = _measure.compute_ratios(times, who, _ONE)
            rows.append(
                [
                    f"{count:,} rows of {model}",
                    who,
                    f"{rate.median:,.0f}",
                    f"{count / cpu.median:,.0f}",
                    to_loop.ratio_text(),
                    to_one.ratio_text(),
                ]
            )
            measured.append(
                {
                    "model": model,
                    "who": who,
                    "rows": count,
                    "rows per second": rate,
                    "CPU seconds": cpu,
                    "to the loop": to_loop,
                    "to one worker": to_one,
                }
            )
    _measure.report(
        "Many rows",
        ["rows", "who", "rows/s", "rows/s on free cores", "time to the loop", "to one worker"],
        rows,
        measured,
        json_path=options.json,
    )


def _report_memory(options: argparse.Namespace, folder: Path) -> None:
    _measure.print_progress("memory")
    result = _measure_once(_ONE, "table", folder, _MEMORY_ROWS)
    early, peak = result["early"] / 1024, result["peak"] / 1024
    _measure.report(
        "Memory over 1,000,000 rows",
        ["who", "MiB after a tenth", "MiB after all"],
        [[_ONE, f"{early:.0f}", f"{peak:.0f}"]],
        [{"who": _ONE, "early": early, "peak": peak}],
        json_path=options.json,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        who, model, folder, count, seed = sys.argv[2:]
        work(who, model, Path(folder), int(count), int(seed))
    else:
        parser = _measure.make_parser(__doc__, rounds=3)
        parser.add_argument(
            "--scale", type=float, default=1.0, help="multiplies the numbers of rows (%(default)s)"
        )
        parser.add_argument(
            "--memory",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="measure memory over 1,000,000 rows",
        )
        main(parser.parse_args())
