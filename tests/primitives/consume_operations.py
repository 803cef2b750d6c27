"""Runs the exported cases as TensorFlow's own operations, and compares values and gradients.

    python -m tests.primitives.consume_operations EXPORTED REPORT [CASE ...]

Needs TensorFlow, of whatever release, and not JAX.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge import to_tf
from tests.consumers.exchange import Array, Report, read_arrays
from tests.consumers.one_by_one import one_by_one
from tests.consumers.own_operations import foreign_operations, switch_off_xla
from tests.primitives.comparing import cotangent, difference, is_inexact

RUNS = ("static", "batch")


def case_differences(folder: Path) -> list[str]:
    """Lists in what a case differs from JAX, a line for each run: "static", "batch"."""
    facts = json.loads((folder / "case.json").read_text())
    return [
        f"{run}: {text}"
        for run in RUNS
        for text in _run_differences(folder, run, float(facts["tolerance"]))
    ]


def _run_differences(folder: Path, run: str, tolerance: float) -> Iterator[str]:
    calls = [read_arrays(path) for path in sorted(folder.glob(f"{run}-*.npz"), reverse=True)]
    if (failure := folder / f"{run}.failure").exists():
        yield f"at export, {failure.read_text()}"
    if not calls or failure.exists():
        return
    try:
        function = _traced(pickle.loads((folder / f"{run}.pickle").read_bytes()))
    except Exception as e:  # whatever it raises is its failure
        yield f"{type(e).__name__}: {e}"
        return
    found = foreign_operations(function.graph)
    if found:
        yield f"its graph has {', '.join(found)}"
    for call in calls:
        try:
            texts = list(_differences(function, call, tolerance))
        except Exception as e:
            texts = [f"{type(e).__name__}: {e}"]
        where = f"batch of {len(call['inputs'][0])}: " if run == "batch" else ""
        if texts:
            yield where + "; ".join(texts)


def _traced(portable: Any) -> Any:
    """Traces results and gradients of a function: of its arguments, and then the cotangents."""
    call: Callable[..., Any] = to_tf(portable)
    inputs, results = (
        [_spec(a) for a in avals] for avals in (portable.in_avals, portable.out_avals)
    )
    sources = [i for i, spec in enumerate(inputs) if _is_inexact(spec)]
    targets = [i for i, spec in enumerate(results) if _is_inexact(spec)]

    def both(*given: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        arguments, cotangents = given[: len(inputs)], given[len(inputs) :]
        watched = [arguments[i] for i in sources]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            found = call(*arguments)
        pulled = tape.gradient(
            [found[i] for i in targets], watched, cotangents, tf.UnconnectedGradients.ZERO
        )
        # TensorFlow's gradient of a tf.gather is tf.IndexedSlices.
        return list(found), [tf.convert_to_tensor(gradient) for gradient in pulled]

    signature = [*inputs, *(results[i] for i in targets)]
    function = tf.function(both, autograph=False, input_signature=signature)
    return function.get_concrete_function()


def _spec(aval: Any) -> tf.TensorSpec:
    return tf.TensorSpec([d if isinstance(d, int) else None for d in aval.op_shape], aval.dtype)


def _is_inexact(spec: tf.TensorSpec) -> bool:
    return bool(spec.dtype.is_floating or spec.dtype.is_complex)


def _differences(function: Any, call: dict[str, list[Array]], tolerance: float) -> Iterator[str]:
    inputs, wanted = call.get("inputs", []), call.get("results", [])
    cotangents = [cotangent(x.shape, x.dtype) for x in wanted if is_inexact(x)]
    results, gradients = function(*map(tf.constant, [*inputs, *cotangents]))
    kinds = (("result", results, wanted), ("gradient", gradients, call.get("gradients", [])))
    for kind, got, expected in kinds:
        if len(got) != len(expected):
            yield f"{len(got)} {kind}s, expected {len(expected)}"
            continue
        for i, (tensor, array) in enumerate(zip(got, expected, strict=True)):
            if text := difference(tensor.numpy(), array, tolerance):
                yield f"{kind} {i} {text}"


def check_cases(exported: Path, report_path: Path, names: Sequence[str]) -> None:
    """Checks the cases named, or all that were exported, and reports on each."""
    switch_off_xla()
    report = Report(report_path)
    report.head({"tensorflow": tf.__version__})
    places = {
        json.loads(path.read_text())["name"]: path.parent
        for path in sorted(exported.glob("*/case.json"), key=lambda path: int(path.parent.name))
    }

    one_by_one(report, names or tuple(places), lambda name: case_differences(places[name]))


if __name__ == "__main__":
    check_cases(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    sys.exit(0)
