"""The command line: runs programs as long as one wants, and groups what it finds."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tests.random_programs.judging import Fault, Verdict, judge_all
from tests.random_programs.program import Program
from tests.random_programs.strategy import random_program
from tests.random_programs.ways import WAYS

BATCH = 25
"""Number of programs between two times that caches are dropped and the table is written."""

PER_PROCESS = 500
"""Number of programs after which a new process goes on, as XLA keeps some memory of each."""

MAX_SECONDS = 300
"""Time in seconds after which a program counts as one that does not end."""

SMALL = frozenset({"litert", "tfjs"})
"""Ways whose programs are small, of few dtypes."""

LITERT_DTYPES = ("bool", "int32", "float32", "int8", "float16", "uint8", "int16", "bfloat16")


class Report:
    """Results of the runs of one way so far."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.programs = self.compared = 0
        self.faults: dict[str, list[tuple[int, Fault]]] = {}
        self.refusals: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()

    def add(self, number: int, verdict: Verdict) -> None:
        """Adds the outcome of a program."""
        self.programs += 1
        self.compared += verdict.compared
        self.refusals += verdict.refusals
        self.explained += verdict.explained
        for fault in verdict.faults:
            self.faults.setdefault(fault.signature, []).append((number, fault))

    def line(self) -> str:
        """Writes the counts."""
        differing = sum(map(len, self.faults.values()))
        return (
            f"{self.way}: {self.programs} programs, {self.compared} compared, "
            f"{differing} with faults of {len(self.faults)} kinds"
        )

    def text(self) -> str:
        """Writes the table."""
        lines = [f"# {self.line()}"]
        for signature, group in sorted(self.faults.items(), key=lambda f: -len(f[1])):
            _, fault = group[0]
            numbers = ", ".join(str(number) for number, _ in group[:10])
            lines.append(f"\n## {len(group)} x {signature}   (programs {numbers})")
            lines += [fault.detail, "```python", fault.program.script(), "```"]
        for title, counter in (("explained", self.explained), ("refused", self.refusals)):
            lines.append(f"\n## {title}")
            lines += [f"{count:6} {text}" for text, count in counter.most_common()]
        return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser("python -m tests.random_programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append", help="several times; default: all")
    parser.add_argument(
        "--report", type=Path, help="a file for the table; by default it is printed"
    )
    options = parser.parse_args()
    ways = options.way or list(WAYS)
    reports = run(
        options.seed,
        range(options.first, options.first + options.programs),
        ways,
        file=options.report,
    )
    if not options.report:
        print(*(report.text() for report in reports), sep="\n")


def run(
    seed: int, numbers: range, ways: Sequence[str], *, file: Path | None = None
) -> list[Report]:
    """Runs the programs of some numbers, in a process that is started anew when it dies.

    Args:
      seed: of all programs.
      numbers: of the programs.
      ways: of `WAYS`.
      file: gets the table from time to time, while the counts are printed.
    """
    reports = [Report(way) for way in ways]
    start, rest = time.monotonic(), list(numbers)
    context = multiprocessing.get_context("spawn")
    while rest:
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(
            target=_work, args=(sender, seed, rest[:PER_PROCESS], ways), daemon=True
        )
        worker.start()
        sender.close()
        started: _Started | None = None
        try:
            while True:
                if not receiver.poll(MAX_SECONDS):
                    worker.kill()  # the loop then ends as if the process had died
                message = receiver.recv()
                if isinstance(message, _Started):
                    started = message
                    continue
                assert started is not None
                for report in reports:
                    if report.way in message:
                        report.add(started.number, message[report.way])
                if started.is_last_of_number:
                    rest.remove(started.number)
                    if (len(numbers) - len(rest)) % BATCH == 0 or not rest:
                        _show(reports, time.monotonic() - start, file)
                started = None
        except EOFError:
            worker.join()
        if started is None and worker.exitcode:
            raise RuntimeError(f"making a program of {rest[:PER_PROCESS]} failed")
        if started is not None:
            death = Fault(
                "the process dies or does not end", f"exit code {worker.exitcode}", started.program
            )
            for report in reports:
                if report.way in started.ways:
                    report.add(started.number, Verdict(faults=[death]))
            rest.remove(started.number)
    return reports


def _show(reports: Sequence[Report], seconds: float, file: Path | None) -> None:
    if file:
        print(f"{seconds:.0f} s", *(report.line() for report in reports), sep="; ", flush=True)
        file.write_text("\n".join(report.text() for report in reports))


@dataclass(frozen=True)
class _Started:
    """Says which program a worker tries now."""

    number: int
    ways: Sequence[str]
    program: Program
    is_last_of_number: bool


def _work(sender: Any, seed: int, numbers: Sequence[int], ways: Sequence[str]) -> None:
    for count, number in enumerate(numbers, 1):
        for group in groups(ways):
            program = make(seed, number, group)
            sender.send(_Started(number, group, program, group == groups(ways)[-1]))
            sender.send(judge_all(program, group))
        if count % BATCH == 0:
            jax.clear_caches()
            gc.collect()


def groups(ways: Sequence[str]) -> list[list[str]]:
    """Groups the ways that take the same programs."""
    large = [way for way in ways if way not in SMALL]
    return [group for group in (large, [way for way in ways if way in SMALL]) if group]


def make(seed: int, number: int, ways: Sequence[str]) -> Program:
    """Makes a program for some ways: converters get smaller ones, of dtypes that they have."""
    if not SMALL.isdisjoint(ways):
        return random_program(seed, number, steps=(3, 8), dtypes=LITERT_DTYPES, x64=False)
    return random_program(seed, number, steps=(6, 16))
