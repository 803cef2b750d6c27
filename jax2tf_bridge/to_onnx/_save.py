"""save_onnx(): functions as ONNX models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax2tf_bridge._utils import as_integer, name_items, reraise_interrupts
from jax2tf_bridge.errors import (
    Argument,
    Message,
    SavingError,
    name_missing_package,
)
from jax2tf_bridge.portable import PortableFunction, read_constant
from jax2tf_bridge.signatures import (
    ServedArray,
    Signature,
    SignatureInputs,
    Signatures,
    export_signatures,
    format_arrays,
    keys_as_words,
    list_serving_options,
    make_example,
    match_weights,
    name_ports,
    open_params,
)
from jax2tf_bridge.storage import (
    AnyPath,
    as_path,
    check_file_path,
    check_free,
    replace_file_at,
    whole_directory,
)
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_onnx._check import compare_with_jax
from jax2tf_bridge.to_onnx._convert import ExternalData, convert_function

if TYPE_CHECKING:
    import onnx

OPSETS = range(18, 24)
"""The versions of ONNX's operations that models can use."""

_DATA_FILE = "weights.data"
_MAX_BYTES = 1_900_000_000
"""Maximum size of the arrays in a model's file; protocol buffers hold less than 2 GiB."""


@dataclass(frozen=True)
class OnnxSignature:
    """A model that `save_onnx` wrote.

    Attributes:
      path: the path of the file.
      inputs: the types of the inputs by name.
      outputs: the types of the outputs by name.
      size: the size of the file in bytes, without external weights.
      checked: how the model was checked, as "compared with JAX in ONNX Runtime 1.23".
    """

    path: AnyPath
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    size: int
    checked: str

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    def __str__(self) -> str:
        return f"({format_arrays(self.inputs)}) -> ({format_arrays(self.outputs)})"


@dataclass(frozen=True)
class OnnxModel:
    """Models that `save_onnx` wrote; print it.

    Attributes:
      path: the path of the file, or of the folder of several.
      signatures: the models by the name of the signature.
      external_size: the size of the file with the weights in bytes; 0 if the models hold them.
      opset: the version of ONNX's operations.
    """

    path: AnyPath
    signatures: Mapping[str, OnnxSignature]
    external_size: int
    opset: int

    def __post_init__(self) -> None:
        name_items(self, signatures="signature")

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        for name, signature in self.signatures.items():
            lines.append(f"  {name}{signature}")
            lines.append(f"    {signature.size / 1e6:.2f} MB, {signature.checked}")
        if self.external_size:
            lines.append(f"  weights beside it: {self.external_size / 1e6:.2f} MB")
        return "\n".join([*lines, f"  opset {self.opset}"])

    def as_json(self) -> dict[str, Any]:
        """Returns the attributes as JSON has them; types are texts, as "float32[b,3]"."""
        signatures = {
            name: {
                "path": str(signature.path),
                "inputs": {key: str(array) for key, array in signature.inputs.items()},
                "outputs": {key: str(array) for key, array in signature.outputs.items()},
                "size": signature.size,
                "checked": signature.checked,
            }
            for name, signature in self.signatures.items()
        }
        return {
            "path": str(self.path),
            "signatures": signatures,
            "external_size": self.external_size,
            "opset": self.opset,
        }


