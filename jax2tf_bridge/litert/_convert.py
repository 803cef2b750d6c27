"""Runs TensorFlow's converter on a SavedModel of TensorFlow's own operations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE
from jax2tf_bridge._utils import name_items
from jax2tf_bridge.converting import edit_graph
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import (
    BridgeError,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.inspecting import ModelField, SignatureDefField, SubGraphField
from jax2tf_bridge.litert._forms import replace_lacking
from jax2tf_bridge.litert._quantization import Quantization
from jax2tf_bridge.saving import has_unused_input
from jax2tf_bridge.serialization import FlatBufferReader
from jax2tf_bridge.signatures import ServedArray, format_arrays

DEPRECATED = r"\s*Warning: tf.lite.Interpreter is deprecated"
"""Start of TensorFlow's warning that an interpreter is deprecated."""
_INTERNAL = "__saved_model"
"""Prefix of TensorFlow's own entries among signatures."""


@dataclass(frozen=True)
class LiteRTSignature:
    """Signature of a LiteRT model.

    Attributes:
      inputs, outputs: the inputs and outputs by name.
      scales: for inputs and outputs that stand for floats, by name, the scale and the zero point:
        the numbers are `scale * (integer - zero_point)`.
    """

    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    scales: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    def __str__(self) -> str:
        return f"({format_arrays(self.inputs)}) -> ({format_arrays(self.outputs)})"


@dataclass(frozen=True)
class ConvertedModel:
    """SavedModel to convert; its graph consists of built-in operations as far as possible.

    Attributes:
      folder: the path of the SavedModel.
      signatures: the signatures by name.
      callers: maps each signature to the function of the graph that it calls.
      steps: the signatures that change weights; if there are any, weights stay variables.
    """

    folder: Path
    signatures: Mapping[str, LiteRTSignature]
    callers: Mapping[str, str]
    steps: Collection[str] = ()

    @staticmethod
    def read(
        folder: Path,
        served: Mapping[str, Any] | None = None,
        *,
        steps: Collection[str] = (),
        quantization: Quantization,
    ) -> ConvertedModel:
        """Rewrites the graph of a SavedModel in place.

        Args:
          folder: the SavedModel, whose graph is replaced.
          served: the inputs and outputs of its signatures; by default they are read from the graph.
          steps: the signatures that change weights.
          quantization: the requested quantization.

        Raises:
          SavingError: it has no signature, or rounds no numbers for "as_trained".
          ModuleError: the installed TensorFlow has no SavedModel protocol buffer.
        """
        with edit_graph(folder, "LiteRT models") as graph:
            names = sorted(n for n in graph.signature_def if not n.startswith(_INTERNAL))
            if not names:
                raise SavingError("The SavedModel has no signature. Save it with one.")
            quantization.prepare_graph(graph.graph_def)
            replace_lacking(graph.graph_def)
        called = {n.name: n.attr["f"].func.name for n in graph.graph_def.node if "f" in n.attr}
        signatures, callers = {}, {}
        for name in served or names:
            definition = graph.signature_def[name]
            sides = (
                served[name]
                if served
                else (_describe_arrays(definition.inputs), _describe_arrays(definition.outputs))
            )
            signatures[name] = LiteRTSignature(*sides)
            sources = {info.name.partition(":")[0] for info in definition.outputs.values()}
            callers[name] = next((called.get(source, "") for source in sources), "")
        return ConvertedModel(folder, signatures, callers, steps)


def _describe_arrays(arrays: Mapping[str, Any]) -> dict[str, ServedArray]:
    return {
        name: ServedArray.of_tensor(
            tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
        )
        for name, info in sorted(arrays.items())
    }


def convert_model(model: ConvertedModel, quantization: Quantization) -> bytes:
    """Converts a SavedModel.

    Raises:
      UnsupportedByTargetError: LiteRT has no built-in operation for an operation.
      SavingError: an input or output has no elements, or the converter fails for another reason.
      StructureError, ShapeError, DTypeError: representative data does not fit.
    """
    _check_elements(model.signatures)
    names = list(model.signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(model.folder), signature_keys=names)
    quantization.apply(converter, {n: s.inputs for n, s in model.signatures.items()}, model.steps)
    if model.steps:
        converter.experimental_enable_resource_variables = True
    try:
        with warnings.catch_warnings():
            # TensorFlow measures ranges with an interpreter that warns of its own deprecation.
            warnings.filterwarnings("ignore", DEPRECATED)
            data = bytes(converter.convert())
    except Exception as e:
        error = _explain(e, model.callers) or quantization.explain(e)
        if error is None:
            raise
        raise error from e
    signatures = model.signatures.items()
    return _drop_inputs(data, [n for n, each in signatures if has_unused_input(n, each.inputs)])


