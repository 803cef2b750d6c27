"""How long it takes to prove or refute the comparisons of sizes that tracing stops at.

The comparisons are those of tests/shape_poly/comparison_table.py. Each is decided in a process
where z3 is loaded already; what loading it costs is measured apart, in fresh processes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import _measure
from shape_poly import _deciding, parse_comparison
from tests.shape_poly.comparison_table import CASES, Case

_TIME_LIMIT = 2.0
_SLOWEST_SHOWN = 12


def _verdict(case: Case) -> Callable[[], _deciding.Verdict]:
    """Decides the comparison, past the cache of `prove`."""
    constraints = [parse_comparison(text) for text in case.constraints]
    comparison = parse_comparison(case.comparison)
    return lambda: _deciding.decide(constraints, comparison, time_limit=_TIME_LIMIT)


def _needs_z3(case: Case) -> bool:
    """Whether a fresh process loads z3 for it."""
    code = (
        "import sys\n"
        "from shape_poly._prover import prove\n"
        "from shape_poly._scope import SymbolicScope\n"
        f"prove({case.comparison!r}, SymbolicScope({case.constraints!r}, check=False))\n"
        "print('z3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def _seconds_of_a_process(code: str) -> float:
    timed = f"import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _expected(case: Case) -> str:
    return "proven" if case.counterexample is None else "refuted"


def main() -> None:
    parser = _measure.parser(__doc__, rounds=9)
    options = parser.parse_args()
    rows, measured = [], []
    of_kind: dict[str, list[float]] = {}
    for case in CASES:
        _measure.progress(case.comparison)
        decide = _verdict(case)
        verdict = decide()
        if type(verdict).__name__.lower() != _expected(case):
            raise SystemExit(f"{case.comparison} came out as {verdict}")
        times = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            decide()
            times.append(time.perf_counter() - start)
        took = _measure.Spread.of(times)
        by = "z3" if _needs_z3(case) else "no z3"
        of_kind.setdefault(f"{_expected(case)}, {by}", []).append(took.median)
        measured.append(
            {
                "comparison": case.comparison,
                "constraints": list(case.constraints),
                "verdict": _expected(case),
                "z3": by == "z3",
                "seconds": took,
            }
        )
        under = f" ({', '.join(case.constraints)})" if case.constraints else ""
        rows.append((took.median, [f"{case.comparison}{under}", _expected(case), by]))
    slowest = sorted(rows, key=lambda row: -row[0])[:_SLOWEST_SHOWN]
    loading = [_seconds_of_a_process("import z3") for _ in range(options.rounds)]
    package = [_seconds_of_a_process("import shape_poly") for _ in range(options.rounds)]
    notes = [
        f"{what}: {_measure.seconds_text(_measure.Spread.of(times).median)}"
        for what, times in (("import z3", loading), ("import shape_poly", package))
    ]
    measured.append({"load z3": _measure.Spread.of(loading)})
    measured.append({"load shape_poly": _measure.Spread.of(package)})
    _measure.report(
        f"The {_SLOWEST_SHOWN} slowest of {len(CASES)}",
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
            for kind, times in sorted(of_kind.items())
        ],
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
