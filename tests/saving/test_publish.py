"""Versions below a root: what is written, found and removed. Killed processes: *_faults."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge.errors import FileFormatError

# Private: steps of a publication are made to fail, or to come late.
from jax2tf_bridge.publishing import (
    NewVersion,
    _versions,
    latest_version,
    publish_version,
    published_versions,
)
from jax2tf_bridge.saved_model import MANIFEST

# Private: its file operations are made to fail.
from jax2tf_bridge.storage import AnyPath, _disk, _staging
from tests.saving.other_users import as_another_user, folder_for_all


def write(path: Path) -> str:
    path.mkdir()
    (path / "data").write_text("x")
    return "written"


def publish(root: str | Path) -> object:
    return publish_version(root, write)


RECORD = ".versions-used-up-to-"


def names(root: str | os.PathLike[str]) -> list[str]:
    """Lists all but the record of the numbers that are used."""
    return sorted(name for name in os.listdir(root) if not name.startswith(RECORD))


def records(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith(RECORD)]


def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disk, "_renameat2", lambda: None)


@pytest.fixture(params=["with_flags", "without_flags"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test where the system renames to new names only, and over empty folders."""
    if request.param == "without_flags":
        no_flags(monkeypatch)


def test_versions_count_from_1(tmp_path: Path) -> None:
    root = tmp_path / "models" / "m"
    assert published_versions(root) == {}
    assert latest_version(root) is None
    assert publish_version(root, write) == NewVersion(1, root / "1", "written")
    assert publish_version(root, write) == NewVersion(2, root / "2", "written")
    assert published_versions(root) == {1: root / "1", 2: root / "2"}
    assert latest_version(root) == root / "2"
    assert names(root) == ["1", "2"]
    assert names(root / "2") == [MANIFEST.parts[0], "data"]


@pytest.mark.parametrize("keep", [None, 1])
def test_numbers_are_not_used_again(tmp_path: Path, keep: int | None) -> None:
    """TensorFlow Serving would not load a number a second time."""
    for version in (1, 2, 3):
        assert publish_version(tmp_path, write, keep=keep).version == version
        assert records(tmp_path) == [f"{RECORD}{version}"]
        assert os.stat(tmp_path / f"{RECORD}{version}").st_size == 0
        shutil.rmtree(tmp_path / str(version))
        assert latest_version(tmp_path) is None


def test_number_is_recorded_before_the_version_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(tmp_path, write)

    def fails(source: Path, target: Path) -> None:
        assert sorted(records(tmp_path)) == [f"{RECORD}1", f"{RECORD}{target.name}"]
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(_versions, "rename_to_new", fails)
        with pytest.raises(OSError, match="Input/output error"):
            publish_version(tmp_path, write)
    assert publish_version(tmp_path, write).version == 3
    assert records(tmp_path) == [f"{RECORD}3"]


def test_damaged_version_is_not_published(tmp_path: Path) -> None:
    def check(path: AnyPath) -> None:
        assert not (tmp_path / "2").exists()
        raise FileFormatError("it is cut short")

    publish_version(tmp_path, write)
    with pytest.raises(FileFormatError, match="it is cut short"):
        publish_version(tmp_path, write, keep=1, check=check)
    assert names(tmp_path) == ["1"]


def test_older_versions_stay_unless_the_new_one_was_read_back(tmp_path: Path) -> None:
    def check(path: AnyPath) -> None:
        if path == tmp_path / "2":
            raise FileFormatError("it is cut short")

    publish_version(tmp_path, write)
    published = publish_version(tmp_path, write, keep=1, check=check)
    text = f"older versions stay, because {tmp_path / '2'} cannot be read back: it is cut short"
    assert (published.removed, published.notes) == ((), (text,))
    assert publish_version(tmp_path, write, keep=1, check=check).removed == (1, 2)


def test_new_version_that_another_publisher_removed_is_not_noted(tmp_path: Path) -> None:
    def check(path: AnyPath) -> None:
        if path == tmp_path / "2":
            shutil.rmtree(tmp_path / "2")
            raise FileNotFoundError("it does not exist")

    publish_version(tmp_path, write)
    assert publish_version(tmp_path, write, keep=1, check=check) == NewVersion(
        2, tmp_path / "2", "written"
    )


