"""Injects faults into SavedModels and LiteRT models, and counts the lines that verify names.

python -m tests.verifying.inject_faults --faults 50 --report faults.md [FUNCTION ...]
python -m tests.verifying.inject_faults --runtime litert --faults 50 --of-a-function 12
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge import Signature, Target, save, save_litert, verify
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.verifying import Location
from tests.programs import PROGRAMS, Program
from tests.verifying import litert_faults
from tests.verifying.faults import Fault, inject, list_faults
from tests.verifying.functions import CASES, Case

TARGET = replace(Target.widest(xla=False), names_lines=True)
"""Target whose graphs name the line of each operation, for the expected answer."""


@dataclass(frozen=True)
class Outcome:
    """A fault, and what verify said.

    Attributes:
      program: the program with the fault.
      fault: the fault.
      location: the line that verify names; None if it names none.
    """

    program: str
    fault: Fault
    location: Location | None

    @property
    def is_named(self) -> bool:
        """Returns whether verify names the line of the fault."""
        if self.location is None or self.location.line is None:
            return False
        # A runtime merges operations of several lines.
        return shorten(self.location.line) in self.fault.line.split()

    @property
    def is_loop_named(self) -> bool:
        """Returns whether the fault is in a loop or a branch, and verify names its line."""
        loops = ("scan", "while", "cond")
        return (
            self.fault.in_loop and self.location is not None and (self.location.operation in loops)
        )


def shorten(line: str) -> str:
    """Shortens "/models/net.py:12 (predict)" to "net.py:12"."""
    return line.rpartition(" (")[0].rpartition("/")[2]


def try_faults(
    name: str,
    saved_model: Path,
    function: Callable[..., Any],
    faults: Sequence[Fault],
    count: int,
) -> Iterator[Outcome]:
    """Injects faults one by one until `count` of them change an output."""
    for fault in faults:
        if count == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            faulty = Path(folder) / "model"
            shutil.copytree(saved_model, faulty)
            inject(faulty, fault)
            try:
                report = verify(faulty, function, samples=1, gradients=0, locate=True)
            except (BridgeError, ValueError, tf.errors.OpError):
                continue  # the changed graph does not load or run
        if not report.ok:
            count -= 1
            yield Outcome(name, fault, report.location)


def try_case(case: Case, seed: int, count: int) -> Iterator[Outcome]:
    """Saves a function, and injects faults."""
    signature = Signature(
        case.function, args=[case.example], polymorphic_shapes=case.polymorphic_shapes
    )
    with tempfile.TemporaryDirectory() as folder:
        saved_model = Path(folder) / "model"
        save(saved_model, signature, params=case.params, target=TARGET, vjp_order=0)
        faults = list_faults(saved_model, seed)
        yield from try_faults(case.name, saved_model, case.function, faults, count)


def try_litert(case: Case, seed: int, count: int) -> Iterator[Outcome]:
    """Converts a function to LiteRT, and injects faults into the model."""
    signature = Signature(
        case.function, args=[case.example], polymorphic_shapes=case.polymorphic_shapes
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder / "model", signature, params=case.params, vjp_order=0)
        save_litert(folder / "model.tflite", signature, params=case.params)
        for fault in litert_faults.list_faults(folder / "model.tflite", seed):
            if count == 0:
                return
            faulty = folder / "faulty.tflite"
            shutil.copy(folder / "model.tflite", faulty)
            litert_faults.inject(faulty, fault)
            try:
                report = verify(
                    folder / "model",
                    case.function,
                    samples=2,
                    locate=True,
                    runtime="litert",
                    model=faulty,
                )
            except (BridgeError, ValueError, RuntimeError):
                continue  # the changed model does not load or run
            if not report.ok:
                count -= 1
                yield Outcome(case.name, fault, report.location)


def try_program(program: Program, seed: int, count: int) -> Iterator[Outcome]:
    """Saves a program of the table, and injects faults."""
    example = program.build()
    call = example.calls[-1]
    signature = Signature(
        example.function,
        args=call.args,
        kwargs=call.kwargs,
        polymorphic_shapes=program.polymorphic_shapes,
        polymorphic_constraints=program.constraints,
    )
    with tempfile.TemporaryDirectory() as folder:
        saved_model = Path(folder) / "model"
        try:
            save(saved_model, signature, target=TARGET, vjp_order=0)
        except BridgeError:
            return  # a signature cannot have its inputs or outputs
        faults = list_faults(saved_model, seed)
        yield from try_faults(program.name, saved_model, example.function, faults, count)


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="functions and programs; by default all")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--of-a-function", type=int, default=5)
    parser.add_argument("--of-a-program", type=int, default=1)
    parser.add_argument("--runtime", choices=("tensorflow", "litert"), default="tensorflow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    programs = [p for p in PROGRAMS if not p.x64 and not p.key_arguments and not p.needs_linalg]
    random.Random(options.seed).shuffle(programs)
    outcomes: list[Outcome] = []
    cases: list[Case | Program] = [*CASES, *programs]
    for case in cases:
        remaining = options.faults - len(outcomes)
        if remaining == 0 or (options.names and case.name not in options.names):
            continue
        if options.runtime == "litert":
            if not isinstance(case, Case):
                continue
            tried = try_litert(case, options.seed, min(options.of_a_function, remaining))
        elif isinstance(case, Case):
            tried = try_case(case, options.seed, min(options.of_a_function, remaining))
        else:
            tried = try_program(case, options.seed, min(options.of_a_program, remaining))
        for outcome in tried:
            print(format_outcome(outcome), flush=True)
            outcomes.append(outcome)
    named = sum(outcome.is_named for outcome in outcomes)
    loops = sum(outcome.is_loop_named and not outcome.is_named for outcome in outcomes)
    summary = (
        f"{named} of {len(outcomes)} lines are named; of {loops} more, inside loops, the line of "
        "the loop."
    )
    print(summary)
    if options.report is not None:
        rows = [
            "| | function | fault | its line | line that verify names |",
            "|---|---|---|---|---|",
            *map(format_outcome, outcomes),
        ]
        options.report.write_text("\n".join([summary, "", *rows, ""]))


def format_outcome(outcome: Outcome) -> str:
    """Formats an outcome as a row."""
    location, fault = outcome.location, outcome.fault
    line = location.line and shorten(location.line) if location else None
    said = f"{line}, {location.operation}" if location else "nothing"
    verdict = "named" if outcome.is_named else "loop" if outcome.is_loop_named else "MISSED"
    place = " (in a loop)" if fault.in_loop else ""
    return f"| {verdict} | {outcome.program} | {fault.kind}{place} | {fault.line} | {said} |"


if __name__ == "__main__":
    main()
