"""Every public function that reads a path raises an OSError where nothing is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge as bridge
from jax2tf_bridge.c_library import write_open_library
from jax2tf_bridge.cli import main
from jax2tf_bridge.inspecting import read_saved_model

WEIGHTS = {"w": np.ones((3, 2), np.float32)}


def _signature() -> bridge.Signature:
    return bridge.Signature(lambda p, x: x @ p["w"], args=[np.ones((1, 3), np.float32)])


def _module() -> tf.Module:
    module = tf.Module()
    module.w = tf.Variable(WEIGHTS["w"])
    return module


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "read_function": lambda path, out: bridge.read_function(path),
    "load": lambda path, out: bridge.load(path),
    "read_weights": lambda path, out: bridge.read_weights(path),
    "read_weights without mmap": lambda path, out: bridge.read_weights(path, mmap=False),
    "open_weights": lambda path, out: bridge.open_weights(path),
    "assign_weights": lambda path, out: bridge.assign_weights(_module(), path),
    "save, params": lambda path, out: bridge.save(out, _signature(), params=path),
    "save, a function in a file": lambda path, out: bridge.save(
        out, bridge.Signature(path, args=[np.ones((1, 3), np.float32)])
    ),
    "publish, params": lambda path, out: bridge.publish(out, _signature(), params=path),
    "publish, weights alone": lambda path, out: bridge.publish(path, params=WEIGHTS),
    "read_saved_model": lambda path, out: read_saved_model(path),
    "compile_library": lambda path, out: bridge.compile_library(out, path),
    "load_library": lambda path, out: bridge.load_library(path),
    "write_open_library": lambda path, out: write_open_library(path, out),
}


@pytest.mark.parametrize("below", ["", "a file"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_there_is_an_os_error_with_its_name(
    name: str, below: str, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    path = tmp_path / below / "missing"
    with pytest.raises(OSError, match="missing") as refused:
        READERS[name](path, tmp_path / "out")
    assert isinstance(refused.value, (FileNotFoundError, NotADirectoryError))
    assert refused.value.filename == str(path)
    assert not (tmp_path / "out").exists()


def test_a_root_without_versions_is_no_error(tmp_path: Path) -> None:
    assert bridge.published_versions(tmp_path / "missing") == {}
    assert bridge.latest_version(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "missing"],
        ["inspect", "missing", "--json"],
        ["verify", "missing", "--against", "model:predict"],
        ["retarget", "missing", "--tensorflow", "2.17"],
        ["serve-check", "missing", "--tensorflow", "2.17"],
        ["save", "missing", "-o", "out"],
        ["publish", "missing", "-o", "out"],
    ],
    ids=" ".join,
)
def test_commands_say_that_the_command_line_names_nothing(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.match(r"jax2tf-bridge: error: missing(: No such file| does not exist)", error)
