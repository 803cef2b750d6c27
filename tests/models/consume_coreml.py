"""Converts the real models' SavedModels to Core ML packages, and runs their programs.

    python -m tests.models.consume_coreml fixed EXPORTED REPORT [MODEL ...]
    python -m tests.models.consume_coreml open EXPORTED REPORT [MODEL ...]

With "fixed" the sizes are those of the first call. Core ML only runs on Apple's systems, so the
programs run in tests/models/ml_programs.py. There is no JAX.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge.coreml import save_coreml
from jax2tf_bridge.saved_model import read_sidecar
from shape_poly import solve_dimensions, symbolic_shape
from tests.consumers.exchange import Report, read_arrays
from tests.consumers.one_by_one import one_by_one
from tests.models.comparing import compare
from tests.models.ml_programs import run_package
from tests.plugins.blocked_imports import require_absent


def _as_coreml(array: Any) -> Any:
    """Returns an array as Core ML takes it; keys keep their bits."""
    if array.dtype == np.uint32:
        array = array.view(np.int32)
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def _find_sizes(folder: Path, names: Sequence[str], arrays: Sequence[Any]) -> Mapping[str, int]:
    """Returns the dimension variables of a call."""
    known = read_sidecar(folder / "model")
    assert known is not None, "the bridge wrote the model"
    (entry,) = known[0].signatures.values()
    shapes = [symbolic_shape(entry.inputs[name].shape) for name in names]
    return solve_dimensions(shapes, [array.shape for array in arrays])


def _differences(folder: Path, *, is_open: bool) -> list[str]:
    facts = json.loads((folder / "model.json").read_text())
    names, outputs = facts["inputs"], facts["outputs"]
    calls = [read_arrays(folder / f"call-{i}.npz") for i in range(facts["calls"])]
    sizes = [_find_sizes(folder, names, call["inputs"]) for call in calls]
    bounds: Mapping[str, Any] = sizes[0]
    if is_open:
        bounds = {key: (min(s[key] for s in sizes), max(s[key] for s in sizes)) for key in sizes[0]}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary, "model.mlpackage")
        save_coreml(package, folder / "model", sizes=bounds)
        for i, (call, size) in enumerate(zip(calls, sizes, strict=True)):
            if not is_open and size != sizes[0]:
                continue
            results = run_package(
                package, dict(zip(names, map(_as_coreml, call["inputs"]), strict=True))
            )
            expected = [_as_coreml(array) for array in call["results"]]
            found = [results[name] for name in outputs]
            way = "open" if is_open else "fixed"
            lines += compare(f"call {i}, ", outputs, found, expected, facts["tolerance"], noted=way)
    return lines


def main(sizes: str, exported: Path, report_path: Path, *names: str) -> None:
    """Checks the models named, or all that were written.

    Raises:
      RuntimeError: JAX is installed here.
    """
    require_absent("jax")
    report = Report(report_path)
    report.head({package: version(package) for package in ("coremltools", "tensorflow-cpu")})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: _differences(exported / name, is_open=sizes == "open"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
