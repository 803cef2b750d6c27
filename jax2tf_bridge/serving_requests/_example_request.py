"""Example request for a signature: its values, and how to send it."""

from __future__ import annotations

import cmath
import json
import math
import shlex
import urllib.parse
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import find_kind, is_integer
from jax2tf_bridge._utils import array_type_text, join_names, name_items
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import SERVING_DEFAULT, iterate_input_sizes
from shape_poly import Dim

Scalar: TypeAlias = bool | int | float | complex | bytes
Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

_TEXT = b"some text"

GRPC_PORT, REST_PORT = 8500, 8501
"""Ports of the command that `print(saved.serving)` shows."""

_REST_DTYPES = frozenset(
    {"bool", "float32", "float64", "int8", "int16", "int32", "int64", "string", "uint8"}
    | {"uint32", "uint64"}
)
"""Dtypes that TensorFlow Serving converts to and from JSON (tensorflow_serving/util/json_tensor.cc,
2.15 to 2.19)."""

_MAX_VALUES = 1000
"""Maximum number of different values of an input; in a larger one, the first stands for all."""

_MAX_WRITTEN = 100
"""Maximum number of equal values that are written out one by one."""

_PYTHON = """\
# pip install tensorflow-serving-api
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

request = predict_pb2.PredictRequest()
{fields}
with grpc.insecure_channel("localhost:{port}") as channel:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(request, timeout=60)
for name, tensor in sorted(response.outputs.items()):
    print(name, tf.make_ndarray(tensor))"""


def find_dtypes_without_rest(dtypes: Mapping[str, str]) -> dict[str, str]:
    """Returns those inputs and outputs, by name, whose dtypes TensorFlow Serving has no JSON for.

    >>> find_dtypes_without_rest({"x": "float32", "half": "float16"})
    {'half': 'float16'}
    """
    return {name: dtype for name, dtype in dtypes.items() if dtype not in _REST_DTYPES}


