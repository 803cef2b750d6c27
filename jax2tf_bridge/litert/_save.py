"""save_litert(): functions, or the signatures of a SavedModel, as a LiteRT model."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from jax2tf_bridge._utils import name_items, reraise_interrupts
from jax2tf_bridge.converting import copy_as_operations
from jax2tf_bridge.errors import Argument, BridgeError, Message, SavingError
from jax2tf_bridge.litert._checks import (
    Answers,
    OperationCounts,
    SaveRounded,
    ask_tensorflow,
    check_answers,
    check_ranges,
    describe_integer_ports,
    run_rounded,
)
from jax2tf_bridge.litert._convert import ConvertedModel, LiteRTSignature, convert_model
from jax2tf_bridge.litert._quantization import Quantization, QuantizationKind
from jax2tf_bridge.saved_model import VariableEntry, read_sidecar
from jax2tf_bridge.saving import (
    LITERT_VARIABLES,
    WEIGHT_SIGNATURES,
    SaveOptions,
    WeightSignature,
    format_served_signature,
    has_unused_input,
    save_functions,
)
from jax2tf_bridge.signatures import (
    ServedArray,
    Signature,
    Signatures,
    export_signatures,
    keys_as_words,
    open_model,
    open_params,
)
from jax2tf_bridge.storage import AnyPath, as_path, check_file_path, replace_file_at
from jax2tf_bridge.targets import Target


def _make_target(quantization: Quantization) -> Target:
    as_trained = quantization.kind == "as_trained"
    return replace(Target.widest(xla=False), names_lines=True, computes_as_trained=as_trained)


@dataclass(frozen=True)
class LiteRTModel:
    """Model that `save_litert` wrote; print it.

    Attributes:
      path: the path of the file.
      signatures: the signatures by name.
      size: the size of the file in bytes.
      quantize: the kind of quantization, or None.
      operations: how many operations compute with integers.
    """

    path: AnyPath
    signatures: Mapping[str, LiteRTSignature]
    size: int
    quantize: str | None
    operations: OperationCounts

    def __post_init__(self) -> None:
        name_items(self, signatures="signature")

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        lines += [
            f"  {format_served_signature(name, signature.inputs, signature.outputs)}"
            for name, signature in self.signatures.items()
        ]
        quantized = f", quantised: {self.quantize}" if self.quantize else ""
        if self.quantize in ("int8", "int16x8", "as_trained"):
            quantized += f", {self.operations}"
        return "\n".join([*lines, f"  {self.size / 1e6:.2f} MB{quantized}"])


def save_litert(
    path: str | os.PathLike[str],
    signatures: Signatures,
    *,
    params: Any = None,
    weight_signatures: Sequence[WeightSignature] | None = None,
    quantize: QuantizationKind | None = None,
    representative_data: Mapping[str, Iterable[Any]] | Iterable[Any] | None = None,
    integers_only: bool = False,
    platforms: Sequence[str] | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> LiteRTModel:
    """Writes a LiteRT model, a .tflite file of LiteRT's built-in operations.

    All signatures share one set of weights. Open sizes stay open in the model: the interpreter's
    signature runner accepts arrays of any size. LiteRT does not check requirements on sizes.

    Args:
      path: the file, which must not exist.
      signatures: a function, which becomes "serving_default", or a mapping from signature names to
        functions, as in `save`. Each function is a Signature, a JAX function, a PortableFunction,
        or the path of a .jaxfn file. Or the folder of a SavedModel, to convert all its signatures.
        Only JAX functions need JAX.
      params: the weights, as in `save`.
      weight_signatures: as in `save`; by default "get_weights" and "set_weights" if a Signature has
        updates_params, so that an application can store what the model learned.
      quantize: the treatment of float32 by TFLiteConverter. "dynamic_range" stores weights as int8
        and measures the ranges of values at each call; "float16" stores weights as float16; "int8"
        computes with integers where possible, in ranges measured with `representative_data`;
        "int16x8" does too, with 16 bits for all values but weights. "as_trained" computes with
        int8 where the function itself rounds numbers to 255 or 256 steps, as in
        quantization-aware training. Inputs and outputs keep their dtypes.
      representative_data: typical inputs for "int8" and "int16x8", for the only signature or by
        signature. Each is a dict of JAX or NumPy arrays by input name, a tuple of them in the order
        of the inputs, or the only input. Signatures that change or read weights take none, and
        compute in float32.
      integers_only: whether "int8", "int16x8" and "as_trained" take and return integers in place of
        float32, and refuse functions of which a part would be computed in floats. `scales` of a
        signature says what the integers stand for.
      platforms: the platforms of JAX functions, as in `export`; LiteRT uses the lowering for CPU.
      verify: whether to run the model once in LiteRT's interpreter and compare it with TensorFlow.
        The inputs are `args` and `example` of the Signature, or else random floats and zeros, with
        open sizes of 2. "int8" and "int16x8" are compared at the first representative inputs.
        These and "as_trained" may differ by a sixteenth of an output's range on average; other
        quantized models are only checked for NaN and infinity.
      overwrite: whether to replace a file at `path`, once the new one is complete.

    Returns:
      A description of the model: signatures and size. Print it.

    Raises:
      UnsupportedByTargetError: LiteRT has no built-in operation for an operation of the function,
        or with integers_only none on integers; the text has its line.
      SavingError: the signatures or options contradict each other; TensorFlow's converter fails; or
        the model's results differ from TensorFlow's.
      StructureError, ShapeError, DTypeError: the weights do not fit a function, or
        representative_data does not fit the inputs.
      FileFormatError: `params` is a file of another format, or is damaged.
      ModuleError: TensorFlow has no operation for an operation of a portable function.
      ExportError: an export fails, as in `export`.
      FileExistsError: `path` exists and may not be replaced.
      OSError: the file cannot be written; `path` is checked before any work.

    >>> import tempfile, numpy as np
    >>> params = {"w": np.ones((3, 2), np.float32)}
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> model = save_litert(tempfile.mkdtemp() + "/dense.tflite", dense, params=params)
    >>> print(model.signatures["serving_default"])
    (x: float32[b,3]) -> (output_0: float32[b,2])
    """
    quantization = Quantization.of(quantize, representative_data, integers_only=integers_only)
    check_file_path(path, bytes_of="save_litert", overwrite=overwrite)
    with (
        reraise_interrupts() as check_interrupts,
        tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary,
        open_model(signatures, params) as source,
    ):
        folder = Path(temporary, "model")
        if source is None:
            model, answers, save_rounded = _save_functions(
                folder,
                signatures,
                params,
                weight_signatures,
                platforms,
                quantization,
                verify=verify,
            )
        elif weight_signatures is None:
            model, answers, save_rounded = _copy_model(source, folder, quantization, verify=verify)
        else:
            raise SavingError(
                Message(
                    Argument("weight_signatures"),
                    " are for functions; a SavedModel has its own signatures. Save it with them.",
                )
            )
        check_interrupts()
        try:
            data = convert_model(model, quantization)
        except BridgeError as error:
            if source is not None:
                _check_buckets(source, error)
            raise
        check_interrupts()
        operations = OperationCounts.of(data)
        if integers_only:
            operations.check()
        model, answers = _drop_unused_inputs(model, answers)
        names = quantization.list_in_integers(answers, model.steps)
        check_ranges(data, {name: answers.pop(name) for name in names})
        rerun = functools.partial(run_rounded, save_rounded)
        check_answers(data, answers, model.steps, rerun, is_quantized=quantize is not None)
        if integers_only:
            model = describe_integer_ports(model, data)
    check_interrupts()
    with replace_file_at(path, bytes_of="save_litert", overwrite=overwrite) as file:
        file.write(data)
    return LiteRTModel(as_path(path), model.signatures, len(data), quantize, operations)


def _save_functions(
    folder: Path,
    signatures: Signatures,
    params: Any,
    weight_signatures: Sequence[WeightSignature] | None,
    platforms: Sequence[str] | None,
    quantization: Quantization,
    *,
    verify: bool,
) -> tuple[ConvertedModel, dict[str, Answers], SaveRounded]:
    with open_params(params) as weights:
        because = "LiteRT compiles no sizes and fills in no inputs"
        target = _make_target(quantization)
        exported = export_signatures(signatures, weights, platforms, target, because)
        steps = [name for name, each in exported.items() if each.updates_params]
        extra: Sequence[WeightSignature] = ("get_weights", "set_weights") if steps else ()
        options = SaveOptions(
            trainable=False,
            vjp_order=0,
            warm_up=False,
            weight_signatures=extra if weight_signatures is None else weight_signatures,
            for_litert=True,
            needs_inputs=quantization.is_measured,
        )
        saved = save_functions(folder, exported, keys_as_words(weights), options)
    served = {name: (each.inputs, each.outputs) for name, each in saved.signatures.items()}
    answers: dict[str, Answers] = {}
    if verify:  # before the graph is rewritten
        inputs = {
            name: (exported.get(name, Signature(None)), sides[0]) for name, sides in served.items()
        }
        answers = _ask_in_order(folder, inputs, quantization, steps)
    model = ConvertedModel.read(folder, served, steps=steps, quantization=quantization)

    def save_rounded(folder: Path, seed: int) -> None:
        rounding = replace(target, rounding_seed=seed)
        rounded = {
            name: replace(each, function=replace(each.function, target=rounding))
            for name, each in exported.items()
        }
        with open_params(params) as weights:
            save_functions(folder, rounded, keys_as_words(weights), options)

    return model, answers, save_rounded


_Inputs: TypeAlias = dict[str, tuple[Signature, Mapping[str, ServedArray]]]


def _ask_in_order(
    folder: Path, inputs: _Inputs, quantization: Quantization, steps: Collection[str]
) -> dict[str, Answers]:
    """Calls signatures in order, with representative inputs as their examples."""
    examples = quantization.examples({n: served for n, (_, served) in inputs.items()}, steps)
    ordered = {}
    for name in _order_signatures(inputs, steps):
        signature, served = inputs[name]
        if name in examples:
            signature = replace(signature, example=examples[name])
        ordered[name] = (signature, served)
    return ask_tensorflow(folder, ordered, steps)


def _drop_unused_inputs(
    model: ConvertedModel, answers: Mapping[str, Answers]
) -> tuple[ConvertedModel, dict[str, Answers]]:
    """Leaves out the inputs that only the calibrator needed, of signatures of weights."""

    def drop(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: replace(each, inputs={}) if has_unused_input(name, each.inputs) else each
            for name, each in arrays.items()
        }

    return replace(model, signatures=drop(model.signatures)), drop(answers)


def _order_signatures(names: Iterable[str], steps: Collection[str]) -> list[str]:
    """Orders signatures so that those that change weights come after those that only read them.

    Random weights come last: a step from them would say little.
    """

    def rank(name: str) -> int:
        if name in WEIGHT_SIGNATURES:
            return 2 + WEIGHT_SIGNATURES.index(name)
        return int(name in steps)

    return sorted(names, key=rank)


def _check_changes(variables: Iterable[VariableEntry]) -> None:
    """Raises for variables of dtypes that LiteRT lacks; `save` gives functions other dtypes."""
    for variable in variables:
        if variable.dtype in LITERT_VARIABLES:
            raise SavingError(
                f"LiteRT has no variables of {variable.dtype}, such as {variable.path}, which a "
                "signature of the SavedModel changes. Pass the functions to save_litert instead of "
                f"the SavedModel: it keeps {variable.path} as {LITERT_VARIABLES[variable.dtype]}."
            )


def _check_buckets(folder: Path, error: BridgeError) -> None:
    """Raises an error that names the buckets; the converter's error names their operations."""
    contents = read_sidecar(folder)
    names = [] if contents is None else [n for n, s in contents[0].signatures.items() if s.buckets]
    if names:
        has = (
            f"signature {names[0]} has"
            if len(names) == 1
            else f"signatures {', '.join(names)} have"
        )
        raise SavingError(
            f"The {has} buckets, and TensorFlow's converter for LiteRT fails on the code that "
            "pads. LiteRT compiles no sizes: save the model without buckets, or convert its "
            "functions."
        ) from error


def _copy_model(
    source: Path, folder: Path, quantization: Quantization, *, verify: bool
) -> tuple[ConvertedModel, dict[str, Answers], SaveRounded]:
    """Makes a SavedModel with the graph of another in operations, and its variables."""
    target = _make_target(quantization)
    copy_as_operations(source, folder, target)
    contents = read_sidecar(source)
    steps = []
    if contents is not None:
        sidecar, _ = contents
        _check_changes(sidecar.list_updated_variables())
        steps = [name for name, entry in sidecar.signatures.items() if entry.updates]
    model = ConvertedModel.read(folder, steps=steps, quantization=quantization)
    answers: dict[str, Answers] = {}
    if verify:
        inputs: _Inputs = {
            n: (Signature(None), each.inputs) for n, each in model.signatures.items()
        }
        answers = _ask_in_order(source, inputs, quantization, steps)

    def save_rounded(folder: Path, seed: int) -> None:
        copy_as_operations(source, folder, replace(target, rounding_seed=seed))

    return model, answers, save_rounded
