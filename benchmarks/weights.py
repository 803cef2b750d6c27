"""Writing and reading 1 GB of weights as msgpack, compared with flax.serialization."""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _measure

_MIB = 2**20
_WRITE, _OPEN, _SUM = "write a file", "open", "open and sum every leaf"
# The bridge calls fsync when it writes a file, so Flax is also measured with fsync.
_BRIDGE, _FLAX, _FLAX_FSYNC = "bridge", "Flax", "Flax and fsync"
_SIDES = {_WRITE: (_BRIDGE, _FLAX, _FLAX_FSYNC), _OPEN: (_BRIDGE, _FLAX), _SUM: (_BRIDGE, _FLAX)}


def _make_leaf(number: int, megabytes: int) -> np.ndarray[Any, Any]:
    # Filled in place, because temporary arrays would count as memory of the step.
    leaf = np.empty((1024, megabytes * 256), np.float32)
    leaf[...] = np.arange(leaf.shape[1], dtype=np.float32) + np.float32(number)
    return leaf


def tree(megabytes: int) -> dict[str, Any]:
    """Makes layers of two float32 leaves of 1 to 4 MiB."""
    layers: dict[str, Any] = {}
    left = megabytes
    while left > 0:
        number = len(layers)
        kernel = min(left, 1 + number % 4)
        recurrent = min(left - kernel, 1 + (number + 1) % 4)
        layers[f"layers_{number}"] = {
            "kernel": _make_leaf(number, kernel),
            "recurrent_kernel": _make_leaf(number, recurrent),
        }
        left -= kernel + recurrent
    return {"params": layers}


def _sum_leaves(state: Any) -> float:
    if isinstance(state, dict):
        return sum(_sum_leaves(value) for value in state.values())
    return float(np.sum(state, dtype=np.float64))


def _make_steps(side: str, file: Path) -> dict[str, Callable[[Any], Any]]:
    """Makes the steps of one side; each takes the tree, or ignores its argument."""
    if side == _BRIDGE:
        from jax2tf_bridge.weights import open_weights, write_weights

        def open_and_sum(_: Any) -> float:
            with open_weights(file) as weights:
                return sum(float(np.sum(leaf, dtype=np.float64)) for leaf in weights.values())

        return {
            _WRITE: lambda params: write_weights(file, params),
            _OPEN: lambda _: open_weights(file),
            _SUM: open_and_sum,
        }
    from flax import serialization

    def write(params: Any) -> None:
        with file.open("wb") as handle:
            handle.write(serialization.to_bytes(params))
            if side == _FLAX_FSYNC:
                handle.flush()
                os.fsync(handle.fileno())

    def restore(_: Any) -> Any:
        return serialization.msgpack_restore(file.read_bytes())

    return {_WRITE: write, _OPEN: restore, _SUM: lambda params: _sum_leaves(restore(params))}


def _read_memory(field: str) -> int:
    """Reads VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def measure_here(side: str, step: str, file: Path, megabytes: int) -> dict[str, float]:
    """Measures the seconds of a step, and the peak memory above the memory before the tree."""
    small = file.with_name("small")
    calls = _make_steps(side, small)
    # Runs all steps on something small first: imports and setup do not depend on the size.
    calls[_WRITE](tree(1))
    for warm_up in (_OPEN, _SUM):
        calls[warm_up](None)
    gc.collect()
    call = _make_steps(side, file)[step]
    before = _read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    params = None
    if step == _WRITE:
        params = tree(megabytes)
        file.unlink(missing_ok=True)
    os.sync()
    start = time.perf_counter()
    result = call(params)
    seconds = time.perf_counter() - start
    peak = _read_memory("VmHWM") - before
    figures = {"seconds": seconds, "peak": peak}
    if step == _SUM:
        figures["total"] = result
    return figures


def _measure_in_fresh_process(side: str, step: str, file: Path, megabytes: int) -> dict[str, float]:
    arguments = [side, step, str(file), str(megabytes)]
    command = [sys.executable, "-m", "benchmarks.weights", "--child", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def _check_equal(folder: Path) -> None:
    """Checks that both sides write the same bytes, and that the bridge reads Flax's."""
    from flax import serialization

    from jax2tf_bridge.weights import open_weights, to_bytes

    params = tree(8)
    data = to_bytes(params)
    assert data == serialization.to_bytes(params)
    (folder / "both").write_bytes(data)
    with open_weights(folder / "both") as weights:
        assert sum(
            float(np.sum(leaf, dtype=np.float64)) for leaf in weights.values()
        ) == _sum_leaves(params)


def _measure_step(step: str, rounds: int, megabytes: int, folder: Path) -> dict[str, Any]:
    """Measures one step of all sides, which take turns in random order."""
    times: dict[str, list[float]] = {side: [] for side in _SIDES[step]}
    peaks: dict[str, list[float]] = {side: [] for side in _SIDES[step]}
    totals = set()
    order = list(times)
    for round_number in range(rounds):
        _measure.print_progress(f"{step}, round {round_number + 1} of {rounds}")
        random.Random(round_number).shuffle(order)
        for side in order:
            figures = _measure_in_fresh_process(side, step, folder / "weights.msgpack", megabytes)
            times[side].append(figures["seconds"])
            peaks[side].append(figures["peak"] / (megabytes * _MIB))
            totals.add(figures.get("total"))
    assert len(totals) == 1, totals
    row: dict[str, Any] = {"step": step, "MB": megabytes}
    for side in _SIDES[step]:
        row[f"{side}, s"] = _measure.Spread.of(times[side])
        row[f"{side}, memory"] = _measure.Spread.of(peaks[side])
        if side != _BRIDGE:
            row[f"x {side}"] = _measure.compute_ratios(times, _BRIDGE, side)
    return row


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=9)
    parser.add_argument("--megabytes", type=int, default=1024, help="of the tree (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the files are written")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, step, file, megabytes = options.child
        print(json.dumps(measure_here(side, step, Path(file), int(megabytes))))
        return
    measured, rows = [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _check_equal(Path(folder))
        for step in _SIDES:
            measured.append(_measure_step(step, options.rounds, options.megabytes, Path(folder)))
    for row in measured:
        for side in _SIDES[row["step"]]:
            ratio = row.get(f"x {side}")
            seconds = row[f"{side}, s"]
            texts = [_measure.seconds_text(x) for x in (seconds.low, seconds.high)]
            rows.append(
                [
                    row["step"],
                    side,
                    f"{_measure.seconds_text(seconds.median)} ({' to '.join(texts)})",
                    f"{row[f'{side}, memory'].median:.2f}",
                    ratio_text(ratio) if ratio else "",
                ]
            )
    _measure.report(
        f"Weights of {options.megabytes} MiB",
        ["step", "by", "time", "peak memory / tree", "bridge / this"],
        rows,
        measured,
        json_path=options.json,
        notes=[f"Flax {importlib.metadata.version('flax')}."],
    )


def ratio_text(ratio: _measure.Spread) -> str:
    """Formats a ratio with two significant digits, since it may be small."""
    return " ".join([f"{ratio.median:.2g}", f"({ratio.low:.2g}-{ratio.high:.2g})"])


if __name__ == "__main__":
    main()
