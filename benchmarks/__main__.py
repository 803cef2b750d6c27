"""Runs the benchmarks one after another, and compares their results with earlier ones."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import _measure, _page
from benchmarks._results import Change, Report, find_changes, read_results

BENCHMARKS: Mapping[str, Sequence[str]] = {
    **{
        name: (name,)
        for name in ("latency", "convert_time", "operations", "platforms", "top_k", "keeping_nan")
    },
    **{
        name: (name,)
        for name in ("linalg", "proofs", "inference", "shape_checks", "files", "weights")
    },
    "small_leaves": ("small_leaves",),
    "saving": ("saving",),
    "buckets": ("saving", "--buckets"),
    "large_weights": ("saving", "--megabytes", "1000"),
    "serving": ("serving",),
    "callers": ("callers",),
    "second_process": ("second_process",),
    "cold_start": ("cold_start",),
    "export_many": ("export_many",),
    "many_rows": ("many_rows",),
    "models": ("models",),
    "training": ("training",),
    "ahead_of_time": ("ahead_of_time",),
    "browser": ("browser",),
    "onnx": ("onnx",),
}
"""Module and options of each benchmark, by its name on the command line."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the named benchmarks; the exit code is 1 if one fails or has become slower."""
    options = _parse_options(words)
    if options.page:
        for path in _page.write_pages():
            print(path)
        return 0
    before = {} if options.against is None else read_results(options.against)
    with tempfile.TemporaryDirectory() as folder:
        results = options.json or Path(folder) / "results.json"
        failed = [
            name for name in options.names if not _run_benchmark(name, results, options.rounds)
        ]
        after = read_results(results)
    slower = options.against is not None and _print_changes(before, after)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or slower else 0


def _parse_options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--rounds", type=int, help="how often each is measured; by default its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the results to this file")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="results from before: say what has changed"
    )
    parser.add_argument(
        "--page", action="store_true", help="write README.md and the chart of results.json"
    )
    options = parser.parse_args(words)
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}: there are {', '.join(BENCHMARKS)}")
    if options.against is not None and not options.against.exists():
        parser.error(f"--against: there is no file {options.against}")
    options.names = options.names or list(BENCHMARKS)
    return options


def _run_benchmark(name: str, results: Path, rounds: int | None) -> bool:
    """Runs a benchmark in its own process, which adds its tables to the results."""
    _measure.print_progress(name)
    module, *arguments = BENCHMARKS[name]
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json", str(results)]
    if rounds is not None:
        command += ["--rounds", str(rounds)]
    return subprocess.run(command, check=False).returncode == 0


def _print_changes(before: Mapping[str, Report], after: Mapping[str, Report]) -> bool:
    """Prints the ratios that have changed; returns whether one has become slower."""
    changed = sorted(find_changes(before, after), key=lambda change: not change.is_slower)
    if not changed:
        print("\nNo ratio differs by more than a tenth, beyond what the rounds differ by.")
        return False
    print("\nRatios that differ by more than a tenth, beyond what the rounds differ by:\n")
    print(
        _measure.table(
            ["table", "row", "ratio", "before", "now", ""], list(map(_make_row, changed))
        )
    )
    return any(change.is_slower for change in changed)


def _make_row(change: Change) -> list[str]:
    texts = [f"{ratio['median']:.2f}" for ratio in (change.before, change.after)]
    return [change.title, change.row, change.name, *texts, "SLOWER" if change.is_slower else ""]


if __name__ == "__main__":
    sys.exit(main())
