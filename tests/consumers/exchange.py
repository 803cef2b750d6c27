"""Files between exporter and consumer: arrays of any dtype, references, and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.program_cases.answers import Array as Array
from tests.program_cases.answers import Reference

SERVED = "mlp_captured"
"""The program whose SavedModel has a signature: float32 (b, 28) to (b, 10)."""

EXAMPLE = "example.npz"
"""File with the inputs of a model's example."""

OPERATIONS = "operations-"
"""Prefix of the names of files for a target without XLA."""


def write_call_facts(
    folder: Path, inputs: Sequence[str], outputs: Sequence[str], calls: int, tolerance: float
) -> None:
    """Writes what a consumer has to know of a model to compare its calls, as model.json."""
    facts = {
        "inputs": list(inputs),
        "outputs": list(outputs),
        "calls": calls,
        "tolerance": tolerance,
    }
    (folder / "model.json").write_text(json.dumps(facts))


def write_arrays(path: Path, groups: Mapping[str, Sequence[Array]]) -> None:
    """Writes lists of arrays as an npz file, also of dtypes that numpy does not know."""
    entries = {}
    for group, arrays in groups.items():
        for i, array in enumerate(arrays):
            known = array.dtype.isbuiltin == 1
            stored = array if known else array.view(f"u{array.dtype.itemsize}")
            entries[f"{group}.{i}.{array.dtype.name}"] = stored
    np.savez(path, **entries)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, list[Array]]:
    """Reads what `write_arrays` wrote; empty lists are left out."""
    groups: dict[str, list[Array]] = {}
    with np.load(path) as entries:
        for key in entries.files:
            group, _, dtype = key.split(".")
            groups.setdefault(group, []).append(entries[key].view(_dtype(dtype)))
    return groups


def _dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class Outcome:
    """Result of one program.

    Attributes:
      failures: one line each; none if all is well.
      errors: the largest one, relative to the largest number, by what was compared.
      measures: "bytes" of the model, and "ms" of a call if times are measured, by what was run.
    """

    program: str
    failures: tuple[str, ...] = ()
    seconds: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        state = "FAILED" if self.failures else "ok"
        lines = [f"{state:<7}{self.seconds:6.1f} s  {self.program}", *self.failures]
        return "\n        ".join(lines)


class Report:
    """A file of JSON lines, from which a process that died can be continued."""

    def __init__(self, path: Path) -> None:
        """Opens the report; what already exists stays."""
        self.path = path

    def head(self, versions: Mapping[str, str]) -> None:
        """Writes who makes this report."""
        self._add({"versions": dict(versions)})

    def start(self, program: str) -> None:
        """Writes that a program is begun, so that a crash has a name."""
        self._add({"started": program})

    def finish(self, outcome: Outcome) -> None:
        """Writes how a program came out."""
        self._add(asdict(outcome))

    def versions(self) -> dict[str, str]:
        """Returns what `head` wrote last."""
        heads = [line["versions"] for line in self._lines() if "versions" in line]
        return dict(heads[-1]) if heads else {}

    def outcomes(self) -> dict[str, Outcome]:
        """Returns the programs that have ended, by their names."""
        lines = [line for line in self._lines() if "program" in line]
        return {o["program"]: Outcome(**{**o, "failures": tuple(o["failures"])}) for o in lines}

    def unfinished(self) -> str | None:
        """Returns the program that was begun and has not ended."""
        done = self.outcomes()
        started = [line["started"] for line in self._lines() if "started" in line]
        return next((name for name in started if name not in done), None)

    def _add(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def write_reference(path: Path, reference: Reference) -> None:
    """Writes a call and JAX's answers as two files."""
    groups = ("inputs", "results", "cotangents", "gradients")
    write_arrays(path.with_suffix(".npz"), {g: getattr(reference, g) for g in groups})
    indices = {"sources": reference.sources, "targets": reference.targets}
    path.with_suffix(".json").write_text(json.dumps(indices))


def read_reference(path: Path) -> Reference:
    """Reads what `write_reference` wrote."""
    arrays = read_arrays(path.with_suffix(".npz"))
    indices = json.loads(path.with_suffix(".json").read_text())
    return Reference(
        inputs=tuple(arrays.get("inputs", ())),
        results=tuple(arrays.get("results", ())),
        cotangents=tuple(arrays.get("cotangents", ())),
        gradients=tuple(arrays.get("gradients", ())),
        sources=tuple(indices["sources"]),
        targets=tuple(indices["targets"]),
    )
