"""Consuming side: runs what the exporting side wrote, where JAX is not installed.

    python -m tests.consumers.consume_programs EXPORTED REPORT [PROGRAM ...]

checks the SavedModel and the portable function of each program, values and first gradients, at
every shape.

    python -m tests.consumers.consume_programs EXPORTED REPORT [PROGRAM ...]

checks the SavedModel and the portable function of each program, values and first gradients, at
every shape.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tests.consumers.comparison import differences
from tests.consumers.exchange import ExpectedCall, Report
from tests.consumers.one_by_one import one_by_one

FlatFunction = Callable[..., Sequence[Any]]
Load = Callable[[Path], FlatFunction]
_JAX = ("jax", "jaxlib", "flax")


class JaxBlocker:
    """A finder that makes every import of JAX an error."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Raises ImportError for JAX; leaves the rest to the other finders."""
        if name.split(".")[0] in _JAX:
            raise ImportError(f"{name} was imported where the model runs without JAX")
        return None


def block_jax() -> None:
    """Makes sure that there is no JAX, and that none can appear.

    Raises:
      RuntimeError: it is installed here, so that nothing would be shown by this run.
    """
    for name in _JAX:
        if importlib.util.find_spec(name) is not None:
            raise RuntimeError(f"{name} is installed in this environment: {sys.prefix}")
    sys.meta_path.insert(0, JaxBlocker())


def _check(name: str, folder: Path) -> list[str]:
    facts = json.loads((folder / "program.json").read_text())
    calls = [ExpectedCall.read(folder / f"call-{i}") for i in range(facts["calls"])]
    release = ".".join(tf.__version__.split(".")[:2])
    check = _differences if release in facts["releases"] else _is_refused
    if release not in facts["gradient_releases"]:
        calls = [replace(call, gradients=[]) for call in calls]
    failures = []
    for kind, load in (("SavedModel", _load_model), ("record", _load_function)):
        try:
            found = list(check(load, folder, calls, facts))
        except Exception as e:
            found = [f"{type(e).__name__}: {str(e)[:1500]}"]
        failures += [f"{kind}: {problem}" for problem in found]
    return failures


def _load_model(folder: Path) -> FlatFunction:
    loaded: FlatFunction = tf.saved_model.load(str(folder / "model")).f
    return loaded


def _load_function(folder: Path) -> FlatFunction:
    from jax2tf_bridge import to_tf

    portable = pickle.loads((folder / "record.pickle").read_bytes())
    call = to_tf(portable)

    def flat(*tensors: tf.Tensor) -> Sequence[Any]:
        args, kwargs = portable.in_tree.unflatten(iter(tensors))
        leaves: list[Any] = portable.out_tree.flatten(call(*args, **kwargs))
        return leaves

    return flat


def _is_refused(
    load: Load, folder: Path, calls: Sequence[ExpectedCall], facts: dict[str, Any]
) -> Iterator[str]:
    """Checks that our part refuses, with a reason, what this TensorFlow cannot run."""
    from jax2tf_bridge.errors import ModuleError

    del facts
    try:
        load(folder)(*(tf.constant(i) for i in calls[0].inputs))
    except ModuleError as e:
        if "needs StableHLO" not in str(e):
            yield f"it is refused without the reason: {e}"
    except tf.errors.OpError as e:
        if load is _load_function:
            yield f"TensorFlow refuses it before the bridge does: {e}"
    else:
        yield "it gave an answer, though the portable function says that this release cannot run it"


def _differences(
    load: Load, folder: Path, calls: Sequence[ExpectedCall], facts: dict[str, Any]
) -> Iterator[str]:
    function = load(folder)
    modes: dict[str, FlatFunction] = {"": function}
    if facts["jit_compile"]:
        modes["jit_compile=True, "] = tf.function(function, jit_compile=True, autograph=False)
    for mode, run in modes.items():
        for i, expected in enumerate(calls):
            where = f"{mode}call {i}, "
            results, gradients = _run(run, expected)
            tolerance = facts["tolerance"]
            yield from differences(where + "result", _numpy(results), expected.results, tolerance)
            got = _numpy(gradients)
            yield from differences(where + "gradient", got, expected.gradients, tolerance)
    first = calls[0]
    if not facts["differentiable"] and _has_float32(first):
        yield from _gradient_is_refused(function, first)


def _run(function: FlatFunction, expected: ExpectedCall) -> tuple[Sequence[Any], Sequence[Any]]:
    tensors = [tf.constant(i) for i in expected.inputs]
    if not expected.gradients:
        return function(*tensors), []
    return _differentiated(function, tensors, expected)


def _differentiated(
    function: FlatFunction, tensors: Sequence[tf.Tensor], expected: ExpectedCall
) -> tuple[Sequence[Any], Sequence[Any]]:
    sources = [tensors[i] for i in expected.sources]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        results = function(*tensors)
    targets = [results[i] for i in expected.targets]
    cotangents = [tf.constant(c) for c in expected.cotangents]
    return results, tape.gradient(targets, sources, output_gradients=cotangents)


def _numpy(tensors: Sequence[Any]) -> list[Any]:
    return [np.asarray(None) if t is None else t.numpy() for t in tensors]


def _has_float32(call: ExpectedCall) -> bool:
    """TensorFlow itself never differentiates 8-bit floats and integers."""
    sources = [call.inputs[i] for i in call.sources]
    targets = [call.results[i] for i in call.targets]
    return all(any(a.dtype == np.float32 for a in arrays) for arrays in (sources, targets))


def _gradient_is_refused(function: FlatFunction, expected: ExpectedCall) -> Iterator[str]:
    try:
        _differentiated(function, [tf.constant(i) for i in expected.inputs], expected)
    except LookupError as e:
        if "gradient" not in str(e):
            yield f"asked for a gradient that it lacks, it says only: {e}"
    else:
        yield "it gave a gradient, though it was stored without one"


def main(exported: Path, report_path: Path, *names: str) -> NoReturn:
    """Checks the programs named, or all that were exported; exits with 0 when it came through."""
    block_jax()
    report = Report(report_path)
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"tensorflow": tf.__version__, "numpy": np.__version__, "python": python})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/program.json"))
    one_by_one(report, wanted, lambda name: _check(name, exported / name))
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
