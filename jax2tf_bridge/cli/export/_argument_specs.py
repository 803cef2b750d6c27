"""Parses --args, --kwargs and --shapes; needs no JAX."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jax2tf_bridge._dtypes import ALL_DTYPES, Kind
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.cli._commands import UsageError
from jax2tf_bridge.portable import AUTO
from shape_poly import Dim, is_symbolic_dim, symbolic_shape

_LETTERS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {"float": ("f",), "int": ("i", "s"), "uint": ("u", "ui"), "complex": ("c",)}
)
_SHORT = {"bool": "bool", "b1": "bool", "i1": "bool", "pred": "bool"} | {
    short: row.name
    for row in ALL_DTYPES
    if row.element_type is not None
    for letter in _LETTERS.get(row.kind, ())
    # f8_e4m3 and f8e4m3
    for name in (row.name, row.name.replace("_", ""))
    for short in (name.replace(row.kind, letter, 1),)
}
DTYPES: Mapping[str, str] = MappingProxyType({**_SHORT, **{name: name for name in _SHORT.values()}})
"""Dtypes by their short (f32, bf16, u8) and long names."""

_ARRAY = re.compile(r"\s*(?P<dtype>key<\w+>|[A-Za-z]\w*)\s*(?:\[(?P<shape>.*)\])?\s*", re.DOTALL)
_UNNAMED = re.compile(r"(?:^|,)\s*(None|\?|-\s*1)\s*(?=,|$)")
"""Notations of other tools for an open size."""
_FORM = "a dtype and sizes or names of sizes, as 'f32[b,28]', 'int32[4]' or 'bool' for a scalar"


@dataclass(frozen=True)
class ArgumentSpec:
    """Shape and dtype of an array argument.

    >>> ArgumentSpec.read("f32[b,28]", "--args")
    ArgumentSpec(shape=(DimExpr('b'), 28), dtype='float32')
    """

    shape: tuple[Dim, ...]
    dtype: str

    @property
    def is_open(self) -> bool:
        """True if a dimension has no number."""
        return any(map(is_symbolic_dim, self.shape))

    @staticmethod
    def read(text: str, option: str) -> ArgumentSpec:
        """Reads "f32[b,28]".

        Raises:
          UsageError: the syntax is wrong; the text names `option`.
        """
        match = _ARRAY.fullmatch(text)
        if match is None:
            raise UsageError(f"{option}: expected {_FORM}. Got: {text!r}")
        dtype = match["dtype"]
        if not dtype.startswith("key<"):
            if dtype not in DTYPES:
                near = did_you_mean(dtype, DTYPES)
                raise UsageError(f"{option}: {text!r} has the unknown dtype {dtype}{near}")
            dtype = DTYPES[dtype]
        unnamed = _UNNAMED.search(match["shape"] or "")
        if unnamed is not None:
            raise UsageError(
                f"{option}: {unnamed[1]} in {text!r} is no size: write a name where one stays "
                "open, as b; sizes of one name are equal"
            )
        try:
            return ArgumentSpec(symbolic_shape(f"({match['shape'] or ''})"), dtype)
        except ValueError as e:
            raise UsageError(f"{option}: the shape in {text!r} cannot be read: {e}") from e


def read_arguments(text: str, option: str) -> Any:
    """Reads a pytree of ArgumentSpecs.

    Args:
      text: "f32[b,28]", or a pytree of such texts in JSON or Python syntax.
      option: where the user wrote it, for messages.

    Raises:
      UsageError: it cannot be read.

    >>> read_arguments('{"w": "f32[3]", "n": null}', "--args")
    {'w': ArgumentSpec(shape=(3,), dtype='float32'), 'n': None}
    """
    return _read(text, option, lambda leaf, place: ArgumentSpec.read(leaf, place))


def read_shapes(text: str, option: str) -> Any:
    """Reads an entry of polymorphic_shapes: a shape, "auto", "None", or a pytree of these.

    >>> read_shapes("(b, 28)", "--shapes"), read_shapes("auto", "--shapes")
    ('(b, 28)', AUTO)

    Raises:
      UsageError: it begins as a pytree and is none.
    """
    if text.strip().startswith("(") and '"' not in text and "'" not in text:
        return text  # a shape, not a tuple of texts
    return _read(text, option, lambda leaf, _: _shape(leaf))


def _shape(text: str) -> Any:
    word = text.strip().lower()
    if word in ("none", "-"):
        return None
    return AUTO if word == "auto" else text


def read_named(text: str, option: str) -> tuple[str, str]:
    """Splits NAME=SPEC.

    Raises:
      UsageError: it has no name.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"{option}: expected name=SPEC, as scale=f32[3]. Got: {text!r}")
    return name.strip(), value


def _read(text: str, option: str, leaf: Callable[[str, str], Any]) -> Any:
    if text.strip()[:1] not in ("{", "[", "("):
        return leaf(text, option)
    return _map_tree(_tree(text, option), leaf, option, "")


def _tree(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as e:
        raise UsageError(
            f"{option}: {_short(text)!r} is no pytree, neither as JSON nor as Python writes it. "
            "Put it in single quotes for the shell, and each of its arrays in double quotes: "
            '\'{"w": "f32[3,4]", "b": ["f32[4]", null]}\''
        ) from e


def _map_tree(tree: Any, leaf: Callable[[str, str], Any], option: str, path: str) -> Any:
    if isinstance(tree, dict):
        return {k: _map_tree(v, leaf, option, f"{path}[{k!r}]") for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        children = [_map_tree(v, leaf, option, f"{path}[{i}]") for i, v in enumerate(tree)]
        return children if isinstance(tree, list) else tuple(children)
    place = f"{option}, at {path}" if path else option
    if tree is None:
        return None
    if not isinstance(tree, str):
        raise UsageError(f"{place}: expected a text, as 'f32[3]'. Got: {tree!r}")
    return leaf(tree, place)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
