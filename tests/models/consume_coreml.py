"""Converts the real models' SavedModels to Core ML packages, and runs their programs.

    python -m tests.models.consume_coreml fixed EXPORTED REPORT [MODEL ...]
    python -m tests.models.consume_coreml bounded EXPORTED REPORT [MODEL ...]
    python -m tests.models.consume_coreml float16 EXPORTED REPORT [MODEL ...]

With "fixed" and "float16" the sizes are those of the first call. With "bounded", sizes such as `b`
have a range, and variables of sizes such as `16*h` are fixed. Core ML only runs on Apple's systems,
so the programs run in tests/models/ml_programs.py. There is no JAX.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax2tf_bridge.coreml import save_coreml
from jax2tf_bridge.saved_model import read_sidecar
from shape_poly import Dim, solve_dimensions, symbolic_shape, variables_of
from tests.consumers.exchange import Report, read_arrays
from tests.consumers.one_by_one import note_size, one_by_one
from tests.models.comparing import FLOAT16_TOLERANCE, compare
from tests.models.ml_programs import run_package
from tests.plugins.blocked_imports import require_absent


def _as_coreml(array: Any) -> Any:
    """Returns an array as Core ML takes it; keys keep their bits."""
    if array.dtype == np.uint32:
        array = array.view(np.int32)
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def _read_shapes(folder: Path, names: Sequence[str]) -> list[tuple[Dim, ...]]:
    known = read_sidecar(folder / "model")
    assert known is not None, "the bridge wrote the model"
    (entry,) = known[0].signatures.values()
    return [symbolic_shape(entry.inputs[name].shape) for name in names]


def _find_boundable(shapes: Sequence[Sequence[Dim]]) -> set[str]:
    """Returns the variables that are a size of their own wherever they occur."""
    sizes = {size for shape in shapes for size in shape if not isinstance(size, int)}
    alone = {str(size) for size in sizes if variables_of(size) == {str(size)}}
    return alone.difference(*(variables_of(size) for size in sizes if str(size) not in alone))


def _differences(folder: Path, way: str) -> list[str]:
    facts = json.loads((folder / "model.json").read_text())
    names, outputs = facts["inputs"], facts["outputs"]
    calls = [read_arrays(folder / f"call-{i}.npz") for i in range(facts["calls"])]
    shapes = _read_shapes(folder, names)
    sizes = [solve_dimensions(shapes, [a.shape for a in call["inputs"]]) for call in calls]
    bounds = dict[str, Any](sizes[0])
    if way == "bounded":
        for key in _find_boundable(shapes):
            bounds[key] = (min(s[key] for s in sizes), max(s[key] for s in sizes))
    fixed = {key: size for key, size in bounds.items() if isinstance(size, int)}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary, "model.mlpackage")
        precision: Literal["float16", "float32"] = "float16" if way == "float16" else "float32"
        save_coreml(package, folder / "model", sizes=bounds, precision=precision)
        note_size(way, package)
        for i, (call, size) in enumerate(zip(calls, sizes, strict=True)):
            if not fixed.items() <= size.items():
                continue
            results = run_package(
                package, dict(zip(names, map(_as_coreml, call["inputs"]), strict=True))
            )
            expected = [_as_coreml(array) for array in call["results"]]
            found = [results[name] for name in outputs]
            tolerance = max(facts["tolerance"], FLOAT16_TOLERANCE if way == "float16" else 0.0)
            lines += compare(f"call {i}, ", outputs, found, expected, tolerance, noted=way)
    return lines


def main(way: str, exported: Path, report_path: Path, *names: str) -> None:
    """Checks the models named, or all that were written.

    Raises:
      RuntimeError: JAX is installed here.
    """
    require_absent("jax")
    report = Report(report_path)
    report.head({package: version(package) for package in ("coremltools", "tensorflow-cpu")})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: _differences(exported / name, way))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
