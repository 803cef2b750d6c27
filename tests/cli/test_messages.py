"""One message, two interfaces: Python shows arguments as code, the command line as options."""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import pickle
import re
import shlex
from pathlib import Path

import pytest

import jax2tf_bridge
from jax2tf_bridge import AUTO

# Private: each argument is compared without a command whose error names it.
from jax2tf_bridge.cli._commands import UsageError
from jax2tf_bridge.cli._console import format_for_command_line, format_option
from jax2tf_bridge.cli._main import parse
from jax2tf_bridge.errors import (
    Argument,
    BridgeError,
    Message,
    ShapeError,
    format_bullets,
    get_message,
    make_path_error,
)
from jax2tf_bridge.saving.buckets import BUCKETS
from jax2tf_bridge.targets import NO_XLA
from tests.cli.conftest import Ok

COMMAND = argparse.Namespace(command="save")
CONSTRAINTS = "polymorphic_constraints"
ARGUMENTS = [
    (NO_XLA, "xla=False", "--no-xla"),
    (Argument("polymorphic_shapes"), "polymorphic_shapes", "--shapes"),
    (Argument("polymorphic_shapes", AUTO, "AUTO"), "AUTO", "--shapes auto"),
    (
        Argument("polymorphic_shapes", [None, "(b, 3)", AUTO, {"x": "(b,)", "y": AUTO}]),
        "polymorphic_shapes=[None, '(b, 3)', AUTO, {'x': '(b,)', 'y': AUTO}]",
        """--shapes None '(b, 3)' auto '{"x": "(b,)", "y": "auto"}'""",
    ),
    (
        Argument("polymorphic_shapes", "(n, ...)"),
        "polymorphic_shapes='(n, ...)'",
        "--shapes '(n, ...)'",
    ),
    (
        Argument(CONSTRAINTS, ["b >= 2", "c == 3"], f"export(f, {CONSTRAINTS}=['b >= 2', ...])"),
        "export(f, polymorphic_constraints=['b >= 2', ...])",
        "--constraints 'b >= 2' 'c == 3'",
    ),
    (Argument(CONSTRAINTS, AUTO), "polymorphic_constraints=AUTO", "--constraints auto"),
    (
        Argument("target", "2.17", "Target.tensorflow('2.17')"),
        "Target.tensorflow('2.17')",
        "--tensorflow 2.17",
    ),
    (Argument("platforms"), "platforms", "--platforms"),
    (Argument("signatures"), "signatures", "FILE"),
    (BUCKETS, "buckets={...}", "--buckets NAME=N,N"),
    (Argument("buckets", {"n": (8, 4)}), "buckets={'n': (8, 4)}", "--buckets n=8,4"),
    (
        Argument("oversize", {"b": "as is", "n": "as is"}),
        "oversize={'b': 'as is', 'n': 'as is'}",
        "--oversize b=as-is --oversize n=as-is",
    ),
    (Argument("oversize", "split"), "oversize='split'", "--oversize split"),
    (Argument("mask", ["m", "n"]), "mask=['m', 'n']", "--mask m,n"),
    (Argument("pad_values", {"on": True}), "pad_values={'on': True}", "--pad-values on=true"),
    (
        Argument("pad_values", {"ids": -float("inf"), "x": float("nan")}),
        "pad_values={'ids': -inf, 'x': nan}",
        "--pad-values ids=-inf --pad-values x=nan",
    ),
    (Argument("unchecked_padding", ["n"]), "unchecked_padding=['n']", "--unchecked-padding n"),
    (Argument("precompile", True), "precompile=True", "--precompile"),
    (Argument("overwrite", True), "overwrite=True", "--overwrite"),
    (Argument("vjp_order", 2, "with_vjp(2)"), "with_vjp(2)", "--vjp-order 2"),
]


@pytest.mark.parametrize(("argument", "code", "option"), ARGUMENTS)
def test_each_argument_has_its_option(argument: Argument, code: str, option: str) -> None:
    assert (str(argument), format_option(argument)) == (code, option)
    message = Message("Pass ", argument, ", or nothing.")
    assert (message, format_for_command_line(message, COMMAND)) == (
        f"Pass {code}, or nothing.",
        f"Pass {option}, or nothing.",
    )


def test_parts_outlive_errors_that_carry_them() -> None:
    first = ShapeError(Message("give ", BUCKETS))
    wrapped = BridgeError(
        Message("Any of these:", format_bullets([Message(first), "this"]), " ", first)
    )
    there = make_path_error(17, Message("is there; ", Argument("overwrite", True)), "m")
    for error, text, options in (
        (
            wrapped,
            "Any of these:\n  - give buckets={...}\n  - this give buckets={...}",
            "Any of these:\n  - give --buckets NAME=N,N\n  - this give --buckets NAME=N,N",
        ),
        (there, "m is there; overwrite=True", "m is there; --overwrite"),
        (ValueError(3), "3", "3"),
    ):
        for each in (error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(str(each)) is str
            assert str(each) == text
            assert format_for_command_line(get_message(each), COMMAND) == options


def test_open_sizes_stand_in_args_unless_shapes_are_given() -> None:
    text = Message("no entry of ", Argument("polymorphic_shapes"), " names c")
    for shapes, option in (([], "--args"), (["(b, 3)"], "--shapes")):
        options = argparse.Namespace(command="export", shapes=shapes)
        assert format_for_command_line(text, options) == f"no entry of {option} names c"
    assert format_for_command_line("plain", COMMAND) == "plain"


def _named_arguments() -> set[str]:
    """Collects the arguments that the product's messages name as literals."""
    found = set()
    for file in Path(jax2tf_bridge.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "Argument(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id == "Argument" and isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


# The first two are of jax.export's interface; `file` is positional; the others of from_stablehlo.
IN_PYTHON_ALONE = frozenset(
    ("symbolic_shape", "constraints", "file", "arguments", "results", "result_shapes")
)


def test_every_option_that_messages_name_exists(ok: Ok) -> None:
    names = _named_arguments() - IN_PYTHON_ALONE
    assert {"polymorphic_shapes", "buckets", "target", "overwrite"} <= names
    commands = (
        *("export", "save", "publish", "rollback", "litert", "onnx", "coreml", "retarget"),
        *("compile", "verify", "serve-check"),
    )
    known = [ok(command, "--help") for command in commands]
    for option in {format_option(Argument(name)) for name in names}:
        either = option.replace("--", "--(no-)?", 1)
        assert any(re.search(rf"{either}\b", text) for text in known), option


@pytest.mark.parametrize(("argument", "option"), [(a, o) for a, _, o in ARGUMENTS])
def test_options_can_be_pasted(argument: Argument, option: str) -> None:
    if argument.value is ... or argument == BUCKETS:
        return  # those have no value to paste
    commands = ("export f:g -o x", "save f -o x")
    works = 0
    for command in commands:
        with contextlib.suppress(UsageError):
            parse(shlex.split(f"{command} {option}"))
            works += 1
    assert works