@dataclass(frozen=True)
class ExampleInput:
    """Values of an input.

    Attributes:
      dtype: the name of the dtype; "string" for texts.
      shape: the sizes.
      values: the elements, row by row; a single value stands for all elements.
      is_optional: whether the signature has a default for it.
    """

    dtype: str
    shape: tuple[int, ...]
    values: tuple[Scalar, ...]
    is_optional: bool = False

    @staticmethod
    def of_array(dtype: str, array: np.ndarray[Any, Any], *, is_optional: bool) -> ExampleInput:
        """Takes the values of an array; only the first if all are equal, or if it is large."""
        first = array.flat[:1]
        is_constant = bool(array.size) and (not any(array.strides) or bool((array == first).all()))
        elements = first if is_constant or array.size > _MAX_VALUES else array.ravel()
        values = tuple(_to_scalar(element, dtype) for element in elements)
        return ExampleInput(dtype, tuple(array.shape), values, is_optional)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_long(self) -> bool:
        """True if it has too many equal values to write each of them."""
        return len(self.values) == 1 and self.size > _MAX_WRITTEN

    def as_lists(self, convert: Callable[[Scalar], Any]) -> Any:
        """Returns nested lists of the converted elements; a scalar is the element."""
        count = self.size if len(self.values) == 1 else 1
        return _nest([convert(value) for value in self.values] * count, self.shape)

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class ExampleRequest:
    """Request for a signature that TensorFlow Serving accepts; str() gives the curl command.

    Attributes:
      model: the name of the model.
      signature: the name of the signature.
      inputs: the inputs by name.
      outputs: the dtypes of the outputs by name.
      label: the label of the version to call; "" leaves the version to the server.
    """

    model: str
    signature: str
    inputs: Mapping[str, ExampleInput]
    outputs: Mapping[str, str]
    label: str = ""

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    @property
    def rest_problem(self) -> str:
        """The reason why REST cannot call the signature, and what to do; "" if it can."""
        if not self.inputs:
            return (
                f"TensorFlow Serving takes no REST request for {self.signature}, because it has no "
                "inputs. Call it over gRPC."
            )
        dtypes = {n: i.dtype for n, i in self.inputs.items()} | dict(self.outputs)
        names = [f"{n}: {d}" for n, d in find_dtypes_without_rest(dtypes).items()]
        if names:
            return (
                f"TensorFlow Serving cannot write the dtypes of {self.signature} as JSON: "
                f"{join_names(names)}. Call it over gRPC, or save a signature with other dtypes, "
                "such as float32."
            )
        empty = [f"{n}: {i}" for n, i in self.inputs.items() if 0 in i.shape[:-1]]
        if empty:
            return (
                f"JSON has no arrays of the shape that {self.signature} takes: "
                f"{join_names(empty)}. Call it over gRPC."
            )
        return ""

    def as_json(self) -> dict[str, Any]:
        """Returns the body of the REST request, as columns.

        Raises:
          BridgeError: REST cannot call the signature; `rest_problem` is the text.
        """
        if self.rest_problem:
            raise BridgeError(self.rest_problem)
        # Rows cannot pass inputs without a batch dimension.
        return {
            **self._signature_name(),
            "inputs": {n: i.as_lists(_to_json) for n, i in self.inputs.items()},
        }

    def curl(self) -> str:
        """Returns a command for a shell that sends the request over REST.

        Python writes the body if it is long.

        Raises:
          BridgeError: as for `as_json`.
        """
        path = urllib.parse.quote(self.model, safe="")
        if self.label:
            path += f"/labels/{urllib.parse.quote(self.label, safe='')}"
        url = f"http://localhost:{REST_PORT}/v1/models/{path}:predict"
        if not any(array.is_long for array in self.inputs.values()):
            return f"curl {url} -d {shlex.quote(_dump(self.as_json()))}"
        if self.rest_problem:
            raise BridgeError(self.rest_problem)
        inputs = ", ".join(
            f"{_write_python(n)}: {_write_lists(a, _to_json)}" for n, a in self.inputs.items()
        )
        names = "".join(
            f"{_write_python(k)}: {_write_python(v)}, " for k, v in self._signature_name().items()
        )
        code = f'import json; print(json.dumps({{{names}"inputs": {{{inputs}}}}}))'
        return f"python3 -c {shlex.quote(code)} | curl {url} -d @-"

    def python(self) -> str:
        """Returns a program in Python that sends the request over gRPC."""
        fields = [f"request.model_spec.name = {_write_python(self.model)}"]
        if self.label:
            fields.append(f"request.model_spec.version_label = {_write_python(self.label)}")
        if self.signature != SERVING_DEFAULT:
            fields.append(f"request.model_spec.signature_name = {_write_python(self.signature)}")
        for name, array in self.inputs.items():
            if array.is_optional:
                fields.append(f"# {name} has a default, and may be left out.")
            fields.append(f"request.inputs[{_write_python(name)}].CopyFrom({_write_tensor(array)})")
        return _PYTHON.format(fields="\n".join(fields), port=GRPC_PORT)

    def _signature_name(self) -> dict[str, str]:
        return {} if self.signature == SERVING_DEFAULT else {"signature_name": self.signature}

    def __str__(self) -> str:
        return self.rest_problem or self.curl()


def _to_scalar(element: Any, dtype: str) -> Scalar:
    kind = find_kind(dtype)
    if kind == "float":
        # The text of a narrow float has as few digits as tell it apart from others.
        return float(str(element))
    if kind is None:
        return element if isinstance(element, bytes) else str(element).encode()
    number: Scalar = {"bool": bool, "complex": complex}.get(kind, int)(element)
    return number


