"""saved_model.pb as a graph of operations: its signatures, nodes and functions, without TensorFlow.

Field numbers are those of saved_model.proto, meta_graph.proto, graph.proto, function.proto and
attr_value.proto. Functions and attributes are read when they are asked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError, path_error
from jax2tf_bridge.saved_model._protobuf import (
    Value,
    WireError,
    as_bytes,
    as_number,
    as_text,
    fields,
    numbers,
    signed,
)
from jax2tf_bridge.saved_model._tensor_bundle import DTYPES, read_shape

_EMPTY = memoryview(b"")
_MOST_BYTES = 2**31 - 1  # of a protocol buffer


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a graph.

    Attributes:
      name: within its graph or function.
      op: its kind, as "XlaCallModule", or the name of a function that it calls.
      inputs: its data inputs, as the graph writes them: "name", "name:0", "name:output:0".
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    _attributes: Mapping[str, memoryview] = field(repr=False)

    def bytes_of(self, name: str) -> bytes:
        """An attribute of bytes; b"" if it is not there."""
        return bytes(self._bytes(name, 2))

    def number(self, name: str) -> int:
        """A number, a truth value or a dtype's number; 0 if it is not there."""
        for kind in (3, 5, 6):
            found = self._value(name, kind)
            if found is not None:
                return signed(as_number(found))
        return 0

    def texts(self, name: str) -> tuple[str, ...]:
        """An attribute that is a list of texts; () if it is not there."""
        return tuple(as_text(v) for n, v in self._list(name) if n == 2)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of numbers or dtypes; () if it is not there."""
        found = self._bytes(name, 1)
        return (*_numbers(found, 3), *_numbers(found, 6))

    def functions(self, name: str) -> tuple[str, ...]:
        """The functions that an attribute names, one or a list."""
        one = self._value(name, 10)
        several = [v for n, v in self._list(name) if n == 9]
        return tuple(_first_text(as_bytes(v)) for v in [*([] if one is None else [one]), *several])

    def tensor(self, name: str) -> memoryview:
        """An attribute that is a TensorProto."""
        return self._bytes(name, 8)

    def _value(self, name: str, kind: int) -> Value | None:
        for number, value in fields(self._attributes.get(name, _EMPTY)):
            if number == kind:
                return value
        return None

    def _bytes(self, name: str, kind: int) -> memoryview:
        value = self._value(name, kind)
        return _EMPTY if value is None else as_bytes(value)

    def _list(self, name: str) -> Iterator[tuple[int, Value]]:
        return fields(self._bytes(name, 1))


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the library.

    Attributes:
      name: its name.
      arguments: the names of its arguments, in order.
      results: for each result what it is, in order.
      nodes: by name.
    """

    name: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    nodes: Mapping[str, Node]


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature.

    Attributes:
      tensor: which of the graph it is.
      dtype: its name.
      shape: its sizes, None for those that are open; None alone if nothing is known.
    """

    tensor: str
    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class GraphSignature:
    """A signature of a SavedModel: what it takes and gives, by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True)
class Capture:
    """A tensor within a function, which a gradient needs."""

    function: str
    tensor: str


