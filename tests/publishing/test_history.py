"""Tests list_versions, rollback and the manifests that they read."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from jax2tf_bridge.errors import FileFormatError, SavingError

# Private: a check is made slow, and its reads are counted.
from jax2tf_bridge.publishing import (
    CACHE_FOLDER,
    Origin,
    _manifest,
    check_complete,
    check_published,
    latest_version,
    list_versions,
    publish_version,
    rollback,
)
from jax2tf_bridge.publishing._labels import read_labels
from jax2tf_bridge.publishing._manifest import Manifest, check_files
from jax2tf_bridge.saved_model import MANIFEST
from jax2tf_bridge.saving import publish_weights
from jax2tf_bridge.storage import StoragePath, as_path, open_file
from tests.fresh_process import run_python
from tests.saving.published_models import KERNEL, assert_answers, write_model

DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a SavedModel."""
    path = tmp_path_factory.mktemp("models") / "model"
    write_model(path)
    return path


@pytest.fixture
def root(tmp_path: Path, model: Path) -> Path:
    """Returns a root with a model (1), new weights (2), and a model with other weights (3)."""
    root = tmp_path / "dense"
    publish_version(root, copy_of(model), origin=Origin(note="first"))
    publish_weights(root, {"kernel": KERNEL + 1})
    publish_weights(root, {"kernel": KERNEL + 2}, note="trained longer")
    return root


def copy_of(model: Path) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(model, folder)


def cut(file: Path) -> None:
    """Cuts a file short, and leaves other names of the file as they are."""
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])


