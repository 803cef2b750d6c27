"""Runs a model in another runtime, and computes each of its tensors there."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import Argument, BridgeError, Message, MissingDependencyError
from jax2tf_bridge.inspecting import read_litert_signature
from jax2tf_bridge.verifying._locating import Step, Trace
from jax2tf_bridge.verifying._tensorflow_js import TensorFlowJs

Arrays = Mapping[str, Any]

RUNTIMES = {
    "tensorflow": "a SavedModel",
    "litert": "a .tflite file",
    "onnx": "an .onnx file",
    "openvino": "a SavedModel, or an .xml or .onnx file",
    "tfjs": "the folder or the JSON file of a graph model",
}
"""The runtimes, and the model that each runs."""


class RuntimeModel(Protocol):
    """A model in a runtime.

    Attributes:
      title: the name of the runtime, and its version.
      has_uint32: whether it has uint32; otherwise int32 has the same bits.
      has_complex: whether it has complex numbers; otherwise a new last axis has their two parts.
    """

    title: str
    has_uint32: bool
    has_complex: bool

    def list_names(self) -> tuple[list[str], list[str]]:
        """Lists the names of the inputs and outputs."""

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Computes the outputs."""

    def trace(self, inputs: Arrays, outputs: Sequence[str]) -> Trace:
        """Computes all tensors, without those inside loops and branches."""


def open_runtime(runtime: str, model: Path, signature: str) -> RuntimeModel:
    """Opens a model in a runtime other than TensorFlow.

    Args:
      runtime: one of RUNTIMES.
      model: the file or folder of the model.
      signature: the signature, if the model has several.

    Raises:
      MissingDependencyError: the runtime is not installed.
      FileNotFoundError: there is no model.
    """
    if not model.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(model))
    classes: Mapping[str, Callable[[Path, str], RuntimeModel]] = {
        "litert": _LiteRT,
        "onnx": _OnnxRuntime,
        "openvino": _OpenVino,
        "tfjs": TensorFlowJs,
    }
    return classes[runtime](model, signature)


