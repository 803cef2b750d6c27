"""Calls that `serve-check` makes: chooses them, makes them in an environment, compares results."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.comparing import measure_distance, tolerance_of
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import (
    EntryPoint,
    GradientOrders,
    Request,
    SavedModelContents,
    Sidecar,
    TensorSpec,
    find_input_shapes,
    iterate_input_sizes,
    read_requests,
    read_sidecar,
    read_tensor_spec,
)
from jax2tf_bridge.serve_checking import _script
from jax2tf_bridge.serve_checking._tensorflow_environments import get_environment_variables
from jax2tf_bridge.storage import as_path
from shape_poly import Dim

_SAMPLES = 3
"""Number of sizes at which a signature is called."""
_MAX_WARM_UPS = 20
"""Maximum number of warm-up requests per signature; a thousand would take too long."""


@dataclass(frozen=True)
class SignatureCall:
    """One call of a signature.

    Attributes:
      signature: the name of the signature.
      inputs: by name, the description from which the script makes the input.
      text: the names and types of the inputs, as text.
      kind: "sizes" for sizes that the signature allows, "guess" for those that it may refuse,
        "warm-up" for a request in the file.
      gradients: whether gradients are taken.
    """

    signature: str
    inputs: Mapping[str, Mapping[str, Any]]
    text: str
    kind: str
    gradients: bool


def list_calls(contents: SavedModelContents) -> list[SignatureCall]:
    """Lists the calls of all signatures, grouped by signature.

    Raises:
      BridgeError: there are no signatures, no sizes satisfy the constraints, or a file is damaged.
    """
    entries = [entry for entry in contents.entries if entry.is_signature]
    if not entries:
        raise BridgeError(f"{contents.path} has no signatures, so there is nothing to serve.")
    folder = as_path(contents.path)
    sidecar: Sidecar | None = None
    portables: Mapping[str, PortableFunction] = {}
    known = read_sidecar(folder)
    if known is not None:
        sidecar, portables = known
        entries = [_add_own_gradient(entry, sidecar, portables) for entry in entries]
    has_gradient = {entry.name: _has_gradient(entry) for entry in entries}
    requests = [_make_warm_up_call(request, has_gradient) for request in read_requests(folder)]
    calls: list[SignatureCall] = []
    for entry in entries:
        portable, shapes = portables.get(entry.name), None
        if sidecar is not None and portable is not None:
            shapes = find_input_shapes(entry.inputs, sidecar.signatures[entry.name], portable)
        if portable is None or shapes is None:
            calls += _iterate_guesses(entry)
        else:
            calls += _iterate_samples(entry, portable, shapes)
        calls += [call for call in requests if call.signature == entry.name][:_MAX_WARM_UPS]
    # TensorFlow Serving does not load a model with requests for missing signatures.
    names = {entry.name for entry in entries}
    return calls + [call for call in requests if call.signature not in names]


def _add_own_gradient(
    entry: EntryPoint, sidecar: Sidecar, portables: Mapping[str, PortableFunction]
) -> EntryPoint:
    """Adds the gradients of TensorFlow's own operations, which the graph's modules lack."""
    portable = portables.get(entry.name)
    has_gradient = entry.gradient is not None
    if has_gradient or portable is None or portable.target.xla or entry.joins_requests:
        return entry
    orders = sidecar.signatures[entry.name].vjp_order
    return replace(
        entry, gradient=GradientOrders(max(orders, portable.tensorflow_differentiates), "")
    )


def _has_gradient(entry: EntryPoint) -> bool:
    return entry.gradient is not None and entry.gradient.orders > 0


def _iterate_samples(
    entry: EntryPoint, portable: PortableFunction, shapes: Mapping[str, Sequence[Dim]]
) -> Iterator[SignatureCall]:
    """Yields calls at a few sizes that the function allows, the smallest first."""
    all_sizes = iterate_input_sizes(entry.name, portable, shapes, seed=0)
    for sizes in itertools.islice(all_sizes, _SAMPLES):
        yield _make_call(entry, {name: [*shape] for name, shape in sizes.items()}, "sizes")


def _iterate_guesses(entry: EntryPoint) -> Iterator[SignatureCall]:
    """Yields calls at guessed sizes, for signatures whose allowed sizes are unknown."""
    types = {port.name: port.type for port in entry.inputs}
    is_open = any(t.shape is None or None in t.shape for t in types.values())
    for size in range(1, _SAMPLES + 1 if is_open else 2):
        concrete = {
            name: [size] if t.shape is None else [size if d is None else d for d in t.shape]
            for name, t in types.items()
        }
        yield _make_call(entry, concrete, "guess" if is_open else "sizes")


def _make_call(entry: EntryPoint, shapes: Mapping[str, list[int]], kind: str) -> SignatureCall:
    dtypes = {port.name: port.type.dtype for port in entry.inputs}
    return SignatureCall(
        entry.name,
        {name: {"dtype": dtypes[name], "shape": shape} for name, shape in shapes.items()},
        _format_inputs((name, TensorSpec(dtypes[name], tuple(s))) for name, s in shapes.items()),
        kind,
        _has_gradient(entry),
    )


def _format_inputs(inputs: Iterable[tuple[str, TensorSpec]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in inputs) or "no inputs"


def _make_warm_up_call(request: Request, has_gradient: Mapping[str, bool]) -> SignatureCall:
    inputs, types = {}, []
    for key, value in request.inputs.items():
        kind, content = read_tensor_spec(value), value.data[value.start : value.end]
        inputs[key] = {"dtype": kind.dtype, "proto": base64.b64encode(content).decode()}
        types.append((key, kind))
    name = request.signature
    return SignatureCall(
        name, inputs, _format_inputs(types), "warm-up", has_gradient.get(name, False)
    )


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
      problem: a difference other than of numbers, such as of the shape; "" if there is none.
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
    python: Path, saved_model: Path, calls: Sequence[SignatureCall], *, is_other: bool
) -> EnvironmentRun:
    """Makes the calls in a new process; `is_other` if its interpreter is not the running one."""
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as name:
        folder = Path(name)
        plan = {"saved_model": str(saved_model.absolute()), "calls": [asdict(c) for c in calls]}
        (folder / "plan.json").write_text(json.dumps(plan))
        process = subprocess.run(
            [str(python), str(_script.__file__), str(folder / "plan.json"), str(folder)],
            env={
                **get_environment_variables(is_other=is_other),
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


def compare_results(expected: CallResult, actual: CallResult) -> list[CallDifference]:
    """Compares the arrays of a call that ran in both environments."""
    results = []
    for key in dict.fromkeys([*expected.arrays, *actual.arrays]):
        if key not in actual.arrays or key not in expected.arrays:
            problem = "is missing" if key in expected.arrays else "is not expected"
            results.append(CallDifference(*key, "", None, None, 0.0, False, problem))
            continue
        (dtype, array), (actual_dtype, actual_array) = expected.arrays[key], actual.arrays[key]
        tolerance, problem = tolerance_of(dtype), ""
        absolute: float | None = None
        relative: float | None = None
        if dtype != actual_dtype or array.shape != actual_array.shape:
            problem = (
                f"is {array_type_text(actual_dtype, actual_array.shape)} instead of "
                f"{array_type_text(dtype, array.shape)}"
            )
        elif array.dtype.kind == "S":
            problem = "" if (array == actual_array).all() else "has another text"
        else:
            distance = measure_distance(array, actual_array)
            if np.isfinite(distance.relative()):
                absolute, relative = distance.absolute, distance.relative()
            else:
                problem = "is NaN, infinite, or all zeros in only one of the two"
        within = not problem and (relative is None or relative <= tolerance)
        results.append(CallDifference(*key, dtype, absolute, relative, tolerance, within, problem))
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
