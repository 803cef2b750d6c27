"""Reads JSON of any content value by value; a failed check names the place of the value."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge._utils._texts import number_text, read_number

_MAX_INTEGER = 2**63 - 1


class JsonProblem(Exception):
    """A problem with a value and its place, as a sentence without its full stop."""


@dataclass(frozen=True)
class JsonValue:
    """A value in JSON, with its path. Methods return a checked value, or raise JsonProblem.

    Attributes:
      value: the value, as the json module returns it.
      path: the path from the root, such as "variables[3].shape".
    """

    value: Any
    path: str

    @staticmethod
    def of(text: str) -> JsonValue:
        """Reads a whole text; an object with a duplicate field is a problem."""
        try:
            return JsonValue(json.loads(text, object_pairs_hook=_object), "")
        except RecursionError as e:
            raise JsonProblem("its values are nested too deeply") from e
        except ValueError as e:
            raise JsonProblem(f"it is not JSON: {e}") from e

    def problem(self, expected: str) -> JsonProblem:
        """Makes an error for an unexpected value."""
        return JsonProblem(
            f"{self.path or 'the whole':.200}: expected {expected}, got {reprlib.repr(self.value)}"
        )

    def get(self, name: str) -> JsonValue:
        """Reads a field of an object."""
        if not isinstance(self.value, dict) or name not in self.value:
            raise self.problem(f"an object with the field {name}")
        return JsonValue(self.value[name], f"{self.path}.{name}" if self.path else name)

    def fields(self, *names: str) -> list[JsonValue]:
        """Reads the fields of an object, which must have exactly these names."""
        if not isinstance(self.value, dict):
            raise self.problem("an object")
        if self.value.keys() != set(names):
            keys = JsonValue(", ".join(sorted(self.value)), self.path)
            raise keys.problem(f"the fields {', '.join(sorted(names))}")
        return [self.get(name) for name in names]

    def items(self) -> Iterator[tuple[str, JsonValue]]:
        """Reads the fields of an object, whatever their names."""
        if not isinstance(self.value, dict):
            raise self.problem("an object")
        for name, value in self.value.items():
            place = JsonValue(value, f"{self.path}[{name!r:.80}]")
            yield JsonValue(name, f"a name in {self.path}").text(), place

    def elements(self) -> Iterator[JsonValue]:
        """Reads the elements of a list."""
        if not isinstance(self.value, list):
            raise self.problem("a list")
        for i, value in enumerate(self.value):
            yield JsonValue(value, f"{self.path}[{i}]")

    def text(self) -> str:
        """Reads a text without lone surrogates, so that it can be printed."""
        if not isinstance(self.value, str) or re.search("[\ud800-\udfff]", self.value):
            raise self.problem("text")
        return self.value

    def integer(self, least: int, most: int = _MAX_INTEGER) -> int:
        """Reads an integer between `least` and `most`."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.problem(f"a whole number from {least} to {most}")
        return self.value

    def number_text(self) -> str:
        """Reads a number as text, in the form that `number_text` writes."""
        text = self.text()
        try:
            written = number_text(read_number(text))
        except ValueError:
            written = None
        if written != text:
            raise self.problem("a number as text")
        return text

    def flag(self) -> bool:
        """Reads true or false."""
        if not isinstance(self.value, bool):
            raise self.problem("true or false")
        return self.value

    def shape(self) -> tuple[int, ...]:
        """Reads the sizes of an array."""
        return tuple(size.integer(0) for size in self.elements())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError(f"an object has a field twice: {', '.join(k for k, _ in pairs):.200}")
    return fields
