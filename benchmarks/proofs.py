"""Time to prove or refute comparisons of sizes that tracing asks for.

The comparisons are in tests/shape_poly/comparison_table.py. They are decided in a process that has
already loaded z3; the time to load it is measured separately, in fresh processes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import _measure
from shape_poly import Verdict, _deciding, parse_comparison
from tests.shape_poly.comparison_table import CASES, Case

_TIME_LIMIT = 2.0
_MAX_SHOWN = 12


def _make_decision(case: Case) -> Callable[[], Verdict]:
    """Makes a call that decides the comparison without the cache of `prove`."""
    constraints = [parse_comparison(text) for text in case.constraints]
    comparison = parse_comparison(case.comparison)
    return lambda: _deciding.decide(constraints, comparison, time_limit=_TIME_LIMIT)


def _needs_z3(case: Case) -> bool:
    """Returns whether a fresh process loads z3 to decide the comparison."""
    code = (
        "import sys\n"
        "from shape_poly._scope import prove\n"
        "from shape_poly._scope import SymbolicScope\n"
        f"prove({case.comparison!r}, SymbolicScope({case.constraints!r}, check=False))\n"
        "print('z3' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return process.stdout.strip() == "True"


def _time_process(code: str) -> float:
    timed = f"import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    process = subprocess.run(
        [sys.executable, "-c", timed], capture_output=True, text=True, check=True
    )
    return float(process.stdout)


def _expected_verdict(case: Case) -> str:
    return "proven" if case.counterexample is None else "refuted"


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=9)
    options = parser.parse_args()
    rows, measured = [], []
    times_by_kind: dict[str, list[float]] = {}
    for case in CASES:
        _measure.print_progress(case.comparison)
        decide = _make_decision(case)
        verdict = decide()
        if type(verdict).__name__.lower() != _expected_verdict(case):
            raise SystemExit(f"{case.comparison} came out as {verdict}")
        times = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            decide()
            times.append(time.perf_counter() - start)
        took = _measure.Spread.of(times)
        by = "z3" if _needs_z3(case) else "no z3"
        times_by_kind.setdefault(f"{_expected_verdict(case)}, {by}", []).append(took.median)
        measured.append(
            {
                "comparison": case.comparison,
                "constraints": list(case.constraints),
                "verdict": _expected_verdict(case),
                "z3": by == "z3",
                "seconds": took,
            }
        )
        constraints = f" ({', '.join(case.constraints)})" if case.constraints else ""
        rows.append((took.median, [f"{case.comparison}{constraints}", _expected_verdict(case), by]))
    slowest = sorted(rows, key=lambda row: -row[0])[:_MAX_SHOWN]
    z3_load_times = [_time_process("import z3") for _ in range(options.rounds)]
    package_load_times = [_time_process("import shape_poly") for _ in range(options.rounds)]
    notes = [
        f"{label}: {_measure.seconds_text(_measure.Spread.of(times).median)}"
        for label, times in (
            ("import z3", z3_load_times),
            ("import shape_poly", package_load_times),
        )
    ]
    measured.append({"load z3": _measure.Spread.of(z3_load_times)})
    measured.append({"load shape_poly": _measure.Spread.of(package_load_times)})
    _measure.report(
        f"The {_MAX_SHOWN} slowest of {len(CASES)}",
        ["comparison", "verdict", "by", "median"],
        [[*row, _measure.seconds_text(seconds)] for seconds, row in slowest],
        [],
        json_path=None,
    )
    _measure.report(
        "Proofs",
        ["decided", "comparisons", "median", "longest"],
        [
            [
                kind,
                str(len(times)),
                _measure.seconds_text(_measure.Spread.of(times).median),
                _measure.seconds_text(max(times)),
            ]
            for kind, times in sorted(times_by_kind.items())
        ],
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
