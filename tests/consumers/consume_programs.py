"""Consuming side: runs what the exporting side wrote, where JAX is not installed.

    python -m tests.consumers.consume_programs EXPORTED REPORT [PROGRAM ...]

checks the SavedModel and the portable function of each program, values and first gradients, at
every shape.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tests.consumers.comparison import differences
from tests.consumers.exchange import OPERATIONS, Report, read_reference
from tests.consumers.one_by_one import one_by_one
from tests.consumers.own_operations import foreign_operations, switch_off_xla
from tests.plugins.blocked_imports import forbid_jax
from tests.program_cases.answers import (
    FlatFunction,
    Reference,
    differentiate,
    results_and_gradients,
)

Load = Callable[[Path], FlatFunction]


def _check(name: str, folder: Path) -> list[str]:
    facts = json.loads((folder / "program.json").read_text())
    calls = [read_reference(folder / f"call-{i}") for i in range(facts["calls"])]
    release = ".".join(tf.__version__.split(".")[:2])
    check = _differences if release in facts["releases"] else _is_refused
    every = calls
    if release not in facts["gradient_releases"]:
        calls = [replace(call, gradients=()) for call in calls]
    failures = []
    kinds = (
        ("model", _load_model, check, calls),
        ("record.pickle", _load_function, check, calls),
        (f"{OPERATIONS}model", _load_model, _operations_differ, every),
        (f"{OPERATIONS}record.pickle", _load_function, _operations_differ, every),
    )
    for kind, load, how, asked in kinds:
        try:
            found = list(how(load, folder / kind, asked, facts))
        except Exception as e:
            found = [f"{type(e).__name__}: {str(e)[:1500]}"]
        failures += [f"{kind}: {problem}" for problem in found]
    return failures


def _load_model(path: Path) -> FlatFunction:
    loaded: FlatFunction = tf.saved_model.load(str(path)).f
    return loaded


def _load_function(path: Path) -> FlatFunction:
    from jax2tf_bridge import to_tf

    portable = pickle.loads(path.read_bytes())
    call = to_tf(portable)

    def flat(*tensors: tf.Tensor) -> Sequence[Any]:
        args, kwargs = portable.in_tree.unflatten(iter(tensors))
        leaves: list[Any] = portable.out_tree.flatten(call(*args, **kwargs))
        return leaves

    return flat


def _is_refused(
    load: Load, path: Path, calls: Sequence[Reference], facts: dict[str, Any]
) -> Iterator[str]:
    """Checks that our part refuses, with a reason, what this TensorFlow cannot run."""
    from jax2tf_bridge.errors import ModuleError

    del facts
    try:
        load(path)(*(tf.constant(i) for i in calls[0].inputs))
    except ModuleError as e:
        if "needs StableHLO" not in str(e):
            yield f"it is refused without the reason: {e}"
    except tf.errors.OpError as e:
        if load is _load_function:
            yield f"TensorFlow refuses it before the bridge does: {e}"
    else:
        yield "it gave an answer, though the portable function says that this release cannot run it"


def _operations_differ(
    load: Load, path: Path, calls: Sequence[Reference], facts: dict[str, Any]
) -> Iterator[str]:
    """Does as `_differences`, and checks that no operation is XLA's: every release has them."""
    function = load(path)
    traced = tf.function(function, autograph=False).get_concrete_function(
        *(tf.TensorSpec(i.shape, i.dtype) for i in calls[0].inputs)
    )
    if found := foreign_operations(traced.graph):
        yield f"its graph has {', '.join(found)}"
    yield from _differences(
        lambda _: function, path, calls, {**facts, "jit_compile": False, "own": True}
    )


def _differences(
    load: Load, path: Path, calls: Sequence[Reference], facts: dict[str, Any]
) -> Iterator[str]:
    function = load(path)
    modes: dict[str, FlatFunction] = {"": function}
    if facts["jit_compile"]:
        modes["jit_compile=True, "] = tf.function(function, jit_compile=True, autograph=False)
    for mode, run in modes.items():
        # With jit_compile the function's operation is the one of the model, which has every call.
        asked = calls[:1] if mode and load is _load_function else calls
        for i, expected in enumerate(asked):
            where = f"{mode}call {i}, "
            own = facts.get("own", False)
            results, gradients = results_and_gradients(run, expected.inputs, expected, own=own)
            tolerance = facts["tolerance"]
            yield from differences(where + "result", results, expected.results, tolerance)
            yield from differences(where + "gradient", gradients, expected.gradients, tolerance)
    first = calls[0]
    if not facts["differentiable"] and _has_float32(first):
        yield from _gradient_is_refused(function, first)


def _has_float32(call: Reference) -> bool:
    """TensorFlow itself never differentiates 8-bit floats and integers."""
    sources = [call.inputs[i] for i in call.sources]
    targets = [call.results[i] for i in call.targets]
    return all(any(a.dtype == np.float32 for a in arrays) for arrays in (sources, targets))


def _gradient_is_refused(function: FlatFunction, expected: Reference) -> Iterator[str]:
    try:
        _, gradients = differentiate(function, expected.inputs, expected)
    except LookupError as e:
        if "gradient" not in str(e):
            yield f"asked for a gradient that it lacks, it says only: {e}"
    else:
        # TensorFlow does not come as far as the refusal where a dtype has no gradient.
        if any(gradient is not None for gradient in gradients):
            yield "it gave a gradient, though it was stored without one"


def main(exported: Path, report_path: Path, *names: str) -> NoReturn:
    """Checks the programs named, or all that were exported; exits with 0 when it came through."""
    forbid_jax()
    switch_off_xla()
    report = Report(report_path)
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"tensorflow": tf.__version__, "numpy": np.__version__, "python": python})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/program.json"))
    one_by_one(report, wanted, lambda name: _check(name, exported / name))
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