def check_names(
    runtime_model: RuntimeModel, model: Path, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Checks that the model has the inputs and outputs of the SavedModel.

    Raises:
      BridgeError: it lacks one.
    """
    for kind, names, expected in zip(
        ("input", "output"), runtime_model.list_names(), (inputs, outputs), strict=True
    ):
        missing = [name for name in expected if name not in names]
        if missing:
            raise BridgeError(
                Message(
                    Argument("model"),
                    f": {model} has no {kind} {missing[0]}, which the SavedModel has; its {kind}s "
                    f"are {', '.join(names)}. Pass the model that was converted from this "
                    "SavedModel.",
                )
            )


def split_complex(array: Any) -> Any:
    """Returns the two parts of complex numbers along a new last axis; other arrays unchanged."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


@contextlib.contextmanager
def _name_missing(title: str, package: str, runtime: str) -> Iterator[None]:
    """Converts the error of an import to one that says how to install the package.

    Raises:
      MissingDependencyError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if e.name != package.replace("-", "_"):
            raise
        raise MissingDependencyError(
            title, package, f"verify(runtime={runtime!r})", command=f"pip install {package}"
        ) from e


class _LiteRT:
    has_uint32 = has_complex = True

    def __init__(self, model: Path, signature: str) -> None:
        self._kind, self.title = _find_interpreter()
        self._data = model.read_bytes()
        self._signature = read_litert_signature(self._data, signature, str(model))
        with _ignore_deprecation():
            interpreter = self._kind(model_content=self._data)
            self._runner = interpreter.get_signature_runner(self._signature.name)

    def list_names(self) -> tuple[list[str], list[str]]:
        return list(self._signature.inputs), list(self._signature.outputs)

    def run(self, inputs: Arrays) -> dict[str, Any]:
        return self._run(self._runner, inputs)

    def _run(self, runner: Any, inputs: Arrays) -> dict[str, Any]:
        signature, tensors = self._signature, self._signature.graph.tensors
        ports = signature.inputs.items()
        outputs = runner(**{name: tensors[n].quantize(inputs[name]) for name, n in ports})
        ports = signature.outputs.items()
        return {name: tensors[n].dequantize(outputs[name]) for name, n in ports}

    def trace(self, inputs: Arrays, outputs: Sequence[str]) -> Trace:
        # A delegate, such as XNNPACK, would keep the tensors inside its own operators.
        signature, resolvers = self._signature, _find_resolvers(self._kind)
        with _ignore_deprecation():
            interpreter = self._kind(
                model_content=self._data,
                experimental_preserve_all_tensors=True,
                experimental_op_resolver_type=resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            runner = interpreter.get_signature_runner(signature.name)
        self._run(runner, inputs)
        trace = Trace()
        graph = signature.graph
        for number, tensor in enumerate(graph.tensors):
            try:
                elements = interpreter.get_tensor(number, signature.subgraph)
                trace.add(tensor.dequantize(elements))
            except ValueError:  # it has no data, such as the operand of a branch
                trace.add(None)
        trace.steps = [
            Step(
                operator.name,
                graph.tensors[operator.outputs[0]].name if operator.outputs else None,
                tuple(number for number in operator.inputs if number >= 0),
                tuple(operator.outputs),
            )
            for operator in graph.operators
        ]
        trace.outputs = [signature.outputs[name] for name in outputs]
        return trace


def _find_interpreter() -> tuple[Any, str]:
    """Returns the interpreter of LiteRT, or that of TensorFlow, and its name."""
    try:
        with _name_missing("LiteRT", "ai-edge-litert", "litert"):
            module = importlib.import_module("ai_edge_litert.interpreter")
    except MissingDependencyError:
        if not hasattr(tf, "lite"):
            raise
        return tf.lite.Interpreter, f"TensorFlow Lite {tf.__version__}"
    return module.Interpreter, f"LiteRT {importlib.metadata.version('ai-edge-litert')}"


def _find_resolvers(kind: Any) -> Any:
    if kind.__module__.startswith("ai_edge_litert"):
        return importlib.import_module("ai_edge_litert.interpreter").OpResolverType
    return tf.lite.experimental.OpResolverType


@contextlib.contextmanager
def _ignore_deprecation() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated")
        yield


class _OnnxRuntime:
    has_uint32 = True
    has_complex = False

    def __init__(self, model: Path, signature: str) -> None:
        with _name_missing("ONNX Runtime", "onnxruntime", "onnx"):
            self._runtime = importlib.import_module("onnxruntime")
        self.title = f"ONNX Runtime {self._runtime.__version__}"
        self._model = model
        self._session = self._open(str(model))

    def _open(self, model: str | bytes, *, optimizes: bool = True) -> Any:
        options = self._runtime.SessionOptions()
        if not optimizes:
            options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return self._runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def list_names(self) -> tuple[list[str], list[str]]:
        session = self._session
        return [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]

    def run(self, inputs: Arrays) -> dict[str, Any]:
        _, names = self.list_names()
        return dict(zip(names, self._session.run(names, self._cast(inputs)), strict=True))

    def _cast(self, inputs: Arrays) -> dict[str, Any]:
        dtypes = {i.name: _ONNX_DTYPES.get(i.type) for i in self._session.get_inputs()}
        arrays = {name: split_complex(inputs[name]) for name in dtypes if name in inputs}
        return {k: array.astype(dtypes[k] or array.dtype) for k, array in arrays.items()}

    def trace(self, inputs: Arrays, outputs: Sequence[str]) -> Trace:
        with _name_missing("ONNX", "onnx", "onnx"):
            onnx: Any = importlib.import_module("onnx")
        model = onnx.load(str(self._model))
        trace, numbers = Trace(), {}
        for constant in model.graph.initializer:
            numbers[constant.name] = trace.add(onnx.numpy_helper.to_array(constant))
        for name, value in self._cast(inputs).items():
            numbers[name] = trace.add(value)
        fetched: list[str] = []
        for node in model.graph.node:
            operands = tuple(numbers[name] for name in node.input if name in numbers)
            names = [name for name in node.output if name]
            fetched += names
            numbers.update((name, trace.add(None)) for name in names)
            results = tuple(numbers[name] for name in names)
            trace.steps.append(Step(node.op_type, names[0] if names else None, operands, results))
        known = {output.name for output in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in fetched if name not in known
        )
        session = self._open(model.SerializeToString(), optimizes=False)
        for name, value in zip(fetched, session.run(fetched, self._cast(inputs)), strict=True):
            # A sequence or an optional is no array.
            trace.values[numbers[name]] = value if isinstance(value, np.ndarray) else None
        trace.outputs = [numbers[name] for name in outputs]
        return trace


_ONNX_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    **{f"tensor({name})": np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{f"tensor({name})": np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "tensor(bool)": np.bool_,
}
"""NumPy's dtypes of ONNX Runtime's types."""


class _OpenVino:
    has_uint32 = has_complex = True

    def __init__(self, model: Path, signature: str) -> None:
        with _name_missing("OpenVINO", "openvino", "openvino"):
            self._ov = importlib.import_module("openvino")
        self.title = f"OpenVINO {self._ov.__version__.partition('-')[0]}"
        self._model = self._ov.Core().read_model(str(model))
        self._compiled = self._compile(self._model)

    def _compile(self, model: Any) -> Any:
        # The default precision is the fastest of the machine, such as bfloat16.
        return self._ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def list_names(self) -> tuple[list[str], list[str]]:
        compiled = self._compiled
        inputs = [name for port in compiled.inputs for name in port.get_names()]
        return inputs, [name for port in compiled.outputs for name in port.get_names()]

    def run(self, inputs: Arrays) -> dict[str, Any]:
        results = self._compiled(self._cast(self._compiled, inputs))
        return {name: results[port] for port in self._compiled.outputs for name in port.get_names()}

    def _cast(self, compiled: Any, inputs: Arrays) -> dict[Any, Any]:
        arrays = {}
        for port in compiled.inputs:
            name = next(name for name in port.get_names() if name in inputs)
            arrays[port] = np.asarray(inputs[name]).astype(port.get_element_type().to_dtype())
        return arrays

    def trace(self, inputs: Arrays, outputs: Sequence[str]) -> Trace:
        model = self._model.clone()
        trace, numbers = Trace(), {}
        fetched = []
        for node in model.get_ordered_ops():
            kind = node.get_type_name()
            if kind == "Result":
                continue
            ports = node.outputs()
            for port in ports:
                numbers[_identify(port)] = trace.add(node.data if kind == "Constant" else None)
            if kind in ("Constant", "Parameter"):
                continue
            fetched += [port for port in ports if not port.get_element_type().is_dynamic()]
            trace.steps.append(
                Step(
                    kind,
                    node.get_friendly_name(),
                    tuple(numbers[_identify(p.get_source_output())] for p in node.inputs()),
                    tuple(numbers[_identify(port)] for port in ports),
                )
            )
        places = {
            name: numbers[_identify_source(port)]
            for port in model.outputs
            for name in port.get_names()
        }
        model.add_outputs(fetched)
        sources = [_identify_source(port) for port in model.outputs]
        compiled = self._compile(model)
        results = compiled(self._cast(compiled, inputs))
        for source, port in zip(sources, compiled.outputs, strict=True):
            trace.values[numbers[source]] = results[port]
        trace.outputs = [places[name] for name in outputs]
        return trace


def _identify_source(output: Any) -> tuple[str, int]:
    return _identify(output.get_node().input(0).get_source_output())


def _identify(port: Any) -> tuple[str, int]:
    return port.get_node().get_name(), port.get_index()
