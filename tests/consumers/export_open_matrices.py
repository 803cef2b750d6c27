"""Exports linear algebra with open sizes: the portable functions, and the sizes of a call.

python -m tests.consumers.export_open_matrices FOLDER [NAME ...]
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import jax

from jax2tf_bridge import export
from tests.consumers.exchange import Report, write_arrays
from tests.consumers.one_by_one import one_by_one
from tests.from_jax.test_linalg_symbolic import CASES, Case, arguments

_ROWS = 5


def _export(case: Case, folder: Path) -> list[str]:
    args = arguments(case, _ROWS, "float32")
    portable = export(
        case.function,
        polymorphic_shapes=[f"({', '.join(letters)})" for letters in case.shapes],
        polymorphic_constraints=["m >= n + 1"] if case.tall else [],
    )(*args)
    folder.mkdir()
    stored = portable.with_vjp(1 if case.differentiable else 0)
    (folder / "record.pickle").write_bytes(pickle.dumps(stored))
    (folder / "program.json").write_text(json.dumps({"calls": 1}))
    write_arrays(folder / "call-0.npz", {"inputs": args})
    return []


def main(folder: Path, *names: str) -> None:
    """Exports the functions named, or all."""
    report = Report(folder / "export.jsonl")
    report.head({"jax": jax.__version__})
    one_by_one(report, names or CASES, lambda name: _export(CASES[name], folder / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
