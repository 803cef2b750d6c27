"""Converts the real models' SavedModels to ONNX or for OpenVINO, and runs them there.

    python -m tests.models.consume_converted onnx EXPORTED REPORT [MODEL ...]
    python -m tests.models.consume_converted openvino EXPORTED REPORT [MODEL ...]

By the recipes of docs/onnx-and-openvino.md; there is no JAX.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from tests.consumers.exchange import Report, read_arrays
from tests.consumers.one_by_one import note_size, note_time, one_by_one
from tests.models.comparing import compare
from tests.plugins.blocked_imports import require_absent

_Run: TypeAlias = "Callable[[Mapping[str, Any]], list[Any]]"
_NOT_KNOWN = (" is not supported", "Unsupported ops")


class _Said(logging.Handler):
    """Keeps what tf2onnx says, as it ends with success when it does not know an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def in_onnxruntime(folder: Path, outputs: list[str]) -> _Run:
    """Converts a SavedModel by tf2onnx; returns what runs it in onnxruntime.

    Raises:
      RuntimeError: tf2onnx does not know an operation; with what it says.
      Exception: it fails otherwise.
    """
    made = folder / "model.onnx"
    convert = importlib.import_module("tf2onnx.convert")
    said = _Said()
    given, sys.argv = sys.argv, ["convert", "--saved-model", str(folder / "model")]
    sys.argv += ["--output", str(made), "--opset", "18"]
    logging.getLogger().addHandler(said)
    try:
        convert.main()
    finally:
        sys.argv = given
        logging.getLogger().removeHandler(said)
    unknown = [line for line in said.lines if any(text in line for text in _NOT_KNOWN)]
    if unknown:
        raise RuntimeError("\n".join(unknown))
    onnxruntime = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(outputs, dict(inputs))


def in_openvino(folder: Path, outputs: list[str]) -> _Run:
    """Converts a SavedModel by OpenVINO; returns what runs it there, in float32."""
    ov = importlib.import_module("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.compile_model(ov.convert_model(folder / "model"), "CPU", settings)

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        found = compiled(dict(inputs))
        return [found[name] for name in outputs]

    return run


_RUNTIMES = {
    "onnx": (in_onnxruntime, ("tf2onnx", "onnxruntime", "tensorflow-cpu")),
    "openvino": (in_openvino, ("openvino",)),
}


def _differences(folder: Path, converted: Callable[[Path, list[str]], _Run]) -> list[str]:
    facts = json.loads((folder / "model.json").read_text())
    names = facts["outputs"]
    run = converted(folder, names)
    note_size("open", folder / ("model.onnx" if converted is in_onnxruntime else "model"))
    lines: list[str] = []
    for i in range(facts["calls"]):
        arrays = read_arrays(folder / f"call-{i}.npz")
        inputs = dict(zip(facts["inputs"], arrays.get("inputs", []), strict=True))
        # The second call: OpenVINO may have written over constants in the first.
        _, got = run(inputs), run(inputs)
        if i == 0:
            note_time("open", functools.partial(run, inputs))
        where, tolerance = f"call {i}, ", facts["tolerance"]
        lines += compare(where, names, got, arrays.get("results", []), tolerance, noted="open")
    return lines


def main(runtime: str, exported: Path, report_path: Path, *names: str) -> None:
    """Checks the models named, or all that were written.

    Raises:
      RuntimeError: JAX is installed here.
    """
    require_absent("jax")
    converted, packages = _RUNTIMES[runtime]
    report = Report(report_path)
    report.head({package: version(package) for package in packages})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: _differences(exported / name, converted))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
