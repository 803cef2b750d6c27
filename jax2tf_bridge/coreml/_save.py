"""save_coreml(): a function, or the signature of a SavedModel, as a Core ML package."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, as_integer, name_items
from jax2tf_bridge.coreml._graph import make_graph
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import (
    Argument,
    Message,
    MissingDependencyError,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.frozen_graphs import FrozenSignature, ModelRuntime, freeze_signatures
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saving import format_served_signature
from jax2tf_bridge.signatures import ServedArray, Signature
from jax2tf_bridge.storage import AnyPath, as_path, check_free, whole_directory
from jax2tf_bridge.to_tensorflow import list_bodies
from shape_poly import Dim, evaluate_shape, variables_of

Precision: TypeAlias = Literal["float16", "float32"]
Sizes: TypeAlias = Mapping[str, int | tuple[int, int]]

_RUNTIME = ModelRuntime("Core ML", "save_coreml")
_MANIFEST = "Manifest.json"

_MAX_SHOWN = 8
_MAX_FLOAT16 = 65504.0
_MIN_INFINITE = 1e38
"""Least number that coremltools takes for infinity."""
_MIN_OF_MASKS = 1e6
"""Least magnitude of the negative number that an array of a mask repeats."""


@dataclass(frozen=True)
class CoreMLModel:
    """Package that `save_coreml` wrote; print it.

    Attributes:
      path: the path of the package.
      inputs, outputs: the inputs and outputs of the package by name, with its dtypes.
      size: the size of all files in bytes.
      precision: the dtype in which Core ML computes with floats.
    """

    path: AnyPath
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    size: int
    precision: Precision

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    def as_json(self) -> dict[str, Any]:
        """Returns the description as values of JSON."""
        return {
            "path": str(self.path),
            "size": self.size,
            "precision": self.precision,
            "inputs": {name: str(served) for name, served in self.inputs.items()},
            "outputs": {name: str(served) for name, served in self.outputs.items()},
        }

    def __str__(self) -> str:
        text = format_served_signature("main", self.inputs, self.outputs)
        return f"{self.path}\n  {text}\n  {self.size / 1e6:.2f} MB, computes in {self.precision}"


def save_coreml(
    path: str | os.PathLike[str],
    function: Signature | PortableFunction | Callable[..., Any] | str | os.PathLike[str],
    *,
    params: Any = None,
    sizes: Sizes | None = None,
    precision: Precision = "float32",
    platforms: Sequence[str] | None = None,
    overwrite: bool = False,
) -> CoreMLModel:
    """Writes a package of an ML program, which Core ML runs on iOS 17, macOS 14 and later.

    coremltools 9.0 converts it, on Linux as well. The package has the names of the inputs and
    outputs. Core ML computes with float32, float16, int32 and booleans: inputs of other integers
    are int32, and keys are int32 with the same bits. A scalar input has the shape (1,).

    Args:
      path: the package, "model.mlpackage", which must not exist.
      function: a Signature, a JAX function, a PortableFunction, or the path of a .jaxfn file; or
        the folder of a SavedModel with one signature. Only JAX functions need JAX.
      params: the weights, as in `save`.
      sizes: the size of each dimension variable, or its least and greatest size: {"b": (1, 8)}.
        Fixed sizes give smaller and faster programs. A variable of a SavedModel that the bridge did
        not write has the name of the input and the axis: {"x.0": 1}.
      precision: the dtype in which Core ML computes with floats, "float32" or "float16". The Neural
        Engine only computes in float16. Arrays with numbers that float16 lacks, such as weights
        beyond 65,504, are a UserWarning.
      platforms: the platforms of JAX functions, as in `export`; the lowering for CPU is used.
      overwrite: whether to replace a package at `path`, on disk only.

    Returns:
      A description of the package. Print it.

    Raises:
      UnsupportedByTargetError: coremltools cannot convert the function.
      MissingDependencyError: coremltools is not installed.
      SavingError: there are several signatures, a size is missing, or options contradict.
      StructureError, ShapeError, DTypeError: the weights do not fit the function.
      FileFormatError: `params` is a file of another format, or is damaged.
      ModuleError: TensorFlow has no operation for an operation of a portable function.
      ExportError: an export fails, as in `export`.
      FileExistsError: `path` exists and may not be replaced.
      OSError: the package cannot be written; `path` is checked before any work.
    """
    if precision not in ("float16", "float32"):
        raise SavingError(
            Message(Argument("precision"), f' must be "float16" or "float32". Got: {precision!r}.')
        )
    place = as_path(path)
    if place.suffix != ".mlpackage":
        raise SavingError(
            f"A Core ML package needs a name that ends with .mlpackage. Got: {place}."
        )
    check_free(place, overwrite=overwrite, has=_MANIFEST)
    known_sizes = read_sizes(sizes or {})
    _import_coremltools()
    frozen = freeze_signatures(function, params, platforms, _RUNTIME)
    if len(frozen) > 1:
        raise SavingError(
            f"A Core ML package has one function. Got the signatures: {', '.join(frozen)}. Pass "
            "one function."
        )
    (signature,) = frozen.values()
    clashes = signature.inputs.keys() & signature.outputs.keys()
    if clashes:
        raise SavingError(
            f"Core ML needs different names for inputs and outputs. Both have: "
            f"{', '.join(sorted(clashes))}. Rename the outputs in the function's result, or pass "
            "input_names in the Signature."
        )
    program = _convert(signature, known_sizes, precision)
    with whole_directory(place, overwrite=overwrite, has=_MANIFEST) as written:
        # coremltools only writes to names that end so.
        within = Path(written, place.name)
        program.save(str(within))
        for part in within.iterdir():
            part.rename(Path(written, part.name))
        within.rmdir()
        size = sum(file.stat().st_size for file in Path(written).rglob("*") if file.is_file())
    inputs, outputs = _describe(program, signature, known_sizes)
    return CoreMLModel(place, inputs, outputs, size, precision)


def _describe(
    program: Any, signature: FrozenSignature, sizes: Sizes
) -> tuple[dict[str, ServedArray], dict[str, ServedArray]]:
    """Returns the inputs and outputs of a package, with its dtypes and fixed sizes."""
    kinds = _import_coremltools().proto.FeatureTypes_pb2.ArrayFeatureType.ArrayDataType
    description = program.get_spec().description
    dtypes = {
        feature.name: kinds.Name(feature.type.multiArrayType.dataType).lower()
        for feature in (*description.input, *description.output)
    }
    inputs, outputs = (
        {
            name: ServedArray(dtypes[name], _fix(served.shape, sizes))
            for name, served in side.items()
            if name in dtypes
        }
        for side in (signature.inputs, signature.outputs)
    )
    scalars = {name: ServedArray(dtypes[name], (1,)) for name in inputs if inputs[name].shape == ()}
    return inputs | scalars, outputs


def read_sizes(sizes: Any) -> Sizes:
    """Returns sizes as Python integers; ranges of one size are fixed.

    Raises:
      SavingError: there is something else.
    """
    if not isinstance(sizes, Mapping):
        raise _make_size_error("", "a dict of sizes by name", sizes)
    known: dict[str, int | tuple[int, int]] = {}
    for name, size in sizes.items():
        bounds = size if isinstance(size, (tuple, list)) else (size, size)
        least, greatest = map(as_integer, bounds) if len(bounds) == 2 else (None, None)
        if least is None or greatest is None or not 1 <= least <= greatest:
            raise _make_size_error(f"[{name!r}]", "a size of at least 1, or a range", size)
        known[name] = least if least == greatest else (least, greatest)
    return known


def _make_size_error(place: str, expected: str, value: Any) -> SavingError:
    return SavingError(
        Message(
            *(Argument("sizes"), f"{place} must be {expected}, as "),
            *(Argument("sizes", {"b": "1..8"}, "{'b': (1, 8)}"), f". Got: {value!r}."),
        )
    )


def _fix(shape: tuple[Dim | None, ...] | None, sizes: Sizes) -> tuple[Dim | None, ...] | None:
    """Returns a shape with the sizes that are fixed."""
    if shape is None:
        return None
    fixed = {key: size for key, size in sizes.items() if isinstance(size, int)}
    known = [None if size is None else evaluate_shape([size], fixed)[0] for size in shape]
    return tuple(old if new is None else new for new, old in zip(known, shape, strict=True))


def _import_coremltools() -> Any:
    try:
        import coremltools
    except ModuleNotFoundError as e:
        if e.name != "coremltools":
            raise
        raise MissingDependencyError("coremltools", "coreml", "Writing a Core ML package") from e
    return coremltools


def _convert(signature: FrozenSignature, sizes: Sizes, precision: Precision) -> Any:
    """Converts the graph of a signature; returns coremltools' model."""
    ct = _import_coremltools()
    from jax2tf_bridge.coreml._operations import register_operations

    register_operations()
    shapes = find_shapes(signature.inputs, sizes)
    ranges: dict[int | str, Any] = {
        # coremltools takes a name of a symbol once in a process after an error.
        key: ct.RangeDim(*bounds, default=bounds[0])
        for key, bounds in sizes.items()
        if not isinstance(bounds, int)
    }
    known = {
        name: [size if isinstance(size, int) else None for size in shape] or [1]
        for name, shape in shapes.items()
    }
    function = make_graph(signature.graph, known)
    outputs = list(signature.outputs)
    results = {name: function.graph.get_tensor_by_name(f"{name}:0").dtype for name in outputs}
    graph = tf.compat.v1.graph_util.extract_sub_graph(function.graph.as_graph_def(), outputs)
    used = {node.name for node in graph.node}
    dtypes = {tensor.op.name: tensor.dtype.as_numpy_dtype for tensor in function.inputs}
    if precision == "float16":
        _warn_of_large_numbers(graph)
    inputs = [
        ct.TensorType(
            name, [ranges.get(size, size) for size in shape] or [1], np.dtype(dtypes[name]).type
        )
        for name, shape in shapes.items()
        if name in used
    ]
    try:
        return ct.convert(
            graph,
            source="tensorflow",
            convert_to="mlprogram",
            inputs=inputs,
            # With float16, outputs would have that dtype too.
            outputs=[
                ct.TensorType(name, dtype=np.float32 if dtype == tf.float32 else None)
                for name, dtype in results.items()
            ],
            compute_precision=ct.precision.FLOAT16
            if precision == "float16"
            else ct.precision.FLOAT32,
            minimum_deployment_target=ct.target.iOS17,
            skip_model_load=True,
        )
    except Exception as e:
        raise _explain(e, graph) from e