def _drop_inputs(data: bytes, names: Collection[str]) -> bytes:
    """Removes all inputs of the named signatures, which do not use them."""
    if not names:
        return data
    model = FlatBufferReader(data, what="A LiteRT model").root()
    subgraphs = model.tables(ModelField.SUBGRAPHS)
    changed = bytearray(data)
    for signature in model.tables(ModelField.SIGNATURE_DEFS):
        if signature.string(SignatureDefField.SIGNATURE_KEY) in names:
            subgraph = subgraphs[signature.integer(SignatureDefField.SUBGRAPH_INDEX)]
            for position in (
                signature.vector_position(SignatureDefField.INPUTS),
                subgraph.vector_position(SubGraphField.INPUTS),
            ):
                assert position is not None  # they had an input
                changed[position : position + 4] = bytes(4)  # the length
    return bytes(changed)


def _check_elements(signatures: Mapping[str, LiteRTSignature]) -> None:
    """Raises for inputs and outputs that never have elements.

    LiteRT writes beyond its memory for some of them, and the process may die later.
    """
    for name, signature in signatures.items():
        sides = {**signature.inputs, **signature.outputs}
        empty = {key: served for key, served in sides.items() if 0 in (served.shape or ())}
        if empty:
            raise SavingError(
                f"LiteRT has no arrays without elements: {format_arrays(empty)} of the signature "
                f"{name}. Leave {'them' if len(empty) > 1 else 'it'} out."
            )


# Explanations of failures.


_MAX_SHOWN = 8
_NO_BUILT_IN = re.compile(r"'(tf\.\w+)' op is neither a custom op nor a flex op")
_OTHER = re.compile(r"'(tfl?\.\w+)' op (.*)")
_ELEMENT = re.compile(r"tensor<(?:[^<>]*x)?(complex<\w+>|\w+)>")


@dataclass(frozen=True)
class _LackingOperation:
    """Operation without a built-in operation of LiteRT.

    Attributes:
      operation: the kind, such as "tf.Qr".
      dtype: the dtype of its first operand that is not a flag; "" if unknown.
      line: the user's source line; None if unknown.
      signature: the signature; "" if unknown.
    """

    operation: str
    dtype: str
    line: str | None
    signature: str

    def __str__(self) -> str:
        dtype = f" of {self.dtype}" if self.dtype else ""
        line = f" at {self.line}" if self.line else ""
        signature = f" (signature {self.signature})" if self.signature else ""
        return f"{self.operation}{dtype}{line}{signature}"


def _explain(error: Exception, callers: Mapping[str, str]) -> BridgeError | None:
    """Converts an error of the converter to the bridge's; returns None for other errors.

    Args:
      error: the error.
      callers: maps each signature to the function of the graph that it calls.
    """
    diagnostics = getattr(error, "errors", None)
    if type(error).__name__ != "ConverterError" or diagnostics is None:
        return None
    missing = list(dict.fromkeys(_find_lacking(diagnostics, callers)))
    if not missing:
        places = list(dict.fromkeys(_describe_failures(diagnostics, callers)))[:_MAX_SHOWN]
        reason = format_bullets(places) if places else f" {_find_reason(error)}"
        return SavingError(
            f"TensorFlow {tf.__version__}'s converter for LiteRT failed:{reason}\nWrite this part "
            "of the function with other operations, or save a SavedModel for where TensorFlow is "
            "(save)."
        )
    lines = format_bullets([*map(str, missing)], _MAX_SHOWN)
    return UnsupportedByTargetError(
        f"LiteRT has no built-in operation for:{lines}\nWrite this part of the "
        "function with other operations, or save a SavedModel for where TensorFlow is (save).",
        operation=missing[0].operation,
        source=missing[0].line,
    )


def _find_lacking(diagnostics: Any, callers: Mapping[str, str]) -> Iterator[_LackingOperation]:
    for each in diagnostics:
        if match := _NO_BUILT_IN.search(each.error_message):
            dtype = _find_dtype(each.error_message)
            yield _LackingOperation(match[1], dtype, *_find_place(each, callers))


def _find_place(diagnostic: Any, callers: Mapping[str, str]) -> tuple[str | None, str]:
    """Returns the user's line and the signature of a diagnostic."""
    names = [call.name for call in diagnostic.location.call]
    line = next(filter(None, (find_source_line(name.partition("@")[0]) for name in names)), None)
    inside = {name.partition("@")[2] for name in names}
    return line, next((s for s, function in callers.items() if function in inside), "")


def _describe_failures(diagnostics: Any, callers: Mapping[str, str]) -> Iterator[str]:
    """Yields operation, line, signature and the converter's text of other failures."""
    for each in diagnostics:
        if match := _OTHER.search(each.error_message):
            place = _LackingOperation(match[1], "", *_find_place(each, callers))
            yield f"{place}: {match[2][:200]}"


def _find_dtype(text: str) -> str:
    """Returns the dtype of the first operand that is not a flag, in the converter's text."""
    _, _, types = text.partition(" : (")
    elements = _ELEMENT.findall(types.partition(") -> ")[0])
    if not elements:
        return ""
    element = next((element for element in elements if element != "i1"), "i1")
    return DTYPES_BY_ELEMENT_TYPE.get(element, element)


def _find_reason(error: Exception) -> str:
    match = re.search(r"error: (?:loc\(.*?\)+: )?(.*)", str(error))
    return (match[1] if match else str(error).strip().partition("\n")[0])[:300]
