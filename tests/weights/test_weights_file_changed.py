"""Tests files that change while they are open or read: the next access is an error."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jax2tf_bridge.errors import FileFormatError

# Private: a file changes while it is read.
from jax2tf_bridge.weights import _sources, msgpack_serialize, open_weights, read_weights

TREE = {"a": np.arange(50_000.0), "b": np.arange(50_000, dtype=np.int32), "step": np.int32(1)}
OTHER = {"a": np.zeros(50_000), "b": np.zeros(50_000, np.int32), "step": np.int32(2)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "weights.msgpack"
    file.write_bytes(msgpack_serialize(TREE))
    # Long ago, so that a change has another time however coarse the clock is.
    os.utime(file, ns=(10**18, 10**18))
    return file


def _rewrite(path: Path) -> None:
    """Writes other content of the same size."""
    data = msgpack_serialize(OTHER)
    assert len(data) == path.stat().st_size
    path.write_bytes(data)


CHANGES = pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: os.truncate(path, 100), id="shorten"),
        pytest.param(lambda path: os.truncate(path, 0), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() + b"\0"), id="grow"),
        pytest.param(_rewrite, id="rewrite"),
    ],
)


@CHANGES
def test_a_change_is_an_error_at_the_next_access(
    path: Path, change: Callable[[Path], None]
) -> None:
    size = path.stat().st_size
    with open_weights(path) as weights:
        assert weights["a"][7] == 7
        change(path)
        for access in (
            lambda: weights["a"],
            lambda: weights["step"],
            weights.tree,
            lambda: list(weights.values()),
        ):
            with pytest.raises(FileFormatError, match="changed while it was open") as caught:
                access()
            assert caught.value.file == str(path)
            message = str(caught.value)
            assert f"it had {size} bytes, modified at 2001-09-09T01:46:40.000000000 UTC" in message
            assert "now it has" in message
            assert "as write_weights does, or read them with mmap=False" in message
        assert list(weights) == ["a", "b", "step"]


@CHANGES
@pytest.mark.parametrize("mmap", [True, False])
def test_a_change_while_the_structure_is_read_is_an_error(
    path: Path, change: Callable[[Path], None], mmap: bool
) -> None:
    read_window = _sources.FileSource.read_window

    def changing(source: Any, start: int) -> Any:
        window = read_window(source, start)
        if start:
            change(path)
        return window

    with mock.patch.object(_sources.FileSource, "read_window", changing):
        with pytest.raises(FileFormatError, match="changed while it was open"):
            read_weights(path, mmap=mmap)
        if change is not _rewrite:
            return
        path.write_bytes(msgpack_serialize(TREE))
        with pytest.raises(FileFormatError, match="changed while it was open"):
            open_weights(path)


@CHANGES
def test_a_change_while_copies_are_made_is_an_error(
    path: Path, change: Callable[[Path], None]
) -> None:
    read_into = _sources.FileSource.read_into

    def changing(source: Any, span: Any, out: memoryview) -> None:
        read_into(source, span, out)
        change(path)

    with (
        mock.patch.object(_sources.FileSource, "read_into", changing),
        pytest.raises(FileFormatError, match="changed while it was open"),
    ):
        read_weights(path, mmap=False)


def test_a_file_that_ends_early_is_an_error_even_if_nothing_else_says_so(path: Path) -> None:
    """Changes the file between the check of size and time and the read."""
    with _sources.FileSource(path) as source, mock.patch.object(source, "check"):
        os.truncate(path, 30_000)
        with pytest.raises(FileFormatError, match="now it ends at byte 30000"):
            source.read_array(20_000, np.dtype("float64"), (5000,))
        with pytest.raises(FileFormatError, match="now it ends at byte 30000"):
            source.read_bytes(_sources.Span(20_000, 40_000))


def test_copies_do_not_change_with_the_file(path: Path) -> None:
    tree = read_weights(path, mmap=False)
    _rewrite(path)
    assert tree["a"].tolist() == TREE["a"].tolist()
    os.truncate(path, 0)
    assert tree["a"].sum() == TREE["a"].sum()


def test_a_file_that_is_replaced_or_removed_is_still_the_one_that_was_opened(path: Path) -> None:
    with open_weights(path) as weights:
        new = path.with_suffix(".new")
        new.write_bytes(msgpack_serialize(OTHER))
        os.replace(new, path)
        assert weights["step"] == 1
        assert weights["a"].tolist() == TREE["a"].tolist()
        with open_weights(path) as again:
            assert again["step"] == 2
        path.unlink()
        assert weights.tree()["a"].sum() == TREE["a"].sum()


def test_another_name_link_or_mode_is_no_change(path: Path) -> None:
    with open_weights(path) as weights:
        os.link(path, path.with_suffix(".link"))
        path.chmod(0o400)
        path.rename(path.with_suffix(".old"))
        shutil.copyfile(path.with_suffix(".old"), path)
        assert weights["step"] == 1


def test_what_was_handed_out_shows_what_is_rewritten_in_place(path: Path) -> None:
    """This is documented: these arrays cannot be protected."""
    with open_weights(path) as weights:
        array = weights["a"]
    _rewrite(path)
    assert array.sum() == 0


def test_beyond_the_end_of_a_shortened_file_the_system_ends_the_process(path: Path) -> None:
    """This is documented: the process ends; an access through the open file is an error."""
    code = """
import os, sys
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.weights import open_weights
weights = open_weights(sys.argv[1])
array = weights["a"]
os.truncate(sys.argv[1], 0)
try:
    weights["b"]
except FileFormatError:
    print("refused", flush=True)
print(array.sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "refused\n"
    assert done.returncode == -signal.SIGBUS
