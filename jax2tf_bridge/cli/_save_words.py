"""Errors and notes of `save` in the words of its command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

_LITERAL = r"(\{[^{}]*\}|\[[^\[\]]*\]|'[^']*')"


def in_save_words(text: str) -> str:
    """Writes the arguments of `save` and `Signature` in a text as options.

    >>> in_save_words("Pass oversize={'n': 'as is'}, or Signature(..., pad_values={'ids': 1})")
    'Pass --oversize n=as-is, or --pad-values ids=1'
    """
    for pattern, words in _RULES:
        text = re.sub(pattern, words, text)
    return text


def _with_value(name: str) -> tuple[str, Callable[[re.Match[str]], str]]:
    """Makes the rule for an argument with its value, within a Signature or alone."""
    option = f"--{name.replace('_', '-')}"

    def words(match: re.Match[str]) -> str:
        try:
            value = _value_of(match[1] or match[2])
        except (ValueError, SyntaxError):  # no literal, so no option says it
            return match[0]
        if isinstance(value, dict):
            return " ".join(f"{option} {key}={_word(each)}" for key, each in value.items())
        return f"{option} {_word(value)}"

    return rf"Signature\(\.\.\., {name}={_LITERAL}\)|\b{name}={_LITERAL}", words


def _value_of(text: str) -> object:
    """Reads a literal of Python; infinities and nan, which have none, as their texts."""
    return ast.literal_eval(re.sub(r"(?<=: )-?(?:inf|nan)(?=[,}])", r"'\g<0>'", text))


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value).replace("as is", "as-is")


_RULES: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"Signature\(\.\.\., mask='\.\.\.'\)", "--mask INPUT"),
    (r"Signature\(\.\.\., example=\{\.\.\.\}\)", "--example FILE"),
    (r"(?:save )?\bbuckets=\{\.\.\.\}", "--buckets, as --buckets b=1,8,32"),
    (
        r"(buckets=\{'(?P<name>\w+)': [^{}]*\}: )(buckets must increase, .*) Write (\([^()]*\))\.",
        lambda m: f"{m[1]}{m[3]} Write --buckets {m['name']}={_word(ast.literal_eval(m[4]))}.",
    ),
    *map(_with_value, ("buckets", "oversize", "mask", "pad_values", "unchecked_padding")),
    (
        r"Export the function with polymorphic_shapes, as '\((\w+), \.\.\.\)'",
        r"Export the function with open sizes, as --args 'f32[\1,28]'",
    ),
    (r"\b(oversize|unchecked_padding) names '(\w+)'", r"--\1 names '\2'"),
    (r"--unchecked_padding", "--unchecked-padding"),
    (
        r"\A\w+: buckets for '(\w+)', which is no dimension variable of its inputs",
        r"--buckets names '\1', which is no open size of the inputs",
    ),
    (r"the first one needs signatures beside params", "the first one needs FILE beside --params"),
    (r"none of its signatures takes params\b", "its function does not take --params"),
    (r"Publish it once with its signatures and params\b", "Publish FILE with --params once"),
    (r"\(pad_values\)", "(--pad-values)"),
    (r"precompile=True", "--precompile"),
    (
        r"write_function\(\.\.\., vjp_order=\.\.\.\), or record\.with_vjp\(order\)",
        "jax2tf-bridge export ... --vjp-order N",
    ),
    (r"vjp_order=(\d+)", r"--vjp-order \1"),
)
