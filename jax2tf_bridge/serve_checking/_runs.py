"""Runs the calls of `serve-check` in an environment, and compares what two environments give."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.portable import tolerance_of
from jax2tf_bridge.serve_checking import _script as _serve_check_script
from jax2tf_bridge.serve_checking._calls import SignatureCall
from jax2tf_bridge.serve_checking._tensorflow_environments import environment_variables


@dataclass(frozen=True)
class CallResult:
    """Outcome of a call.

    Attributes:
      error: the first line of why it failed, or None.
      arrays: dtype and values by ("output" or "gradient", name).
    """

    error: str | None
    arrays: Mapping[tuple[str, str], tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentRun:
    """Outcome of all calls in an environment.

    Attributes:
      tensorflow: its release, "" if it was not even imported.
      error: why the model could not be loaded, or None.
      results: of each call; empty if it could not be loaded.
    """

    tensorflow: str
    error: str | None
    results: tuple[CallResult, ...] = ()


@dataclass(frozen=True)
class CallDifference:
    """Difference of an output or a gradient of a call.

    Attributes:
      what: "output" or "gradient".
      name: of the output or input.
      dtype: its dtype.
      absolute: the largest difference of two numbers; None where there is none to say.
      relative: that to the largest number in the array; None likewise.
      tolerance: what is allowed of `relative`.
      within: whether it is.
      problem: how the two differ where numbers cannot say it, or "".
    """

    what: str
    name: str
    dtype: str
    absolute: float | None
    relative: float | None
    tolerance: float
    within: bool
    problem: str = ""


def run_calls(
    python: Path, saved_model: Path, calls: Sequence[SignatureCall], *, other: bool
) -> EnvironmentRun:
    """Makes the calls in a process of an interpreter; `other` if it is not the running one's."""
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as name:
        folder = Path(name)
        plan = {"saved_model": str(saved_model.absolute()), "calls": [asdict(c) for c in calls]}
        (folder / "plan.json").write_text(json.dumps(plan))
        script = str(_serve_check_script.__file__)
        ended = subprocess.run(
            [str(python), script, str(folder / "plan.json"), str(folder)],
            env={
                **environment_variables(other=other),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": "0",
                "CUDA_VISIBLE_DEVICES": "-1",  # both on the CPU, whose numbers can be compared
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        index = folder / "index.jsonl"
        lines = index.read_text().splitlines() if index.exists() else []
        if not lines:
            return EnvironmentRun("", f"TensorFlow does not start: {_end(ended)}")
        first, *rest = map(json.loads, lines)
        if first["error"] is not None:
            return EnvironmentRun(first["tensorflow"], first["error"])
        results = [_result(folder / f"call-{n}.npz", facts) for n, facts in enumerate(rest)]
    if len(results) < len(calls):
        results.append(CallResult(f"the process ended: {_end(ended)}"))
    unreached = CallResult("not run, since the process had ended before")
    return EnvironmentRun(
        first["tensorflow"], None, (*results, *[unreached] * (len(calls) - len(results)))
    )


def differences(expected: CallResult, found: CallResult) -> list[CallDifference]:
    """Compares the arrays of a call that ran in both."""
    told = []
    for key in dict.fromkeys([*expected.arrays, *found.arrays]):
        if key not in found.arrays or key not in expected.arrays:
            where = "is missing" if key in expected.arrays else "is there in addition"
            told.append(CallDifference(*key, "", None, None, 0.0, False, where))
            continue
        (dtype, wanted), (other, got) = expected.arrays[key], found.arrays[key]
        tolerance = tolerance_of(dtype)
        if dtype != other or wanted.shape != got.shape:
            text = (
                f"is {array_type_text(other, got.shape)} instead of "
                f"{array_type_text(dtype, wanted.shape)}"
            )
            told.append(CallDifference(*key, dtype, None, None, tolerance, False, text))
        elif wanted.dtype.kind == "S":
            same = bool((wanted == got).all())
            problem = "" if same else "is another text"
            told.append(CallDifference(*key, dtype, None, None, tolerance, same, problem))
        else:
            absolute, relative = _largest(wanted, got)
            if np.isfinite(relative):
                within = relative <= tolerance
                told.append(CallDifference(*key, dtype, absolute, relative, tolerance, within))
            else:
                text = "is NaN, infinite, or 0 everywhere in one of the two alone"
                told.append(CallDifference(*key, dtype, None, None, tolerance, False, text))
    return told


def _largest(expected: Any, found: Any) -> tuple[float, float]:
    """Returns the largest difference, and its ratio to the largest finite number."""
    if expected.size == 0:
        return 0.0, 0.0
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    same = (expected == found) | ((expected != expected) & (found != found))  # or both NaN
    expected, found = expected.astype(wide), found.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(same, 0, np.abs(expected - found))
    largest = float(np.where(np.isnan(distance), np.inf, distance).max())
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 0.0
    return largest, 0.0 if largest == 0 else largest / scale if scale else float("inf")


def _result(file: Path, facts: Mapping[str, Any]) -> CallResult:
    arrays = {}
    with np.load(file, allow_pickle=False) as held:
        for number, (what, name, dtype) in enumerate(facts["arrays"]):
            arrays[what, name] = dtype, held[f"a{number}"]
    return CallResult(facts["error"], arrays)


def _end(ended: subprocess.CompletedProcess[str]) -> str:
    """Describes how a failed process ended, with its last line."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    how = f"exit code {ended.returncode}"
    if ended.returncode < 0 and os.name == "posix":
        how = f"signal {-ended.returncode}"
    return f"{how}{f', {lines[-1][:300]}' if lines else ''}"