@pytest.mark.parametrize(
    ("there", "version"),
    [
        (["7", "12", "9"], 13),
        (["007"], 8),
        (["+4"], 5),
        ([" 6"], 7),
        (["1763000000"], 1763000001),
        (["-5", "1_000", "v9", "3.5", "٣", ".8", "9" * 30], 1),
        (["0"], 1),
        ([".versions-used-up-to-4", "2"], 5),
        ([".versions-used-up-to-4", ".versions-used-up-to-" + "9" * 30, "7"], 8),
    ],
)
def test_the_next_number_is_above_all_that_a_server_would_read(
    tmp_path: Path, there: list[str], version: int
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    assert publish_version(tmp_path, write).version == version
    assert latest_version(tmp_path) == tmp_path / str(version)


def test_files_count_as_versions_do_and_are_none(tmp_path: Path) -> None:
    (tmp_path / "3").write_text("x")
    assert published_versions(tmp_path) == {}
    assert publish_version(tmp_path, write, keep=1).version == 4
    assert names(tmp_path) == ["3", "4"]


def test_no_number_is_left(tmp_path: Path) -> None:
    (tmp_path / str(2**63 - 2)).mkdir()
    assert publish_version(tmp_path, write).version == 2**63 - 1
    with pytest.raises(ValueError, match="there is no larger number for the next"):
        publish_version(tmp_path, write)
    assert names(tmp_path) == [str(2**63 - 2), str(2**63 - 1)]


def test_two_names_for_one_number(tmp_path: Path) -> None:
    for name in ("05", "5", "005"):
        (tmp_path / name).mkdir()
    assert published_versions(tmp_path) == {5: tmp_path / "5"}
    assert publish_version(tmp_path, write, keep=1).removed == (5,)
    assert names(tmp_path) == ["6"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 5, 9):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "notes.txt").write_text("x")
    assert publish_version(tmp_path, write, keep=7).removed == ()
    assert publish_version(tmp_path, write, keep=3) == NewVersion(
        11, tmp_path / "11", "written", removed=(1, 2, 5)
    )
    assert publish_version(tmp_path, write, keep=1).removed == (9, 10, 11)
    assert names(tmp_path) == ["12", "notes.txt"]


def test_links_to_versions_are_removed_and_not_what_they_name(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "1").symlink_to(tmp_path / "elsewhere")
    assert publish_version(root, write, keep=1).removed == (1,)
    assert names(root) == ["2"]
    assert (tmp_path / "elsewhere" / "data").exists()


@pytest.mark.parametrize("keep", [0, -1])
def test_keep_below_one(tmp_path: Path, keep: int) -> None:
    text = f"keep is {keep}, but the newest version always stays: pass 1 or more, or None"
    with pytest.raises(ValueError, match=text):
        publish_version(tmp_path, write, keep=keep)
    assert names(tmp_path) == []


@pytest.mark.parametrize("keep", [2.0, "2", True])
def test_keep_that_is_no_integer(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(
        TypeError, match=f"an integer: the number of versions that stay. Got: {keep!r}"
    ):
        publish_version(tmp_path, write, keep=keep)


def test_version_that_cannot_be_removed_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        publish_version(tmp_path, write)
    rename = os.rename

    def refuses(source: Any, target: Any) -> None:
        if Path(source).name == "1":
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuses)
    published = publish_version(tmp_path, write, keep=1)
    assert published.removed == (2,)
    path = tmp_path / "1"
    assert published.notes == (f"version 1 could not be removed: Permission denied: {path}",)
    assert names(tmp_path) == ["1", "3"]


def test_version_whose_files_cannot_be_deleted_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(tmp_path, write)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    published = publish_version(tmp_path, write, keep=1)
    (rest,) = (p for p in tmp_path.glob(".version.removed-*") if (p / MANIFEST).exists())
    assert published.removed == ()
    assert published.notes == (
        f"version 1 is no longer served, but its files could not be deleted: remove {rest}",
    )
    assert sorted(published_versions(tmp_path)) == [2]


def test_version_that_another_publisher_removes_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        publish_version(tmp_path, write)
    remove = _staging.remove_at_once

    def is_slower(path: Path, name: str) -> Path | None:
        remove(path, name)
        return remove(path, name)

    monkeypatch.setattr(_versions, "remove_at_once", is_slower)
    assert publish_version(tmp_path, write, keep=2) == NewVersion(3, tmp_path / "3", "written")
    assert names(tmp_path) == ["2", "3"]


