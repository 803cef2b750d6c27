"""Runs the C++ program that replays a model's warm-up file and answers a trace of requests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.consumers.environments import process_environment


@dataclass(frozen=True)
class Run:
    """One call.

    Attributes:
      name: the signature's for a request of the warm-up, else the size.
      seconds: how long it took.
      compilations: XLA's in the process, up to its end.
    """

    name: str
    seconds: float
    compilations: int


@dataclass(frozen=True)
class Replay:
    """Calls that a process made.

    Attributes:
      warm_up: the requests of the model's file.
      requests: those of the trace.
      answers: to the trace, one after another, flat.
    """

    warm_up: tuple[Run, ...]
    requests: tuple[Run, ...]
    answers: np.ndarray[Any, np.dtype[np.float32]]

    def compilations(self) -> tuple[int, int]:
        """During the warm-up, and during the trace."""
        first = self.warm_up[-1].compilations if self.warm_up else 0
        return first, self.requests[-1].compilations - first


def replay(
    program: Path,
    model: Path,
    sizes: Sequence[int],
    answers: Path,
    environment: Mapping[str, str] | None = None,
) -> Replay:
    """Runs it in a process of its own.

    Args:
      program: replay.cc, compiled.
      model: a SavedModel with one float input and output.
      sizes: of the requests.
      answers: a file for them.
      environment: variables beside the caller's.

    Raises:
      RuntimeError: it failed; with what it said.
    """
    done = subprocess.run(
        [str(program), str(model), str(answers), *map(str, sizes)],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment({"TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})}),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    runs: dict[str, list[Run]] = {"warm-up": [], "request": []}
    for line in done.stdout.splitlines():
        kind, name, microseconds, compilations = line.split()
        runs[kind].append(Run(name, float(microseconds) * 1e-6, int(compilations)))
    return Replay(tuple(runs["warm-up"]), tuple(runs["request"]), np.fromfile(answers, np.float32))


def numbers(request: int, size: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Computes what the program feeds to the request of that number."""
    i, j = np.arange(size)[:, None], np.arange(width)[None, :]
    values = ((31 * i + 17 * j + 7 * request) % 101) / 50.5 - 1
    return np.asarray(values, np.float32)