class SavedGraph:
    """What a SavedModel's saved_model.pb says."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Of the SavedModel in a folder.

        Raises:
          FileFormatError: there is none, or it is damaged.
          OSError: the folder does not exist, or cannot be read.
        """
        self.file = Path(folder, "saved_model.pb")
        data = _content(Path(folder), self.file)
        with self.checked():
            metas = [as_bytes(v) for n, v in fields(memoryview(data)) if n == 2]
            if not metas:
                raise WireError("it holds no graph")
            # Others are for other devices or uses; TensorFlow 2 writes one.
            serving = [m for m in metas if "serve" in _tags(m)]
            self._read(serving[0] if serving else metas[0])

    def function(self, name: str) -> Function | None:
        """A function by name; None if there is none."""
        if name in self._library and name not in self._read_functions:
            self._read_functions[name] = self._function(name)
        return self._read_functions.get(name)

    def checked(self) -> _Checked:
        """Within it, what is wrong with the bytes is a FileFormatError that names the file."""
        return _Checked(str(self.file))

    def gradient_of(self, op_type: str) -> Function | None:
        """The function that is the gradient of what has this _gradient_op_type."""
        return self.function(self._gradients.get(op_type, ""))

    def captures(self, function: str) -> tuple[Capture | None, ...]:
        """What a function takes after its arguments; None for what is no tensor of a function."""
        objects = [as_bytes(v) for n, v in fields(self._objects) if n == 1]
        for number, value in fields(self._objects):
            if number != 2:
                continue
            name, concrete = _map_entry(as_bytes(value))
            if name == function:
                return tuple(_capture(objects, index) for index in _numbers(concrete, 2))
        return ()

    @property
    def functions(self) -> Iterable[str]:
        """The names of all functions."""
        return self._library

    def _read(self, meta: memoryview) -> None:
        self.nodes: Mapping[str, Node] = {}
        self.signatures: dict[str, GraphSignature] = {}
        self.restore = ""
        self._library: dict[str, memoryview] = {}
        self._read_functions: dict[str, Function] = {}
        self._gradients: dict[str, str] = {}
        self._objects = _EMPTY
        for number, value in fields(meta):
            if number == 2:
                self._read_graph(as_bytes(value))
            elif number == 3:
                self.restore = next((as_text(v) for n, v in fields(as_bytes(value)) if n == 3), "")
            elif number == 5:
                name, signature = _map_entry(as_bytes(value))
                if not name.startswith("__saved_model"):
                    self.signatures[name] = _signature(signature)
            elif number == 7:
                self._objects = as_bytes(value)

    def _read_graph(self, graph: memoryview) -> None:
        nodes = []
        for number, value in fields(graph):
            if number == 1:
                nodes.append(as_bytes(value))
            elif number == 2:
                for kind, function in fields(as_bytes(value)):
                    if kind == 1:
                        self._library[_function_name(as_bytes(function))] = as_bytes(function)
                    elif kind == 3:
                        gradient, op_type = _two_texts(as_bytes(function))
                        self._gradients[op_type] = gradient
        self.nodes = _nodes(nodes)

    def _function(self, name: str) -> Function:
        arguments: list[str] = []
        outputs: list[str] = []
        nodes: list[memoryview] = []
        returned: dict[str, str] = {}
        for number, value in fields(self._library[name]):
            if number == 1:
                for kind, part in fields(as_bytes(value)):
                    if kind in (2, 3):
                        (arguments if kind == 2 else outputs).append(_first_text(as_bytes(part)))
            elif number == 3:
                nodes.append(as_bytes(value))
            elif number == 4:
                key, reference = _map_entry(as_bytes(value))
                returned[key] = str(reference, "utf-8")
        missing = [output for output in outputs if output not in returned]
        if missing:
            raise WireError(f"the function {name} does not say what its result {missing[0]} is")
        results = tuple(returned[output] for output in outputs)
        return Function(name, tuple(arguments), results, _nodes(nodes))


class _Checked:
    """A context manager: what is wrong with the bytes is a FileFormatError."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None:
        """Nothing happens."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raises FileFormatError from a WireError."""
        if isinstance(error, WireError | UnicodeDecodeError):
            raise FileFormatError(
                f"{self._file} cannot be read as a SavedModel: {error}. The bytes are cut short or "
                "damaged: copy them anew, or save the model again.",
                file=self._file,
            ) from error