# Numbers that others take in the meantime.


@pytest.mark.usefixtures("either_way")
def test_number_that_is_taken_meanwhile(tmp_path: Path) -> None:
    def write_slowly(path: Path) -> str:
        for _ in range(2):
            publish_version(tmp_path, write)
        return write(path)

    assert publish_version(tmp_path, write_slowly).version == 3
    assert names(tmp_path) == ["1", "2", "3"]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_names_that_are_not_listed_yet_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for path in (tmp_path / "1", tmp_path / "2"):
        if kind == "folder":
            write(path)
        elif kind == "file":
            path.write_text("x")
        else:
            path.symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(_versions, "_iter_versions", lambda names: iter(()))
    assert publish_version(tmp_path, write).version == 3
    assert names(tmp_path) == ["1", "2", "3"]


def test_empty_folder_that_another_tool_has_begun_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").mkdir()
    if not _disk._try_rename(_made(tmp_path / "a"), tmp_path / "b", 1):
        pytest.skip("this file system has no renaming to new names only")
    monkeypatch.setattr(_versions, "_iter_versions", lambda names: iter(()))
    assert publish_version(tmp_path, write).version == 2
    assert names(tmp_path / "1") == []


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_renaming_says_what_else_is_wrong(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="No such file"):
            _disk.rename_to_new(tmp_path / "a", tmp_path / "b")
        with pytest.MonkeyPatch.context() as monkeypatch:
            no_flags(monkeypatch)
            with pytest.raises(FileNotFoundError, match="No such file"):
                _disk.rename_to_new(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("lock", ["as it is", "missing"])
def test_many_threads_publish_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    if lock == "missing":
        monkeypatch.setattr(_staging, "_LOCK_SECONDS", 0.0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads stop between any two steps
    try:
        with ThreadPoolExecutor(8) as pool:
            published = list(pool.map(lambda _: publish_version(tmp_path, write), range(40)))
    finally:
        sys.setswitchinterval(interval)
    assert sorted(p.version for p in published) == list(range(1, 41))
    assert names(tmp_path) == sorted(map(str, range(1, 41)))


@pytest.mark.parametrize("moment", ["before the lock", "after the lock"])
def test_staging_folder_that_another_process_removes_gets_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    open_file = os.open
    places: list[Path] = []

    def remove_first(path: str | Path, flags: int, mode: int = 0o777, **options: Any) -> int:
        is_new_lock = Path(path).name == _staging._LOCK and flags & os.O_CREAT
        if is_new_lock:
            places.append(Path(path).parent)
            if len(places) == 1 and moment == "before the lock":
                places[0].rmdir()
        handle = open_file(path, flags, mode, **options)
        if is_new_lock and len(places) == 1:
            shutil.rmtree(places[0])
        return handle

    monkeypatch.setattr(os, "open", remove_first)
    assert publish_version(tmp_path, write).version == 1
    assert len(set(places)) == len(places) == 2
    assert names(tmp_path) == ["1"]


def test_lock_that_is_not_given_back_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_staging, "_LOCK_SECONDS", 0.2)
    begin = time.monotonic()
    with _staging.lock_folder(tmp_path):
        assert publish_version(tmp_path, write).version == 1
    assert 0.2 <= time.monotonic() - begin < 5


def test_reader_never_sees_less_than_a_whole_version(tmp_path: Path) -> None:
    def write_slowly(path: Path) -> None:
        path.mkdir()
        for i in range(5):
            (path / str(i)).write_text("x")

    ended = threading.Event()

    def read() -> Iterator[int]:
        while not ended.is_set():
            # A reader that never waits takes the time of the writers.
            ended.wait(0.0005)
            for number, path in published_versions(tmp_path).items():
                try:
                    found = names(path)
                except FileNotFoundError:  # removed
                    continue
                # Its names go while they are read, if it is removed.
                assert found == [*"01234", MANIFEST.parts[0]] or not path.exists()
                yield number

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(lambda: set(read()))
        writing = [
            pool.submit(
                lambda: [publish_version(tmp_path, write_slowly, keep=2) for _ in range(30)]
            )
            for _ in range(2)
        ]
        for each in writing:
            each.result()
        ended.set()
        assert len(reading.result()) > 5
    assert names(tmp_path) == ["59", "60"]


def test_versions_that_are_removed_while_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        publish_version(tmp_path, write)
    is_dir = Path.is_dir
    looked: list[Path] = []

    def all_are_new_then(path: Path) -> bool:
        if path.parent == tmp_path and not looked:
            looked.append(path)
            publish_version(tmp_path, write, keep=1)
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", all_are_new_then)
    assert latest_version(tmp_path) == tmp_path / "3"


# Failures while a version is written.


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()])
def test_nothing_is_left_of_a_version_that_fails(tmp_path: Path, error: BaseException) -> None:
    def fails(path: Path) -> None:
        write(path)
        raise error

    publish_version(tmp_path / "m", write)
    for root in (tmp_path / "m", tmp_path / "new" / "root"):
        with pytest.raises(type(error)):
            publish_version(root, fails, keep=1)
    assert names(tmp_path) == ["m"]
    assert names(tmp_path / "m") == ["1"]