def _warn_of_large_numbers(graph: Any) -> None:
    """Warns of weights and other constant arrays with numbers beyond the range of float16."""
    arrays = list_large_arrays(graph)
    if arrays:
        warnings.warn(
            Message(
                "float16 ends at 65,504, and the function has arrays with larger numbers:"
                f"{format_bullets(arrays, _MAX_SHOWN)}\nCore ML computes with these in float32, "
                "and converts the results to float16, where they may be infinite. Divide the "
                "arrays by a number, and multiply the results by it at the end; or pass ",
                Argument("precision", "float32"),
                ".",
            ),
            stacklevel=4,
        )


def list_large_arrays(graph: Any) -> list[str]:
    """Describes the constant arrays of a GraphDef with numbers beyond the range of float16.

    Single numbers are left out, and masks, which repeat one negative number: they are right if they
    are infinite.
    """
    texts = []
    for body in list_bodies(graph):
        users = {source.partition(":")[0]: node for node in body for source in node.input}
        for node in body:
            if node.op != "Const" or node.attr["dtype"].type != tf.float32.as_datatype_enum:
                continue
            array = tf.make_ndarray(node.attr["value"].tensor)
            size = np.abs(array)
            large = np.unique(array[(size > _MAX_FLOAT16) & (size < _MIN_INFINITE)])
            is_mask = large.size == 1 and large[0] <= -_MIN_OF_MASKS
            user = _find_user(node.name, users)
            if array.size == 1 or large.size == 0 or is_mask or user is None:
                continue
            line = find_source_line(user.name)
            text = f"{array_type_text('float32', array.shape)}, up to {np.abs(large).max():.3g}"
            texts.append(f"{text}, at {line}" if line else text)
    return texts


