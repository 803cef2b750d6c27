"""Runs the calls of `serve-check` in an environment, and compares results of environments."""

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
from jax2tf_bridge.comparing import measure_distance, tolerance_of
from jax2tf_bridge.serve_checking import _script as _serve_check_script
from jax2tf_bridge.serve_checking._calls import SignatureCall
from jax2tf_bridge.serve_checking._tensorflow_environments import get_environment_variables


@dataclass(frozen=True)
class CallResult:
    """Outcome of a call.

    Attributes:
      error: the first line of its error; None if it succeeded.
      arrays: dtype and values by ("output" or "gradient", name).
    """

    error: str | None
    arrays: Mapping[tuple[str, str], tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentRun:
    """Outcome of all calls in an environment.

    Attributes:
      tensorflow: the TensorFlow release; "" if TensorFlow could not be imported.
      error: the reason why the model could not be loaded; None if it was.
      results: the result of each call; empty if the model could not be loaded.
    """

    tensorflow: str
    error: str | None
    results: tuple[CallResult, ...] = ()


@dataclass(frozen=True)
class CallDifference:
    """Difference of an output or a gradient of a call.

    Attributes:
      what: "output" or "gradient".
      name: the name of the output or input.
      dtype: its dtype.
      absolute: the largest difference of two numbers; None if it is not defined.
      relative: `absolute` divided by the largest number in the array; None likewise.
      tolerance: the maximum of `relative` that is allowed.
      within: whether the difference is within the tolerance.
      problem: a difference that is not one of numbers; "" if there is none.
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
    """Makes the calls in a new process; `other` if its interpreter is not the running one."""
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as name:
        folder = Path(name)
        plan = {"saved_model": str(saved_model.absolute()), "calls": [asdict(c) for c in calls]}
        (folder / "plan.json").write_text(json.dumps(plan))
        script = str(_serve_check_script.__file__)
        process = subprocess.run(
            [str(python), script, str(folder / "plan.json"), str(folder)],
            env={
                **get_environment_variables(other=other),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": "0",
                "CUDA_VISIBLE_DEVICES": "-1",  # CPU numbers are comparable
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
            return EnvironmentRun("", f"TensorFlow does not start: {_describe_end(process)}")
        first, *rest = map(json.loads, lines)
        if first["error"] is not None:
            return EnvironmentRun(first["tensorflow"], first["error"])
        results = [_read_result(folder / f"call-{n}.npz", facts) for n, facts in enumerate(rest)]
    if len(results) < len(calls):
        results.append(CallResult(f"the process ended: {_describe_end(process)}"))
    unreached = CallResult("not run, since the process had ended before")
    return EnvironmentRun(
        first["tensorflow"], None, (*results, *[unreached] * (len(calls) - len(results)))
    )


def list_differences(expected: CallResult, found: CallResult) -> list[CallDifference]:
    """Compares the arrays of a call that ran in both environments."""
    results = []
    for key in dict.fromkeys([*expected.arrays, *found.arrays]):
        if key not in found.arrays or key not in expected.arrays:
            where = "is missing" if key in expected.arrays else "is not expected"
            results.append(CallDifference(*key, "", None, None, 0.0, False, where))
            continue
        (dtype, expected_array), (found_dtype, found_array) = (
            expected.arrays[key],
            found.arrays[key],
        )
        tolerance = tolerance_of(dtype)
        if dtype != found_dtype or expected_array.shape != found_array.shape:
            text = (
                f"is {array_type_text(found_dtype, found_array.shape)} instead of "
                f"{array_type_text(dtype, expected_array.shape)}"
            )
            results.append(CallDifference(*key, dtype, None, None, tolerance, False, text))
        elif expected_array.dtype.kind == "S":
            is_equal = bool((expected_array == found_array).all())
            problem = "" if is_equal else "is another text"
            results.append(CallDifference(*key, dtype, None, None, tolerance, is_equal, problem))
        else:
            distance = measure_distance(expected_array, found_array)
            absolute, relative = distance.absolute, distance.relative()
            if np.isfinite(relative):
                within = relative <= tolerance
                results.append(CallDifference(*key, dtype, absolute, relative, tolerance, within))
            else:
                text = "is NaN, infinite, or 0 everywhere in one of the two alone"
                results.append(CallDifference(*key, dtype, None, None, tolerance, False, text))
    return results


def _read_result(file: Path, facts: Mapping[str, Any]) -> CallResult:
    arrays = {}
    with np.load(file, allow_pickle=False) as npz:
        for number, (what, name, dtype) in enumerate(facts["arrays"]):
            arrays[what, name] = dtype, npz[f"a{number}"]
    return CallResult(facts["error"], arrays)


def _describe_end(process: subprocess.CompletedProcess[str]) -> str:
    """Describes how a failed process ended, with its last line."""
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    how = f"exit code {process.returncode}"
    if process.returncode < 0 and os.name == "posix":
        how = f"signal {-process.returncode}"
    return f"{how}{f', {lines[-1][:300]}' if lines else ''}"
