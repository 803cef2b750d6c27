"""The commands that write a model: their options are alike, and none replaces a model unasked."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jax2tf_bridge import export, write_function

# Private: the page's table is compared with the options of every command.
from jax2tf_bridge.cli._main import make_parsers
from tests.cli.conftest import Run
from tests.cli.json_fields import PAGE
from tests.consumers.harness import LITERT, ONNX, OPENVINO
from tests.consumers.node_addon import BROWSER_PACKAGES
from tests.models.formats import FORMATS, Format

COMMANDS = ("save", "litert", "onnx", "tfjs", "coreml", "compile")


def _list_options(command: str) -> dict[str, argparse.Action]:
    """Returns the options that belong to a command, not to all, by their long names."""
    actions = {each.name: parser._actions for each, parser in make_parsers()[1].items()}
    common = set.intersection(
        *({name for action in each for name in action.option_strings} for each in actions.values())
    )
    return {
        action.option_strings[-1]: action
        for action in actions[command]
        if action.option_strings and not common.issuperset(action.option_strings)
    }


@pytest.mark.checkout
def test_the_page_has_the_options_that_commands_share() -> None:
    options = {command: _list_options(command) for command in COMMANDS}
    head = f"| option | {' | '.join(f'`{command}`' for command in COMMANDS)} |\n"
    table = PAGE.read_text().partition(head)[2].partition("\n\n")[0]
    rows = {}
    for line in table.splitlines()[1:]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[name.strip("`")] = {c for c, cell in zip(COMMANDS, cells, strict=True) if cell}
    shared = Counter(name for each in options.values() for name in each)
    assert rows.keys() == {name for name, count in shared.items() if count > 1}
    for name, commands in rows.items():
        assert commands == {command for command in COMMANDS if name in options[command]}, name


def test_an_option_is_the_same_in_each_command() -> None:
    for name in ("--overwrite", "--output", "--params"):
        actions = [_list_options(command)[name] for command in COMMANDS]
        kinds = {(type(a), a.dest, a.nargs, a.required, tuple(a.option_strings)) for a in actions}
        assert len(kinds) == 1, name
        assert {a.metavar for a in actions} <= {None, "DIR", "FILE", "PATH", "WEIGHTS"}


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_the_facts_about_a_format(each: Format) -> None:
    """Tests what docs/where-it-runs.md says of it, as far as the code says it as well."""
    command, *options = each.command.split()
    known = _list_options(command)
    assert command in COMMANDS
    assert known.keys() >= set(options)
    quantize = known.get("--quantize")
    choices = () if quantize is None else tuple(quantize.choices or ())
    without_option = {"ONNX": "of functions that round or have products of int8"}
    assert each.quantisation == (", ".join(choices) or without_option.get(each.name, "no"))
    gradients = known.get("--vjp-order") is not None and "--for-converters" not in options
    assert each.gradients.startswith("yes" if gradients else "no")
    assert ("learn" in each.gradients) == ("--updates-params" in known and command != "save")


def test_the_packages_of_formats_are_those_that_the_tests_install() -> None:
    packages = {each.name: each.package for each in FORMATS}
    installed = {
        "LiteRT": LITERT.partition("==")[0],
        "ONNX": ONNX[1].partition("==")[0],
        "OpenVINO": OPENVINO.partition("==")[0],
        "TensorFlow.js": BROWSER_PACKAGES[0].rpartition("@")[0],
    }
    assert installed.items() <= packages.items()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "double.jaxfn"
    write_function(path, export(lambda x: x * 2)(np.ones(3, np.float32)))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_is_not_replaced_unasked(
    run: Run, tmp_path: Path, file: Path, command: str
) -> None:
    model = tmp_path / ("model.mlpackage" if command == "coreml" else "model")
    if command in ("litert", "onnx"):
        model.write_text("older")
    else:
        model.mkdir()
        (model / "older").touch()
    ended = run(command, file, "-o", model.name)
    assert ended.code == 1
    expected = rf"(\S*/)?{model.name} already exists; --overwrite replaces it"
    assert re.fullmatch(expected, ended.error)