def _find_user(name: str, users: Mapping[str, Any]) -> Any | None:
    """Returns the node that uses a constant, perhaps through identities."""
    user = users.get(name)
    while user is not None and user.op == "Identity":
        user = users.get(user.name)
    return user


def _explain(error: Exception, graph: Any) -> UnsupportedByTargetError:
    """Makes an error of one of coremltools, with the line of the function if it names a node."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    kind = re.search(r"TF op '(\w+)'", text)
    nodes = (node for body in list_bodies(graph) for node in body)
    names = [node.name for node in nodes if kind and node.op == kind[1]]
    named = [name for name in re.findall(r"[\"']([\w/.]+)[\"']", text) if "/" in name]
    line = next(filter(None, map(find_source_line, [*names, *named])), None)
    place = f" at {line}" if line else ""
    return UnsupportedByTargetError(
        Message(
            f"coremltools cannot convert the function{place}: {type(error).__name__}: {text}. "
            "Write this part of the function with other operations, or fix its sizes (",
            *(Argument("sizes"), ")."),
        ),
        operation=kind[1] if kind else "ML program",
        source=line,
    )


def find_shapes(inputs: Mapping[str, ServedArray], sizes: Sizes) -> dict[str, list[int | str]]:
    """Returns the shapes of the inputs, whose open sizes are keys of `sizes`.

    Raises:
      SavingError: a size is missing or unknown, or depends on an open one.
    """
    fixed = {key: size for key, size in sizes.items() if isinstance(size, int)}
    shapes: dict[str, list[int | str]] = {}
    used: set[str] = set()
    for name, served in inputs.items():
        if served.shape is None:
            raise SavingError(f"Core ML needs the rank of the input {name}, which is open.")
        shape = shapes[name] = []
        for axis, size in enumerate(served.shape):
            if isinstance(size, int):
                shape.append(size)
                continue
            key = f"{name}.{axis}" if size is None else str(size)
            variables = {key} if size is None else variables_of(size)
            missing = sorted(variables - sizes.keys())
            if missing:
                size_name = missing[0]
                code = f"sizes={{{size_name!r}: (1, 8)}}"
                raise SavingError(
                    Message(
                        f"Core ML needs the size {size_name} of the input {name}: {served}, or its "
                        "range. Pass ",
                        *(Argument("sizes", {size_name: 1}), ", or "),
                        *(Argument("sizes", {size_name: "1..8"}, code), "."),
                    )
                )
            used |= variables
            (value,) = (fixed.get(key),) if size is None else evaluate_shape([size], fixed)
            if value is None and key not in sizes:
                raise SavingError(
                    Message(
                        f"The size {key} of the input {name} depends on a range, and Core ML has "
                        f"no such sizes. Fix {', '.join(sorted(variables - fixed.keys()))} in ",
                        *(Argument("sizes"), "."),
                    )
                )
            shape.append(key if value is None else value)
    unknown = sorted(sizes.keys() - used)
    if unknown:
        known = ", ".join(sorted(used)) or "none"
        raise SavingError(
            Message(
                Argument("sizes"),
                f" has {unknown[0]!r}, which is not an open size of the function. It has: {known}.",
            )
        )
    return shapes
