"""Exports the cases for a consumer without XLA: a portable function of each, and JAX's answers.

    python -m tests.primitives.export_operations FOLDER [GROUP ...]

tests/primitives/consume_operations.py reads them.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jax2tf_bridge import Target, export
from tests.consumers.exchange import Report, write_arrays
from tests.consumers.one_by_one import one_by_one
from tests.consumers.own_operations import without_xla
from tests.primitives.case import Case, precision
from tests.primitives.groups import GROUPS
from tests.primitives.running import (
    Trial,
    batch_trials,
    batched,
    sizes_compared,
    static_trials,
)
from tests.primitives.table import CASES


def export_cases(cases: Sequence[Case], target: Target, folder: Path) -> None:
    """Exports cases, all of one precision; skips those that do not exist.

    A case is exported by itself, so that what TensorFlow cannot express is a failure of this one.
    """
    present = [case for case in cases if case.exists]
    with precision(any(case.x64 for case in present)):
        _export("static", present, static_trials, target, folder)
        _export("batch", [c for c in present if batched(c)], batch_trials, target, folder)


def _export(
    run: str,
    cases: Sequence[Case],
    answered: Callable[[Sequence[Case]], list[Trial]],
    target: Target,
    folder: Path,
) -> None:
    for case, trial in zip(cases, answered(cases) if cases else [], strict=True):
        place = folder / str(CASES.index(case))
        place.mkdir(parents=True, exist_ok=True)
        facts = {"name": case.name, "tolerance": case.relative_tolerance}
        (place / "case.json").write_text(json.dumps(facts))
        sizes = sizes_compared(case) if run == "batch" else (0,)
        for size in sizes:
            shown = trial.of_size(size) if run == "batch" else trial
            arrays = {
                "inputs": shown.row,
                "results": shown.expected.results,
                "gradients": shown.expected.gradients,
            }
            write_arrays(place / f"{run}-{size}.npz", arrays)
        try:
            stored = _portable(run, case, trial, target)
        except Exception as e:  # whatever a case raises is its failure
            (place / f"{run}.failure").write_text(f"{type(e).__name__}: {e}")
        else:
            (place / f"{run}.pickle").write_bytes(pickle.dumps(stored))


def _portable(run: str, case: Case, trial: Trial, target: Target) -> Any:
    needed = [case.open_gradient_needs] if case.open_gradient_needs else []
    portable = export(
        trial.function,
        polymorphic_shapes="(b, ...)" if run == "batch" else None,
        polymorphic_constraints=needed if run == "batch" else (),
        platforms=["cpu"],
        target=target,
    )(*trial.row)
    return portable.with_vjp(1)


def main(folder: Path, *names: str) -> None:
    """Exports the groups named, or all."""
    report = Report(folder / "export.jsonl")
    report.head({"jax": jax.__version__})

    def exported(name: str) -> list[str]:
        export_cases(GROUPS[name], without_xla(), folder)
        jax.clear_caches()
        return []

    one_by_one(report, names or tuple(GROUPS), exported)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
