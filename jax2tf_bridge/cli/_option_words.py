"""Errors of the Python interface in the words of the command line."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections.abc import Callable, Sequence

from jax2tf_bridge.cli._save_words import in_save_words

_SAY_SO = re.compile(
    r"say so:\s+export\(.*?, polymorphic_constraints=(\[[^\n]*\])\)\s+"
    r'or let polymorphic_constraints="infer" add it',
    re.DOTALL,
)
_WRITTEN = re.compile(r"polymorphic_constraints (\[[^\n]*?\]) (?=speak of|cannot be read)")
_PROPOSED = re.compile(r"Write: polymorphic_shapes=(\[.*\])\Z")
_RETARGET = re.compile(
    r"retarget FILE( --tensorflow \S+), or in Python retarget_record\(record, [^)]*\)\)"
)
_RELEASE = re.compile(r"target=Target\.tensorflow\('([^']*)'\)")


def in_option_words(text: str, options: argparse.Namespace) -> str:
    """An error of the bridge's, about options where it speaks of arguments of Python functions.

    Args:
      text: of the error.
      options: the command line.

    >>> options = argparse.Namespace(command="export", shapes=["(b, 3)"])
    >>> in_option_words('The polymorphic_shapes entry "(b, 3)"', options)
    'The --shapes entry "(b, 3)"'
    """
    if getattr(options, "command", None) in ("save", "publish"):
        text = in_save_words(text)
    # Open sizes stand in --args as well.
    shapes = "--shapes" if getattr(options, "shapes", None) else "--args"
    file = shlex.quote(str(getattr(options, "file", "FILE")))
    rules: Sequence[tuple[re.Pattern[str] | str, str | Callable[[re.Match[str]], str]]] = (
        (_SAY_SO, lambda m: f"say so: {_constraints(m[1])}, or let --constraints infer add it"),
        (_WRITTEN, lambda m: f"{_constraints(m[1])} "),
        (_PROPOSED, lambda m: f"Write: {_shapes(m[1])}"),
        (_RETARGET, lambda m: f"retarget {file}{m[1]}"),
        (r'polymorphic_constraints="infer"', "--constraints infer"),
        (r'leave the constraints to "infer"', "leave them to --constraints infer"),
        (r"polymorphic_constraints", "--constraints"),
        (r" \(from jax2tf_bridge import AUTO\), which is no string", ""),
        (r"pass AUTO\b", "write auto"),
        (r"\bAUTO\b", "auto"),
        (r"polymorphic_shapes", shapes),
        (r"\Aplatforms: ", "--platforms: "),
        (r"\ATarget\.tensorflow\('([^']*)'\): ", r"--tensorflow \1: "),
        (
            r"Where \S+ is installed use Target\.installed\(\), elsewhere "
            r"Target\.tensorflow\('([^']*)'\) or Target\.widest\(\)",
            r"Write --tensorflow \1, or leave --tensorflow out",
        ),
        (r"use Target\.tensorflow\('([^']*)'\)", r"write --tensorflow \1"),
        (_RELEASE, r"--tensorflow \1"),
        (r"without a target\b", "without --tensorflow"),
    )
    for pattern, words in rules:
        text = re.sub(pattern, words, text)
    return text


def _shapes(written: str) -> str:
    r"""A list of entries as Python writes it, as the option.

    >>> _shapes("[None, '(b, 3)', {'x': '(b,)'}]")
    '--shapes None \'(b, 3)\' \'{"x": "(b,)"}\''
    """
    entries = ast.literal_eval(re.sub(r"\bAUTO\b", "'auto'", written))
    words = [e if isinstance(e, str) else "None" if e is None else json.dumps(e) for e in entries]
    return f"--shapes {' '.join(map(shlex.quote, words))}"


def _constraints(written: str) -> str:
    """A list as Python writes it, as the option.

    >>> _constraints("['b >= 2', 'c == 3']")
    "--constraints 'b >= 2' 'c == 3'"
    """
    return f"--constraints {' '.join(map(shlex.quote, ast.literal_eval(written)))}"