@pytest.mark.parametrize(
    "nothing", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")]
)
def test_writer_that_writes_nothing(tmp_path: Path, nothing: Callable[[Path], None]) -> None:
    text = "is not published: the writer made no folder, or an empty one"
    with pytest.raises(FileNotFoundError, match=text):
        publish_version(tmp_path, nothing)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("needed", "text"), [(5 * 10**9, r"5\.0 GB are needed"), (None, "which")])
def test_full_disk(tmp_path: Path, needed: int | None, text: str) -> None:
    def fails(path: Path) -> None:
        write(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    publish_version(tmp_path, write)
    with pytest.raises(OSError, match=rf"No space left on device\): .* are free, {text}") as caught:
        publish_version(tmp_path, fails, keep=1, needed=needed)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path)
    assert names(tmp_path) == ["1"]


def test_disk_that_cannot_hold_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        publish_version(tmp_path, write)
    assert names(tmp_path) == []


def test_name_that_may_not_last_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(_versions, "sync_folder", fails)
    published = publish_version(tmp_path, write)
    assert published.notes == (
        "version 1 may be lost if the machine stops now: [Errno 5] Input/output error",
    )
    assert names(tmp_path) == ["1"]


# Roots that are none.


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "models/1").mkdir(parents=True)
    (tmp_path / "models/1/saved_model.pb").touch()
    for call in (latest_version, lambda root: publish_version(root, lambda path: path.mkdir())):
        inside = f"is a SavedModel, and not the folder of its versions: name {tmp_path}/models"
        with pytest.raises(FileExistsError, match=inside):
            call(tmp_path / "models/1")
    assert sorted(p.name for p in (tmp_path / "models/1").iterdir()) == ["saved_model.pb"]
    text = "is a file, and not the folder of the versions: name the folder above it"
    for function in (publish, published_versions, latest_version):
        with pytest.raises(NotADirectoryError, match=text):
            function(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        publish_version(tmp_path / "file" / "root", write)
    assert (tmp_path / "file").read_text() == "x"


def test_root_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert publish_version(tmp_path / "link", write).path == tmp_path / "there" / "1"
    assert (tmp_path / "link").is_symlink()


def test_root_that_is_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    text = f"is a link to {tmp_path / 'gone'}, which does not exist: create that folder, or fix"
    with pytest.raises(FileNotFoundError, match=text):
        publish_version(tmp_path / "link", write)
    assert names(tmp_path) == ["link"]


def test_root_that_is_an_address_of_pathlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "has one slash after the scheme, because pathlib drops the other: pass the text 'gs:"
    for function in (publish, published_versions, latest_version):
        with pytest.raises(OSError, match=text):
            function(Path("gs://bucket/m"))
    assert names(tmp_path) == []


def test_root_relative_to_where_the_writer_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def moves(path: Path) -> None:
        os.chdir(tmp_path / "other")
        write(path)

    assert publish_version("root", moves).path == tmp_path / "root" / "1"
    assert names(tmp_path / "other") == []


def test_root_without_the_right_to_write() -> None:
    def try_to_publish(path: Path) -> None:
        assert latest_version(path) == path / "1"
        publish_version(path, lambda p: None)

    with folder_for_all() as folder:
        publish_version(folder, write)
        text = as_another_user(folder, try_to_publish)
        expected = f"{folder} cannot be written to (Permission denied)"
        assert text == f"PermissionError: {expected}"
        assert names(folder) == ["1"]
