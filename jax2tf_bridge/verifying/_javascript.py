"""Runs programs in Node.js, and passes arrays to them and back in files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = Path(__file__).with_name("run_graph_model.js")
"""The program that runs graph models of TensorFlow.js; it describes requests and answers."""

_DTYPES: Mapping[str, Any] = {"bool": np.dtype(bool), "complex64": np.dtype(np.complex64)}
_ARRAYS: Mapping[str, Any] = {
    "Float32Array": np.dtype(np.float32),
    "Int32Array": np.dtype(np.int32),
    "Uint8Array": np.dtype(np.uint8),
    "BigInt64Array": np.dtype(np.int64),
}


class NodeError(RuntimeError):
    """A program that failed.

    Attributes:
      status: its exit code.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class ProgramAnswer:
    """Answer of a program.

    Attributes:
      versions: the versions of what ran.
      load: the time to load the model, in milliseconds.
      results: the outputs of each call by name.
      times: the milliseconds of each repetition, by call.
      traces: all tensors of each call by node, None for those that were not computed; empty unless
        they were asked for.
      tensors: the number of tensors that are not disposed of at the end.
    """

    versions: Mapping[str, str]
    load: float
    results: list[dict[str, np.ndarray]]
    times: list[list[float]]
    traces: list[dict[str, list[np.ndarray | None]]]
    tensors: int


def run_program(
    command: Sequence[str],
    request: Mapping[str, Any],
    calls: Sequence[Mapping[str, np.ndarray]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> ProgramAnswer:
    """Runs a program with a request, and returns its answer.

    Args:
      command: Node, and the program.
      request: the fields of the request, without the calls.
      calls: the inputs of each call by name, in dtypes of TensorFlow.js.
      folder: an existing folder for the files.
      environment: the variables of the process; None for those of this one.

    Raises:
      NodeError: the program fails; the text is what it printed.
    """
    asked, answered = folder / "request.json", folder / "answer.json"
    described: list[dict[str, Any]] = []
    offset = 0
    with _data_of(asked).open("wb") as file:
        for inputs in calls:
            described.append({})
            for name, array in inputs.items():
                spec = {"dtype": array.dtype.name, "shape": array.shape, "offset": offset}
                described[-1][name] = spec
                offset += file.write(np.ascontiguousarray(array).tobytes())
    asked.write_text(json.dumps({**request, "calls": described}))
    ended = subprocess.run(
        [*command, str(asked), str(answered)],
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise NodeError(ended.returncode, ended.stderr.strip())
    answer, data = json.loads(answered.read_text()), _data_of(answered).read_bytes()
    return ProgramAnswer(
        answer["versions"],
        answer["load"],
        [{n: _read_array(o, data) for n, o in c["outputs"].items()} for c in answer["calls"]],
        [call["times"] for call in answer["calls"]],
        [
            {
                name: [t and _read_array(t, data) for t in tensors]
                for name, tensors in traced.items()
            }
            for traced in (call.get("tensors", {}) for call in answer["calls"])
        ],
        answer["tensors"],
    )


def _data_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.data")


def _read_array(spec: Mapping[str, Any], data: bytes) -> np.ndarray:
    dtype = _DTYPES.get(spec["dtype"]) or _ARRAYS[spec["array"]]
    return np.ndarray(spec["shape"], dtype, data, spec["offset"])