def _nest(elements: Sequence[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return elements[0]
    count, *rest = shape
    size = math.prod(rest)
    return [_nest(elements[i * size : (i + 1) * size], rest) for i in range(count)]


def _decode(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _to_json(value: Scalar) -> Any:
    if isinstance(value, bytes):
        text = _decode(value)
        return {"b64": b64encode(value).decode()} if text is None else text
    return value


def _dump(value: Any) -> str:
    """Writes JSON that a terminal can show."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _write_python(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_write_python, value))}]"
    if isinstance(value, bytes) and (text := _decode(value)) is not None:
        value = text
    if isinstance(value, str):
        # JSON would escape letters beyond U+FFFF in two parts, which Python does not join.
        text = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if isinstance(value, (float, complex)) and not cmath.isfinite(value):
        return f'{type(value).__name__}("{value}")'
    return repr(value)


def _write_lists(array: ExampleInput, convert: Callable[[Scalar], Any]) -> str:
    if not array.is_long:
        return _write_python(array.as_lists(convert))
    text = _write_python(convert(array.values[0]))
    for size in reversed(array.shape):
        text = f"[{text}] * {size}"
    return text


def _write_tensor(array: ExampleInput) -> str:
    if len(array.values) == 1 and array.size:
        shape = f", {array.shape}" if array.shape else ""
        values = _write_python(array.values[0])
    else:
        shape = "" if array.size else f", {array.shape}"
        values = _write_python(array.as_lists(lambda value: value) if array.size else [])
    return f'tf.make_tensor_proto({values}, "{array.dtype}"{shape})'


@dataclass(frozen=True, eq=False)
class SignatureInput:
    """Input of a signature.

    Attributes:
      dtype: the name of the dtype.
      shape: a size, an expression of dimension variables, or None for each dimension; None if the
        rank is unknown.
      default: the value that is used if callers omit it; None if they may not.
      pad_value: the value that the buckets pad it with.
    """

    dtype: str
    shape: tuple[Dim | None, ...] | None
    default: np.ndarray[Any, Any] | None = None
    pad_value: complex = 0


def choose_inputs(
    signature: str,
    inputs: Mapping[str, SignatureInput],
    portable: PortableFunction | None,
    example: Arrays | None,
) -> dict[str, ExampleInput]:
    """Chooses a value for each input: of the example, the default, or ones.

    Args:
      signature: the name of the signature, for messages.
      inputs: its inputs by name.
      portable: its function, whose constraints the sizes satisfy; None if it is unknown. Then each
        open size is 1.
      example: the values of the inputs in a warm-up request; None without one.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    if example is not None and inputs.keys() <= example.keys():
        shapes = {name: tuple(example[name].shape) for name in inputs}
    else:
        example = {}
        shapes = _choose_shapes(signature, inputs, portable)
    return {
        name: _choose_input(name, inputs[name], shape, example.get(name))
        for name, shape in shapes.items()
    }


def _choose_shapes(
    signature: str, inputs: Mapping[str, SignatureInput], portable: PortableFunction | None
) -> dict[str, tuple[int, ...]]:
    shapes = {
        name: tuple(size for size in each.shape if size is not None)
        for name, each in inputs.items()
        if each.shape is not None and None not in each.shape
    }
    # A preprocess may take sizes that are not those of the function.
    if portable is not None and shapes.keys() == inputs.keys():
        return next(iterate_input_sizes(signature, portable, shapes))
    return {
        name: (1,)
        if each.shape is None
        else tuple(size if isinstance(size, int) else 1 for size in each.shape)
        for name, each in inputs.items()
    }


def _choose_input(
    name: str, signature_input: SignatureInput, shape: tuple[int, ...], example: Any | None
) -> ExampleInput:
    dtype, default = signature_input.dtype, signature_input.default
    if example is not None and not (default is not None and is_zero(example)):
        return ExampleInput.of_array(dtype, example, is_optional=default is not None)
    if default is not None:
        return ExampleInput.of_array(dtype, default, is_optional=True)
    return ExampleInput(dtype, shape, (_choose_value(name, dtype, signature_input.pad_value),))


def _choose_value(name: str, dtype: str, pad_value: complex) -> Scalar:
    # 1 is no padding, and may be an id, a length, or the real value of a mask.
    kind = find_kind(dtype)
    if kind is None:
        return _TEXT
    if kind == "complex":
        return 1 + 0j
    number = 1
    if pad_value and (kind == "bool" or "mask" in name.lower()):
        number = 0
    elif pad_value == 1:
        number = 2
    if kind == "bool":
        return bool(number)
    return number if is_integer(dtype) else float(number)


def has_values(request: Arrays) -> bool:
    """Returns whether a warm-up request holds more than the zeros that `save` makes up."""
    return not all(map(is_zero, request.values()))


def is_zero(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether all elements are zeros or empty texts."""
    # Zeros that repeat one element may be larger than the memory.
    elements = array if any(array.strides) else array.flat[:1]
    return not np.any(elements)
