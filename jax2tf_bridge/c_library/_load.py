"""load_library(): calls a compiled C library from Python, without JAX and TensorFlow."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge._utils import ItemsByName, did_you_mean
from jax2tf_bridge.errors import (
    BridgeError,
    DTypeError,
    FileFormatError,
    ModuleError,
    ShapeError,
    StructureError,
    format_bullets,
    make_path_error,
)
from shape_poly import Dim, Integers, evaluate_shape, make_plan, shape_text, solve, symbolic_shape

_OK, _NO_MEMORY, _NO_WEIGHTS, _NO_SIZE = range(4)

_CASTS = {"bool": "b", "int": "biu", "uint": "biu", "float": "biuf", "complex": "biufc"}
"""Kinds of NumPy arrays of Python's numbers that become a dtype, by the kind of the dtype."""


class LoadedLibrary:
    """A compiled library in this process; `load_library` returns it.

    Each signature is an entry: `library["serving_default"](x=x)` takes arrays by name, and returns
    arrays by name. Calling the library itself calls its "serving_default", or its only signature.
    Each thread needs a library of its own, which is another handle of the same weights.

    Attributes:
      path: the path of the shared library.
      signatures: the signatures by name; their `repr` shows their inputs and outputs.
    """

    def __init__(self, path: Path, weights: Path | None) -> None:
        self.path = path
        try:
            library = ctypes.CDLL(str(path))
            describe = library.jax2tf_bridge_library
        except (OSError, AttributeError) as e:
            if not path.exists():
                text = "does not exist. Write it with compile_library(..., shared=True)"
                raise make_path_error(errno.ENOENT, text, path) from e
            raise FileFormatError(
                f"{path} is not a library that compile_library built for this machine: {e}",
                file=str(path),
            ) from e
        describe.restype = ctypes.c_char_p
        description = json.loads(describe())
        name = description["name"]
        self._library = library
        self._free = getattr(library, f"{name}_free")
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._message = getattr(library, f"{name}_message")
        self._message.argtypes, self._message.restype = [ctypes.c_void_p], ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        new = getattr(library, f"{name}_new")
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        file = None if weights is None else os.fsencode(weights)
        status = new(ctypes.byref(self._handle), file)
        if status != _OK:
            raise self.make_error(status)
        self.signatures: Mapping[str, CompiledFunction] = MappingProxyType(
            ItemsByName(
                "signature",
                {n: CompiledFunction(self, n, s) for n, s in description["signatures"].items()},
            )
        )

    def __getitem__(self, name: str) -> CompiledFunction:
        return self.signatures[name]

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Calls the signature "serving_default", or the only one; see `CompiledFunction`."""
        names = list(self.signatures)
        name = names[0] if len(names) == 1 else "serving_default"
        if name not in self.signatures:
            raise StructureError(
                f"{self.path} has the signatures {', '.join(names)}. Call one of them, as "
                f"library[{names[0]!r}](...)."
            )
        return self.signatures[name](**inputs)

    def __repr__(self) -> str:
        return "\n".join([f"LoadedLibrary {self.path}", *map(repr, self.signatures.values())])

    def __del__(self) -> None:
        if handle := self.__dict__.get("_handle"):
            self._free(handle)
            self._handle = ctypes.c_void_p()

    def get_function(self, prefix: str) -> Any:
        """Returns the C function that runs a signature."""
        function = getattr(self._library, f"{prefix}_run")
        function.argtypes = [ctypes.c_void_p] * 3
        return function

    @property
    def handle(self) -> ctypes.c_void_p:
        """The handle of the C library."""
        return self._handle

    def make_error(self, status: int) -> BridgeError:
        """Makes the error for a status of the C library."""
        text = self._message(self._handle).decode(errors="replace")
        kind = {_NO_SIZE: ShapeError, _NO_WEIGHTS: FileFormatError}.get(status, ModuleError)
        error: BridgeError = kind(text)
        return error


class CompiledFunction:
    """A signature of a compiled library: takes arrays by name, and returns arrays by name.

    Python's numbers are converted, if that changes no integer. Arrays must have the dtype of the
    input. Those in C order are passed without a copy: an aligned array is read where it is, and
    others are copied once more in the library. bfloat16 needs ml_dtypes.

    Attributes:
      inputs: the dtype and the shape of each input, as text.
      outputs: the dtype and the shape of each output.
    """

    def __init__(self, library: LoadedLibrary, name: str, entry: Mapping[str, Any]) -> None:
        self._owner = library
        self._name = name
        self._run = library.get_function(entry["prefix"])
        self._variables: list[str] = list(entry["variables"])
        self._inputs = {n: (d, symbolic_shape(s)) for n, (d, s) in entry["inputs"].items()}
        self._outputs = {n: (d, symbolic_shape(s)) for n, (d, s) in entry["outputs"].items()}
        self.inputs = MappingProxyType(
            ItemsByName("input", {n: (d, s) for n, (d, s) in entry["inputs"].items()})
        )
        self.outputs = MappingProxyType(
            ItemsByName("output", {n: (d, s) for n, (d, s) in entry["outputs"].items()})
        )
        self._plan = make_plan([shape for _, shape in self._inputs.values()], None, ())

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Calls the function.

        Raises:
          StructureError: an input is missing or unknown.
          DTypeError, ShapeError: an input has another dtype or shape, or no program is compiled for
            the sizes.
          ModuleError: the program failed.
        """
        self._check_names(inputs)
        arrays = [self._convert(name, inputs[name]) for name in self._inputs]
        sizes = self._solve([array.shape for array in arrays])
        results = {
            name: np.empty(_evaluate(shape, sizes), _find_numpy_dtype(dtype))
            for name, (dtype, shape) in self._outputs.items()
        }
        values = [sizes[v] for v in self._variables]
        ins = np.array(values + [a.ctypes.data for a in arrays], np.int64)
        outs = np.array([r.ctypes.data for r in results.values()], np.int64)
        status = self._run(self._owner.handle, ins.ctypes.data, outs.ctypes.data)
        if status != _OK:
            raise self._owner.make_error(status)
        return results

    def __repr__(self) -> str:
        sides = [
            ", ".join(
                f"{n}: {d}[{shape_text(s)[1:-1].rstrip(',').replace(' ', '')}]"
                for n, (d, s) in side.items()
            )
            for side in (self._inputs, self._outputs)
        ]
        return f"  {self._name}({sides[0]}) -> ({sides[1]})"

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        problems = [f"the input {n!r} is missing" for n in self._inputs if n not in inputs]
        problems += [
            f"the input {n!r} is not expected{did_you_mean(n, self._inputs, quoted=True)}"
            for n in inputs
            if n not in self._inputs
        ]
        if problems:
            raise StructureError(f"{self._name}:{format_bullets(problems)}")

    def _convert(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        dtype, shape = self._inputs[name]
        try:
            array = np.asarray(value)
        except ValueError as e:
            raise ShapeError(
                f"{self._name}: {name}: its lists have different lengths. Pass lists of one length."
            ) from e
        if isinstance(value, (bool, int, float, complex, list, tuple)):
            array = self._convert_numbers(name, array)
        if array.dtype.name != dtype:
            is_array = isinstance(value, np.ndarray | np.generic)
            advice = f"{name}.astype({dtype!r})" if is_array else f"np.asarray({name}, {dtype!r})"
            if array.dtype.kind in "OSUMm":  # NumPy cannot cast these, or makes NaN of None
                advice = f"numbers that {dtype} holds"
            raise DTypeError(
                f"{self._name}: {name}: expected {dtype}, got {array.dtype.name}. Pass {advice}."
            )
        if array.ndim != len(shape):
            raise self._make_shape_error(name, array.shape)
        # The name of a dtype does not tell its byte order.
        return np.ascontiguousarray(array, _find_numpy_dtype(dtype)).reshape(array.shape)

    def _convert_numbers(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Converts Python's numbers to the dtype of an input, if that changes no integer."""
        dtype, _ = self._inputs[name]
        row = find_dtype(dtype)
        assert row is not None
        if array.size and array.dtype.kind not in _CASTS[row.kind]:
            return array
        converted: np.ndarray[Any, Any] = array.astype(row.numpy())
        if row.is_integer and (converted != array).any():
            raise DTypeError(
                f"{self._name}: {name}: {dtype} does not hold {array[converted != array].flat[0]}. "
                "Pass numbers that it holds."
            )
        return converted

    def _solve(self, shapes: list[tuple[int, ...]]) -> Mapping[str, int]:
        expected = [shape for _, shape in self._inputs.values()]
        sizes = solve(self._plan, shapes, Integers(), smallest=0).values
        for name, shape, actual in zip(self._inputs, expected, shapes, strict=True):
            if evaluate_shape(shape, sizes) != actual:
                raise self._make_shape_error(name, actual)
        return sizes

    def _make_shape_error(self, name: str, actual: tuple[int, ...]) -> ShapeError:
        expected = shape_text(self._inputs[name][1])
        return ShapeError(
            f"{self._name}: {name}: expected shape {expected}, got {shape_text(actual)}."
        )


def _evaluate(shape: tuple[Dim, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(max(0, size) for size in evaluate_shape(shape, sizes) if size is not None)


def _find_numpy_dtype(name: str) -> np.dtype[Any]:
    row = find_dtype(name)
    assert row is not None
    return row.numpy()


def load_library(
    path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None
) -> LoadedLibrary:
    """Loads a shared library that `compile_library(..., shared=True)` built.

    Neither JAX nor TensorFlow is needed.

    Args:
      path: the library, "predict_lib/predict.so".
      weights: the file of the weights, if they are not in the library.

    Returns:
      The library: `library(x=x)` returns the outputs by name.

    Raises:
      FileNotFoundError: there is no such file.
      FileFormatError: the file is no such library, or is built for another machine; or the weights
        belong to another library.

    `compile_library` has an example.
    """
    file = Path(path).absolute()
    return LoadedLibrary(file, None if weights is None else Path(weights))