def flip(file: Path) -> None:
    """Changes a byte of a file, and leaves other names of the file as they are."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)


def test_versions_say_what_they_changed(root: Path) -> None:
    first, second, third = list_versions(root)
    assert [v.number for v in (first, second, third)] == [1, 2, 3]
    assert [v.describe_change() for v in (first, second, third)] == [
        "model",
        "weights (graph of 1)",
        "weights (graph of 2)",
    ]
    assert [first.note, second.note, third.note] == ["first", "", "trained longer"]
    assert first.code == second.code == third.code
    assert len({first.weights, second.weights, third.weights}) == 3
    assert first.published is not None
    age = datetime.datetime.now(datetime.UTC) - first.published
    assert datetime.timedelta(seconds=-1) < age < datetime.timedelta(minutes=10)
    assert not any(v.problem for v in (first, second, third))
    assert re.fullmatch(
        r"3  \d{4}-\d\d-\d\d \d\d:\d\d  weights \(graph of 2\)  "
        r"code [0-9a-f]{12}, weights [0-9a-f]{12}  trained longer",
        str(third),
    )


def test_rollback_publishes_the_content_again(root: Path) -> None:
    new = rollback(root, note="scores drifted")
    assert (new.version, new.path, new.result) == (4, root / "4", 2)
    assert_answers(root / "4", KERNEL + 1)
    versions = list_versions(root)
    assert versions[3].describe_change() == "rollback to 2"
    assert versions[3].note == "scores drifted"
    assert versions[3].weights == versions[1].weights
    assert (root / "4" / DATA).stat().st_ino == (root / "2" / DATA).stat().st_ino
    # The next one goes one version further back, and not to and fro.
    assert rollback(root).result == 1
    assert_answers(root / "5", KERNEL)
    with pytest.raises(SavingError, match=r"dense has no version before 1 to go back to"):
        rollback(root)
    assert rollback(root, 3).result == 3
    assert rollback(root, 4).result == 2  # what it was rolled back to itself
    assert latest_version(root) == root / "7"


def test_rollback_without_jax_and_tensorflow(root: Path) -> None:
    code = """
        import sys
        from jax2tf_bridge import list_versions, rollback
        rollback(sys.argv[1])
        print([v.problem for v in list_versions(sys.argv[1], contents=True)])
        assert not {"jax", "tensorflow"} & set(sys.modules)
        """
    assert run_python(code, str(root), without_jax=True) == "['', '', '', '']"


def test_rollback_removes_older_versions(root: Path) -> None:
    new = rollback(root, keep=2)
    assert new.removed == (1, 2)
    assert str(new) == f"version 4: {root / '4'}\n  removed: 1, 2"
    assert_answers(root / "4", KERNEL + 1)


def test_rollback_to_a_version_that_is_not_there(root: Path) -> None:
    with pytest.raises(SavingError) as error:
        rollback(root, 7)
    assert str(error.value) == f"{root} has no version 7. It has: 1, 2, 3."
    for number in ("1", 1.0, True):
        with pytest.raises(SavingError) as error:
            rollback(root, number)  # type: ignore[arg-type]
        assert str(error.value) == f"to must be the number of a version. Got: {number!r}."


@pytest.mark.parametrize("note", [3, "two\nlines", "\x1b[31m", "\ud800"])
def test_notes_are_a_line_of_text(root: Path, note: Any) -> None:
    with pytest.raises(SavingError) as error:
        rollback(root, note=note)
    assert str(error.value) == f"note must be one line of text. Got: {note!r}."
    assert latest_version(root) == root / "3"


def test_rollback_without_versions(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no version to go back to"):
        rollback(tmp_path / "none")


def test_damaged_versions_are_passed_over(root: Path) -> None:
    cut(root / "2" / DATA)
    problem = list_versions(root)[1].problem
    assert f"{DATA} is cut short" in problem
    new = rollback(root)
    assert new.result == 1
    (note,) = new.notes
    assert note.startswith("version 2 is passed over: ")
    assert f"{DATA} is cut short" in note
    with pytest.raises(FileFormatError, match="is cut short"):
        rollback(root, 2)
    cut(root / "1" / "saved_model.pb")
    flip(root / "3" / DATA)
    shutil.rmtree(root / "4")
    found = "before 3 to go back to: version 2 is passed over: .*; version 1 is passed over: "
    with pytest.raises(SavingError, match=found):
        rollback(root)
    assert sorted(p.name for p in root.iterdir() if p.name.isdecimal()) == ["1", "2", "3"]


def test_contents_are_compared_before_a_rollback(root: Path) -> None:
    flip(root / "2" / DATA)
    assert not list_versions(root)[1].problem
    text = f"{root / '2'} is not what was published: {DATA} has other contents than were published."
    assert list_versions(root, contents=True)[1].problem == text
    with pytest.raises(FileFormatError) as error:
        rollback(root, 2)
    assert str(error.value) == text
    assert latest_version(root) == root / "3"
    new = rollback(root)
    assert (new.result, new.notes) == (1, (f"version 2 is passed over: {text}",))


def test_rollback_of_a_label(root: Path, model: Path) -> None:
    publish_version(root, copy_of(model), label="canary")
    assert read_labels(root) == {"canary": 4, "stable": 3}
    # From what the label has, not from the canary, which is the newest.
    new = rollback(root, label="stable")
    assert (new.result, new.labels) == (2, {"canary": 4, "stable": 5})
    assert rollback(root, label="stable").result == 1


def test_version_without_a_manifest_is_noted(root: Path) -> None:
    (root / "2" / MANIFEST).unlink()
    assert rollback(root).notes == (
        "version 2 has no manifest: it is complete, but its contents could not be compared",
    )


def test_a_removed_newest_version_was_not_published_meanwhile(root: Path) -> None:
    shutil.rmtree(root / "3")
    new = rollback(root, 1)
    assert (new.version, new.notes) == (4, ())


def test_version_that_another_publisher_removes_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax2tf_bridge.publishing import _history

    def remove(source: Path, target: Path) -> None:
        shutil.rmtree(root / "1")
        raise FileNotFoundError(source)

    monkeypatch.setattr(_history, "link_files", remove)
    with pytest.raises(SavingError) as error:
        rollback(root, 1)
    assert str(error.value) == (
        f"Another publisher removed version 1 below {root} meanwhile. Roll back again."
    )


def test_differences_from_a_manifest(root: Path) -> None:
    folder = root / "1"
    (folder / "extra").write_text("x")
    check_published(folder, contents=False)
    with pytest.raises(FileFormatError, match=r"published: extra was not published\."):
        check_published(folder, contents=True)
    (folder / "extra").unlink()
    (folder / "assets.extra" / "manifest.json").unlink()
    with pytest.raises(FileFormatError, match=r"published: assets.extra/manifest.json is missing"):
        check_published(folder, contents=False)
    (folder / "assets.extra" / "manifest.json").write_text("x")
    with pytest.raises(FileFormatError, match=r"manifest.json has 1 bytes; \d+ were published"):
        check_published(folder, contents=False)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"format": "1"}, "format: expected a whole number from 1"),
        ({"published": "yesterday"}, "published: expected a time with a time zone"),
        ({"published": "2026-11-28T10:00:00"}, "published: expected a time with a time zone"),
        ({"origin": {"change": "x", "base": None, "note": ""}}, "origin.change: expected one of"),
        ({"origin": {"change": "weights", "base": -1, "note": ""}}, "origin.base: expected"),
        ({"files": {"a": {"size": 1}}}, "files['a']: expected the fields sha256, size"),
        ({"more": 1}, "expected the fields bridge, files, format, origin, published"),
    ],
)
def test_damaged_manifest(root: Path, edit: dict[str, object], problem: str) -> None:
    file = root / "1" / MANIFEST
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, **edit}))
    version = list_versions(root)[0]
    assert version.problem.startswith(f"{file} is damaged: ")
    assert problem in version.problem
    assert version.change is None


def test_manifest_of_a_newer_bridge(root: Path) -> None:
    file = root / "1" / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    assert list_versions(root)[0].problem == (
        f"{file} is written by format 2, this bridge reads up to 1: upgrade jax2tf-bridge."
    )


def test_versions_of_other_tools(tmp_path: Path, model: Path) -> None:
    root = tmp_path / "dense"
    shutil.copytree(model, root / "1")
    (version,) = list_versions(root, contents=True)
    assert (version.published, version.change, version.problem) == (None, None, "")
    assert str(version) == "1  unknown date  without a manifest"
    shutil.copytree(model, root / "2")
    assert rollback(root).result == 1
    assert list_versions(root)[2].describe_change() == "rollback to 1"


def test_rollback_behind_a_scheme(model: Path) -> None:
    root = "ram://rollback/dense"
    publish_version(root, copy_of(model))
    publish_version(root, copy_of(model))
    new = rollback(root)
    assert (new.version, str(new.path), new.result) == (3, f"{root}/3", 1)
    assert [v.problem for v in list_versions(root, contents=True)] == ["", "", ""]
    assert_answers(as_path(f"{root}/3"))


def test_rollback_reads_each_file_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Counter[str]()

    def count(path: Path) -> Any:
        files[str(path.relative_to(root))] += 1
        return open_file(path)

    monkeypatch.setattr(_manifest, "open_file", count)
    rollback(root)
    assert files[f"2/{DATA}"] == 1
    assert set(files.values()) == {1}
    assert {name.partition("/")[0] for name in files} == {"2"}


def test_rollback_fetches_each_file_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = "ram://fetched/dense"
    publish_version(root, copy_of(model))
    publish_version(root, copy_of(model))
    files = Counter[str]()
    open_stored = StoragePath.open

    def count(path: StoragePath, mode: Any) -> Any:
        if mode == "rb":
            files[str(path)] += 1
        return open_stored(path, mode)

    monkeypatch.setattr(StoragePath, "open", count)
    rollback(root)
    assert files[f"{root}/1/{DATA}"] == 1


def test_contents_are_compared_behind_a_scheme(model: Path) -> None:
    root = "ram://flipped/dense"
    for _ in range(2):
        publish_version(root, copy_of(model))
    path = as_path(f"{root}/1/{DATA}")
    assert isinstance(path, StoragePath)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.backend.remove(str(path))
    with path.open("wb") as file:
        file.write(bytes(data))
    with pytest.raises(FileFormatError) as error:
        rollback(root, 1)
    assert str(error.value) == (
        f"{root}/1 is not what was published: {DATA} has other contents than were published."
    )


def write_program(model: Path, content: bytes = b"1") -> Callable[[Path], object]:
    """Returns a writer of a version with a compiled program."""

    def write(folder: Path) -> None:
        shutil.copytree(model, folder)
        (folder / CACHE_FOLDER).mkdir(parents=True)
        (folder / CACHE_FOLDER / f"program-{content.decode()}").write_bytes(content)

    return write


def test_programs_are_read_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, files, read = tmp_path / "dense", Counter[str](), Path.read_bytes

    def count(path: Path) -> bytes:
        files[path.name] += 1
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", count)
    publish_version(root, write_program(model))
    assert files["program-1"] == 1
    assert (root / "xla_cache" / "program-1").exists()


@pytest.mark.parametrize("keep", [None, 1])
def test_programs_of_a_version_that_was_removed_by_hand_go(
    tmp_path: Path, model: Path, keep: int | None
) -> None:
    root = tmp_path / "dense"
    publish_version(root, write_program(model, b"1"))
    publish_version(root, write_program(model, b"2"))
    shutil.rmtree(root / "1")
    publish_version(root, copy_of(model), keep=keep)
    programs = sorted(path.name for path in (root / "xla_cache").iterdir())
    assert programs == ([] if keep else ["program-2"])


def test_rollback_takes_compiled_programs_along(tmp_path: Path, model: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write_program(model))
    publish_version(root, copy_of(model))
    rollback(root, keep=1)
    assert (root / "3" / CACHE_FOLDER / "program-1").read_bytes() == b"1"
    assert (root / "xla_cache" / "program-1").read_bytes() == b"1"


def test_version_that_comes_in_between_is_noted(
    root: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax2tf_bridge.publishing import _history

    def slow(folder: Path, manifest: Manifest, **options: Any) -> None:
        publish_version(root, copy_of(model))
        check_files(folder, manifest, **options)

    monkeypatch.setattr(_history, "check_files", slow)
    new = rollback(root)
    assert (new.version, new.result) == (5, 2)
    assert new.notes == (
        "a version was published meanwhile; version 5 replaces it with the content of 2",
    )


def test_manifest_of_a_version_is_its_own(root: Path) -> None:
    before = (root / "2" / MANIFEST).read_bytes()
    rollback(root)
    assert (root / "2" / MANIFEST).read_bytes() == before
    for number in (1, 2, 3, 4):
        check_complete(root / str(number))
        assert os.stat(root / str(number) / MANIFEST).st_nlink == 1
    assert tf.saved_model.load(root / "4") is not None