def save_onnx(
    path: str | os.PathLike[str],
    signatures: Signatures,
    *,
    params: Any = None,
    opset: int = 18,
    functions: bool = False,
    platforms: Sequence[str] | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> OnnxModel:
    """Writes an ONNX model of a function, or one model for each of several functions.

    The models use ONNX's standard operations alone, with open sizes, loops and branches as in the
    function. bfloat16 is computed as float32. Complex numbers have their real and imaginary parts
    along a new last axis of inputs and outputs. Nodes are named after the lines of the function.
    Needs the package onnx, and JAX for JAX functions.

    Args:
      path: the file, which must not exist. For several functions, a folder for the files NAME.onnx
        and one file with the weights of all, which must not exist or must be empty.
      signatures: a function, or a mapping from names to functions, as in `save`. Each function is a
        Signature, a JAX function, a PortableFunction, or the path of a .jaxfn file.
      params: the weights, as in `save`. Weights and captured arrays of more than 1.9 GB, and those
        of several functions, are stored in a file beside the models.
      opset: the version of ONNX's operations, 18 to 23.
      functions: whether functions that the user wrapped in `jax.jit`, and that are called several
        times, become functions of the model, with the arrays as inputs. The file is smaller, and
        viewers show one node for each call; ONNX Runtime takes longer to load it, OpenVINO does not
        read it, and quantisation tools leave the functions out.
      platforms: the platforms of JAX functions, as in `export`; ONNX gets the lowering for CPU.
      verify: whether to run each model once in ONNX Runtime, if it is installed, and to compare it
        with JAX, if that is installed. The inputs are `args` and `example` of the Signature, or
        else random floats and zeros, with open sizes of 2.
      overwrite: whether to replace a file or a folder of models at `path`; a folder on disk only.

    Returns:
      A description of the models. Print it.

    Raises:
      ModuleError: ONNX has no operation for an operation of a function; the text has its line.
      SavingError: the signatures or options contradict each other, or the model's results differ
        from JAX's.
      StructureError, ShapeError, DTypeError: the weights do not fit a function, or ONNX Runtime
        does not compute with the dtype of an argument.
      FileFormatError: `params` is a file of another format, or is damaged.
      ExportError: an export fails, as in `export`.
      MissingDependencyError: onnx is not installed.
      FileExistsError: `path` exists and may not be replaced.
      OSError: the file cannot be written; `path` is checked before any work.

    >>> import tempfile, numpy as np
    >>> params = {"w": np.ones((3, 2), np.float32)}
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> model = save_onnx(tempfile.mkdtemp() + "/dense.onnx", dense, params=params)
    >>> print(model.signatures["serving_default"])
    (x: float32[b,3]) -> (output_0: float32[b,2])
    """
    with name_missing_package("Writing an ONNX model"):
        import onnx  # noqa: F401
    number = as_integer(opset)
    if number is None or number not in OPSETS:
        raise SavingError(
            Message(Argument("opset"), f" must be {OPSETS[0]} to {OPSETS[-1]}. Got: {opset!r}.")
        )
    is_single = not isinstance(signatures, Mapping) or len(signatures) == 1
    if is_single:
        check_file_path(path, bytes_of="save_onnx", overwrite=overwrite)
    else:
        _check_names(signatures)
        check_free(as_path(path), overwrite=overwrite, has=_DATA_FILE)
    with reraise_interrupts() as check_interrupts, open_params(params) as weights:
        exported = export_signatures(
            signatures,
            weights,
            platforms,
            Target.converters(),
            "an ONNX model is one function of arrays that changes nothing: it has no padding, "
            "defaults, TensorFlow code or variables",
            list_refused=_list_refused_options,
        )
        check_interrupts()
        words = keys_as_words(weights)
        named = {
            name: _NamedFunction.of(
                name, each, words if each.takes_params else None, opset=number, functions=functions
            )
            for name, each in exported.items()
        }
        write = _write_file if is_single else _write_folder
        described, external_size = write(path, named, verify=verify, overwrite=overwrite)
        return OnnxModel(as_path(path), described, external_size, number)


def _check_names(signatures: Mapping[Any, Any]) -> None:
    """Raises unless each name of a function can be that of a file."""
    if not signatures:
        raise SavingError("signatures must have at least one function. Got: {}.")
    for name in signatures:
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise SavingError(
                f"The signature {name!r} needs a name for the file of its model, NAME.onnx: write "
                "a name without slashes, such as 'predict'."
            )


@dataclass(frozen=True)
class _NamedFunction:
    """A function with the names of its inputs and outputs, and its weights.

    Attributes:
      signature: the user's signature, whose function is a portable function.
      inputs: the names of flat arguments that are inputs, by index.
      outputs: the names of the flat results.
      weights: the names and values of the other flat arguments, by index.
      opset: the version of ONNX's operations.
      functions: whether repeated calls become functions of the model.
    """

    signature: Signature
    inputs: Mapping[int, str]
    outputs: Sequence[str]
    weights: Mapping[int, tuple[str, np.ndarray]]
    opset: int
    functions: bool

    @property
    def portable(self) -> PortableFunction:
        function: PortableFunction = self.signature.function
        return function

    @property
    def served_inputs(self) -> dict[str, ServedArray]:
        avals = self.portable.in_avals
        return {name: ServedArray.of_aval(avals[i]) for i, name in self.inputs.items()}

    @property
    def served_outputs(self) -> dict[str, ServedArray]:
        pairs = zip(self.outputs, self.portable.out_avals, strict=True)
        return {name: ServedArray.of_aval(aval) for name, aval in pairs}

    def convert(self, external: ExternalData | None) -> onnx.ModelProto:
        return convert_function(
            self.portable,
            self.inputs,
            self.outputs,
            self.weights,
            opset=self.opset,
            functions=self.functions,
            external=external,
        )

    def describe(self, path: AnyPath, size: int, checked: str) -> OnnxSignature:
        return OnnxSignature(path, self.served_inputs, self.served_outputs, size, checked)

    def check(self, model: bytes | Path, name: str) -> str:
        """Runs a model of it, and compares it with JAX; returns how it was checked."""
        example = make_example(name, self.signature, self.served_inputs)
        return compare_with_jax(
            model, name, self.portable, self.inputs, self.outputs, self.weights, example
        )

    @staticmethod
    def of(
        name: str, signature: Signature, params: Any, *, opset: int, functions: bool
    ) -> _NamedFunction:
        """Names the inputs and outputs of a signature.

        Raises:
          SavingError: names clash or do not exist, or there is no output.
          StructureError, ShapeError, DTypeError: the weights do not fit.
        """
        portable: PortableFunction = signature.function
        leaves = [] if params is None else match_weights(portable, params)
        ports = SignatureInputs.of_function(name, signature, params is not None).ports
        inputs = {len(leaves) + i: port.name for i, port in enumerate(ports)}
        avals, paths = portable.out_avals, [*portable.out_tree.leaf_paths()]
        results = name_ports("output", name, signature.output_names, paths, avals)
        outputs = [port.name for port in results]
        if not outputs:
            raise SavingError(
                f"{portable.name} of the signature {name} returns nothing, and ONNX Runtime loads "
                "no model without outputs. Return an array."
            )
        both = sorted({*inputs.values()} & {*outputs})
        if both:
            renames = {each: f"{each}_out" for each in both}
            raise SavingError(
                f"The signature {name} has outputs with names of inputs: {', '.join(both)}. In an "
                "ONNX model each name has one value. Rename them with input_names or output_names "
                f"of its Signature, as output_names={renames}."
            )
        taken = {*inputs.values(), *outputs}
        weights = {}
        for i, leaf in enumerate(leaves):
            unique = leaf.name if leaf.name not in taken else f"params/{leaf.name}"
            weights[i] = unique, leaf.array()
        return _NamedFunction(signature, inputs, outputs, weights, opset, functions)


def _list_refused_options(signature: Signature) -> list[str]:
    """Lists the options that an ONNX model has no place for."""
    options = list_serving_options(signature)
    options += ["updates_params"] if signature.updates_params else []
    processing = signature.processing
    options += [f for f in ("preprocess", "postprocess") if getattr(processing, f) is not None]
    options += ["seed='scalar'"] if signature.seed == "scalar" else []
    return options


def _write_file(
    path: str | os.PathLike[str],
    functions: Mapping[str, _NamedFunction],
    *,
    verify: bool,
    overwrite: bool,
) -> tuple[dict[str, OnnxSignature], int]:
    """Writes the model of the only function, as `_write_folder` does."""
    ((name, function),) = functions.items()
    portable, place = function.portable, as_path(path)
    captured = (read_constant(portable, each).nbytes for each in portable.lifted_constants)
    size = sum(captured) + sum(array.nbytes for _, array in function.weights.values())
    data_name = f"{place.name}.data"
    with contextlib.ExitStack() as stack:
        external = None
        if size > _MAX_BYTES:
            beside = place.parent / data_name
            weights = stack.enter_context(
                replace_file_at(beside, bytes_of="save_onnx", overwrite=overwrite)
            )
            external = ExternalData(data_name, weights)
        model = function.convert(external)
        data = model.SerializeToString()
        if not verify:
            checked = "not run"
        elif external is None:
            checked = function.check(data, name)
        elif isinstance(place, Path):
            weights.flush()
            checked = _check_with_weights_at(Path(weights.name), model, name, function)
        else:
            checked = "not run: its weights are not on this machine's disk"
    with replace_file_at(path, bytes_of="save_onnx", overwrite=overwrite) as file:
        file.write(data)
    described = {name: function.describe(place, len(data), checked)}
    return described, external.size if external else 0


def _check_with_weights_at(
    weights: Path, model: onnx.ModelProto, name: str, function: _NamedFunction
) -> str:
    """Checks a model while its weights still have a temporary name."""
    for tensor in model.graph.initializer:
        for fact in tensor.external_data:
            if fact.key == "location":
                fact.value = weights.name
    path = weights.with_suffix(".onnx")
    try:
        path.write_bytes(model.SerializeToString())
        return function.check(path, name)
    finally:
        path.unlink(missing_ok=True)


def _write_folder(
    path: str | os.PathLike[str],
    functions: Mapping[str, _NamedFunction],
    *,
    verify: bool,
    overwrite: bool,
) -> tuple[dict[str, OnnxSignature], int]:
    """Writes several models; returns their descriptions and the size of the file of weights."""
    described: dict[str, OnnxSignature] = {}
    place = as_path(path)
    with whole_directory(place, overwrite=overwrite, has=_DATA_FILE) as folder:
        folder.mkdir()
        with (folder / _DATA_FILE).open("wb") as file:
            external = ExternalData(_DATA_FILE, file)
            models = {name: each.convert(external) for name, each in functions.items()}
        for name, model in models.items():
            target = folder / f"{name}.onnx"
            target.write_bytes(model.SerializeToString())
            function = functions[name]
            checked = function.check(target, name) if verify else "not run"
            size = target.stat().st_size
            described[name] = function.describe(place / target.name, size, checked)
    return described, external.size
