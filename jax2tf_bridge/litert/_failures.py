"""Explains failures of TensorFlow's converter in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import (
    BridgeError,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.to_tensorflow import find_source_line

_MAX_SHOWN = 8
_NO_BUILT_IN = re.compile(r"'(tf\.\w+)' op is neither a custom op nor a flex op")
_OTHER = re.compile(r"'(tfl?\.\w+)' op (.*)")
_ELEMENT = re.compile(r"tensor<(?:[^<>]*x)?(complex<\w+>|\w+)>")
_DTYPES = {"f": "float", "ui": "uint", "i": "int", "bf": "bfloat"}
_OTHER_DTYPES = {"i1": "bool", "complex<f32>": "complex64", "complex<f64>": "complex128"}


@dataclass(frozen=True)
class _Lacking:
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


def conversion_error(error: Exception, callers: Mapping[str, str]) -> BridgeError | None:
    """Converts an error of the converter to the bridge's; returns None for other errors.

    Args:
      error: the error.
      callers: maps each signature to the function of the graph that it calls.
    """
    diagnostics = getattr(error, "errors", None)
    if type(error).__name__ != "ConverterError" or diagnostics is None:
        return None
    missing = list(dict.fromkeys(_lacking(diagnostics, callers)))
    if not missing:
        places = list(dict.fromkeys(_describe_failures(diagnostics, callers)))[:_MAX_SHOWN]
        said = format_bullets(places) if places else f" {_reason(error)}"
        return SavingError(
            f"TensorFlow {tf.__version__}'s converter for LiteRT failed:{said}\nWrite this part of "
            "the function with other operations, or save a SavedModel for where TensorFlow is "
            "(save)."
        )
    lines = [str(each) for each in missing[:_MAX_SHOWN]]
    if len(missing) > _MAX_SHOWN:
        lines.append(f"and {len(missing) - _MAX_SHOWN} more")
    return UnsupportedByTargetError(
        f"LiteRT has no built-in operation for:{format_bullets(lines)}\nWrite this part of the "
        "function with other operations, or save a SavedModel for where TensorFlow is (save).",
        operation=missing[0].operation,
        source=missing[0].line,
    )


def _lacking(diagnostics: Any, callers: Mapping[str, str]) -> Iterator[_Lacking]:
    for each in diagnostics:
        match = _NO_BUILT_IN.search(each.error_message)
        if match is None:
            continue
        yield _Lacking(match[1], _dtype(each.error_message), *_place(each, callers))


def _place(diagnostic: Any, callers: Mapping[str, str]) -> tuple[str | None, str]:
    """Returns the user's line and the signature of a diagnostic."""
    names = [call.name for call in diagnostic.location.call]
    line = next(filter(None, (find_source_line(name.partition("@")[0]) for name in names)), None)
    inside = {name.partition("@")[2] for name in names}
    return line, next((s for s, function in callers.items() if function in inside), "")


def _describe_failures(diagnostics: Any, callers: Mapping[str, str]) -> Iterator[str]:
    """Yields operation, line, signature and the converter's text of other failures."""
    for each in diagnostics:
        match = _OTHER.search(each.error_message)
        if match is not None:
            place = _Lacking(match[1], "", *_place(each, callers))
            yield f"{place}: {match[2][:200]}"


def _dtype(text: str) -> str:
    _, _, types = text.partition(" : (")
    elements = _ELEMENT.findall(types.partition(") -> ")[0])
    if not elements:
        return ""
    element = next((each for each in elements if each != "i1"), "i1")
    parts = re.fullmatch(r"(f|ui|i|bf)(\d+)", element)
    if element in _OTHER_DTYPES or parts is None:
        return _OTHER_DTYPES.get(element, element)
    return f"{_DTYPES[parts[1]]}{parts[2]}"


def _reason(error: Exception) -> str:
    """Returns the first sentence of the converter's text."""
    match = re.search(r"error: (?:loc\(.*?\)+: )?(.*)", str(error))
    return (match[1] if match else str(error).strip().partition("\n")[0])[:300]
