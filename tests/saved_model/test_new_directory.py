"""A changed copy of a SavedModel appears complete or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from jax2tf_bridge.saved_model import break_hard_link, edit_copy

# Private: a system that cannot exchange two directories.
from jax2tf_bridge.storage import _disk


def model(folder: Path, text: str = "old") -> Path:
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text(text)
    (folder / "variables" / "data").write_text("weights")
    return folder


def change(source: Path, path: Path, *, overwrite: bool = False) -> None:
    with edit_copy(source, path, overwrite=overwrite) as folder:
        break_hard_link(folder / "saved_model.pb")
        (folder / "saved_model.pb").write_text("new")


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


OLD = {"saved_model.pb": "old", "variables/data": "weights"}
NEW = {**OLD, "saved_model.pb": "new"}


def test_beside_the_source(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    change(source, tmp_path / "below" / "b")
    assert files(tmp_path / "below" / "b") == NEW
    assert files(source) == OLD
    # The copy has files of its own.
    (tmp_path / "below" / "b" / "variables" / "data").write_text("others")
    assert files(source) == OLD


def test_in_place(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    number = (source / "variables" / "data").stat().st_ino
    change(source, source, overwrite=True)
    assert files(tmp_path) == {f"a/{name}": text for name, text in NEW.items()}
    assert (source / "variables" / "data").stat().st_ino == number  # it was not copied


def test_in_place_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuses)
    source = model(tmp_path / "a")
    change(source, source, overwrite=True)
    assert files(source) == NEW


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    (tmp_path / "b").mkdir()
    change(source, tmp_path / "b")
    assert files(tmp_path / "b") == NEW


def test_another_model_is_replaced(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    other = model(tmp_path / "b", "other")
    with pytest.raises(FileExistsError, match="already exists; overwrite=True replaces it"):
        change(source, other)
    change(source, other, overwrite=True)
    assert files(other) == NEW


def test_something_else_is_not_replaced(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("all")
    with pytest.raises(FileExistsError, match=r"it has other contents, and no saved_model\.pb"):
        change(source, tmp_path / "b", overwrite=True)
    assert files(tmp_path / "b") == {"thesis.tex": "all"}


@pytest.mark.parametrize("name", ["run[1]", "a\\b"])
def test_names_that_tensorflow_takes_for_others_are_no_places(tmp_path: Path, name: str) -> None:
    source = model(tmp_path / "a")
    text = re.escape(
        f"{tmp_path / name / 'm'} cannot hold a SavedModel: TensorFlow reads {name!r} as a "
        "pattern, which does not match that name. Use a path without brackets and backslashes"
    )
    with pytest.raises(OSError, match=f"^{text}$"):
        change(source, tmp_path / name / "m")
    assert not (tmp_path / name).exists()
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(OSError, match=re.escape(f"TensorFlow reads {name!r} as a pattern")):
        change(source, tmp_path / "link" / "m")
    # These stand for themselves as well.
    for plain in ("b*?", "b[1", "b]1", "b {1}"):
        change(source, tmp_path / plain / "m")
        assert files(tmp_path / plain / "m") == NEW


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_no_place(tmp_path: Path, path: str) -> None:
    source = model(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="not a folder"):
        change(source, tmp_path / path, overwrite=True)


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    source = model(tmp_path / "a")

    def half() -> None:
        with edit_copy(source, source, overwrite=True) as folder:
            break_hard_link(folder / "saved_model.pb")
            (folder / "saved_model.pb").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert files(tmp_path) == {f"a/{name}": text for name, text in OLD.items()}


def test_what_was_there_comes_back_if_the_last_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path / "a")
    monkeypatch.setattr(_disk, "_renameat2", lambda: None)
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("the disk is gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        change(source, source, overwrite=True)
    assert files(tmp_path) == {f"a/{name}": text for name, text in OLD.items()}
