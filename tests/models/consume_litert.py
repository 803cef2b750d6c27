"""Runs LiteRT models where there is neither JAX nor TensorFlow.

python -m tests.models.consume_litert EXPORTED REPORT [MODEL ...]
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from tests.consumers.exchange import Report, read_arrays
from tests.consumers.one_by_one import note_size, note_time, one_by_one
from tests.models.comparing import compare
from tests.plugins.blocked_imports import require_absent


def _differences(folder: Path) -> Iterator[str]:
    facts = json.loads((folder / "model.json").read_text())
    for case, calls in facts["calls"].items():
        path = folder / f"{case}.tflite"
        note_size(case, path)
        interpreter = Interpreter(str(path))
        for i in range(calls):
            arrays = read_arrays(folder / f"{case}-{i}.npz")
            given = dict(zip(facts["inputs"], arrays["inputs"], strict=True))
            # One runner for all sizes, which it resizes its inputs to.
            found = interpreter.get_signature_runner()(**given)
            if i == 0:
                note_time(case, functools.partial(interpreter.get_signature_runner(), **given))
            results = [found[name] for name in facts["outputs"]]
            where = f"{case}, call {i}, "
            tolerance, names = facts["tolerance"], facts["outputs"]
            yield from compare(where, names, results, arrays["results"], tolerance, noted=case)
            if i == calls - 1:
                yield from _resized(path, given, found, where)


def _resized(path: Path, given: Any, expected: Any, where: str) -> Iterator[str]:
    """Yields what differs where the inputs are resized by hand, as in other languages."""
    runner = Interpreter(str(path)).get_signature_runner()
    details, results = runner.get_input_details(), runner.get_output_details()
    # A second interpreter, because sizes cannot change while a runner or its results are alive.
    interpreter = Interpreter(str(path))
    for name, array in given.items():
        interpreter.resize_tensor_input(details[name]["index"], array.shape)
    interpreter.allocate_tensors()
    for name, array in given.items():
        interpreter.set_tensor(details[name]["index"], array)
    interpreter.invoke()
    found = [interpreter.get_tensor(results[name]["index"]) for name in expected]
    wanted = [np.asarray(value) for value in expected.values()]
    yield from compare(f"{where}resized, ", list(expected), found, wanted, 1e-6)


def main(exported: Path, report_path: Path, *names: str) -> None:
    """Checks the models named, or all that were written.

    Raises:
      RuntimeError: JAX or TensorFlow is installed here.
    """
    require_absent("jax", "tensorflow")
    report = Report(report_path)
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"ai-edge-litert": version("ai-edge-litert"), "python": python})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: list(_differences(exported / name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