def _content(folder: Path, file: Path) -> bytes:
    if not folder.exists():
        text = "does not exist; name the folder that holds saved_model.pb"
        raise path_error(FileNotFoundError, errno.ENOENT, text, folder)
    if not file.is_file():
        if folder.is_file():
            what = f"{folder} is a file, and no folder with a saved_model.pb"
        elif (folder / "saved_model.pbtxt").exists():
            what = f"{folder} has a saved_model.pbtxt, a text, which is not read here"
        else:
            what = f"{folder} has no saved_model.pb"
            versions = sorted(p.parent.name for p in folder.glob("*/saved_model.pb"))
            if versions:
                what += f" (its folders have: {', '.join(versions[:5])})"
        raise FileFormatError(
            f"{what}: it is no SavedModel. Name the folder that holds saved_model.pb.",
            file=str(folder),
        )
    size = file.stat().st_size
    if size > _MOST_BYTES:
        raise FileFormatError(
            f"{file} is no SavedModel: it has {size} bytes, and a protocol buffer has at most "
            f"{_MOST_BYTES}.",
            file=str(file),
        )
    return file.read_bytes()


def _tags(meta: memoryview) -> list[str]:
    info = next((as_bytes(v) for n, v in fields(meta) if n == 1), _EMPTY)
    return [as_text(v) for n, v in fields(info) if n == 4]


def _signature(message: memoryview) -> GraphSignature:
    tensors: tuple[dict[str, TensorInfo], dict[str, TensorInfo]] = ({}, {})
    for number, value in fields(message):
        if number in (1, 2):
            name, info = _map_entry(as_bytes(value))
            tensors[number - 1][name] = _tensor_info(info)
    return GraphSignature(*tensors)


def _tensor_info(message: memoryview) -> TensorInfo:
    tensor, dtype = "", 0
    shape: tuple[int | None, ...] | None = ()
    for number, value in fields(message):
        if number == 1:
            tensor = as_text(value)
        elif number == 2:
            dtype = as_number(value)
        elif number == 3:
            shape = read_shape(as_bytes(value))
    return TensorInfo(tensor, DTYPES.get(dtype, f"dtype {dtype}"), shape)


def _capture(objects: list[memoryview], index: int) -> Capture | None:
    if not 0 <= index < len(objects):
        raise WireError(f"it names the object {index} of {len(objects)}")
    for number, value in fields(objects[index]):
        if number == 12:
            tensor, function = _two_texts(as_bytes(value))
            return Capture(function, tensor)
    return None


def _two_texts(message: memoryview) -> tuple[str, str]:
    """The fields 1 and 2 of a message."""
    found = {n: v for n, v in fields(message) if n in (1, 2)}
    empty = _EMPTY
    return as_text(found.get(1, empty)), as_text(found.get(2, empty))


def _numbers(message: memoryview, wanted: int) -> Iterator[int]:
    """The numbers of a repeated field, packed or not."""
    for number, value in fields(message):
        if number == wanted:
            yield from map(signed, numbers(value))


def _nodes(messages: Iterable[memoryview]) -> Mapping[str, Node]:
    nodes = {}
    for message in messages:
        name = op = ""
        inputs: list[str] = []
        attributes: dict[str, memoryview] = {}
        for number, value in fields(message):
            if number == 1:
                name = as_text(value)
            elif number == 2:
                op = as_text(value)
            elif number == 3:
                inputs.append(as_text(value))
            elif number == 5:
                key, attribute = _map_entry(as_bytes(value))
                attributes[key] = attribute
        data = tuple(i for i in inputs if not i.startswith("^"))
        nodes[name] = Node(name, op, data, attributes)
    return nodes


def _function_name(function: memoryview) -> str:
    signature = next((as_bytes(v) for n, v in fields(function) if n == 1), _EMPTY)
    return _first_text(signature)


def _map_entry(message: memoryview) -> tuple[str, memoryview]:
    key, content = "", _EMPTY
    for number, value in fields(message):
        if number == 1:
            key = as_text(value)
        elif number == 2:
            content = as_bytes(value)
    return key, content


def _first_text(message: memoryview) -> str:
    return next((as_text(v) for n, v in fields(message) if n == 1), "")
