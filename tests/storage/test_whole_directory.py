"""Tests directories that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge._utils import format_bytes

# Private: another machine, another file system, and any kind of directory.
from jax2tf_bridge.storage import _disk, _files, _staging, as_path, on_disk
from jax2tf_bridge.storage._files import whole_directory_on_disk
from tests.saving.other_users import as_another_user, folder_for_all
from tests.saving.saved_functions import contents


@pytest.fixture(params=["with_exchange", "without_exchange"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with atomic exchanges of names, as on Linux, and without."""
    if request.param == "without_exchange":
        no_exchange(monkeypatch)


def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disk, "_renameat2", lambda: None)


def write(path: Path, name: str = "new", *, overwrite: bool = False) -> None:
    with whole_directory_on_disk(path, overwrite=overwrite) as folder:
        folder.mkdir()
        (folder / name).write_text("x")


def write_by(path: Path, fill: Callable[[Path], object], has: str | None = None) -> None:
    with whole_directory_on_disk(path, overwrite=True, has=has) as folder:
        fill(folder)


def leave(path: Path, fill: Callable[[Path], object]) -> Path:
    """Makes the leftovers of a process that died while it wrote `path`."""
    places: list[Path] = []

    def dies(folder: Path) -> None:
        fill(folder)
        places.append(folder.parent)
        folder.parent.rename(path.parent / "aside")
        raise SystemExit

    with pytest.raises(SystemExit):
        write_by(path, dies)
    return (path.parent / "aside").rename(places[0])


def test_it_is_new_with_the_folders_above(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "m")
    assert contents(tmp_path) == ["a", "a/b", "a/b/m", "a/b/m/new"]
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert contents(tmp_path / "empty") == ["new"]


@pytest.mark.usefixtures("either_way")
def test_it_replaces_what_is_there_with_leave(tmp_path: Path) -> None:
    write(tmp_path / "m", "old")
    with pytest.raises(FileExistsError, match="already exists; overwrite=True replaces it"):
        write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/old"]
    write(tmp_path / "m", overwrite=True)
    assert contents(tmp_path) == ["m", "m/new"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("x")
    before = contents(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(NotADirectoryError, match="already exists, and is not a folder"):
            write(tmp_path / "file", overwrite=overwrite)
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        write(tmp_path / "file" / "below")
    text = r"is not replaced: it has other contents, and no saved_model\.pb"
    with (
        pytest.raises(FileExistsError, match=text),
        whole_directory_on_disk(tmp_path / "full", overwrite=True, has="saved_model.pb"),
    ):
        pytest.fail("nothing is to be written")
    assert contents(tmp_path) == before


def test_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "cannot be replaced: name a folder within it"
    with pytest.raises(OSError, match=text), whole_directory_on_disk(Path("."), overwrite=True):
        pytest.fail("nothing is to be written")
    assert contents(tmp_path) == []


def test_folder_without_the_right_to_write() -> None:
    def try_to_write(path: Path) -> None:
        with whole_directory_on_disk(path / "m"):
            raise AssertionError("nothing is to be written")

    with folder_for_all() as folder:
        text = as_another_user(folder, try_to_write)
        expected = f"{folder} cannot be written to (Permission denied)"
        assert text == f"PermissionError: {expected}"
        assert contents(folder) == []


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt(), SystemExit()])
def test_nothing_is_left_of_one_that_fails(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "m", "old")

    def fails(folder: Path) -> None:
        (folder / "variables").mkdir(parents=True)
        raise error

    for path in (tmp_path / "m", tmp_path / "a" / "b" / "c"):
        with pytest.raises(type(error)):
            write_by(path, fails)
    assert contents(tmp_path) == ["m", "m/old"]


def test_folders_above_that_others_use_stay(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (tmp_path / "a" / "theirs").write_text("x")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        write_by(tmp_path / "a" / "b" / "c", fails)
    assert contents(tmp_path) == ["a", "a/theirs"]


def test_writer_that_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_directory_on_disk(tmp_path / "a" / "m"):
        pass
    assert contents(tmp_path) == []


def test_what_comes_while_it_is_written_stays(tmp_path: Path) -> None:
    def writes(folder: Path) -> None:
        folder.mkdir()
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "theirs").write_text("x")

    text = r"is not replaced: it has other contents, and no saved_model\.pb"
    with pytest.raises(FileExistsError, match=text):
        write_by(tmp_path / "m", writes, has="saved_model.pb")
    assert contents(tmp_path) == ["m", "m/theirs"]


def test_what_comes_in_the_last_instant_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def comes_too_late(self: Path, target: Path) -> Path:
        target.mkdir()
        (target / "theirs").write_text("x")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", comes_too_late)
    with (
        pytest.raises(OSError, match="not empty"),
        whole_directory_on_disk(tmp_path / "m") as folder,
    ):
        folder.mkdir()
    assert contents(tmp_path) == ["m", "m/theirs"]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "m")
    write(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "m") == ["new"]


@pytest.mark.usefixtures("either_way")
def test_permissions_are_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    for _ in range(2):
        write(tmp_path / "m", overwrite=True)
        assert (tmp_path / "m").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_all_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def noted(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, (tmp_path / "a" / "m").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with whole_directory_on_disk(tmp_path / "a" / "m") as folder:
        (folder / "variables").mkdir(parents=True)
        (folder / "variables" / "data").write_text("x")
    m = tmp_path / "a" / "m"
    order = [m / "variables" / "data", m / "variables", m, m.parent, tmp_path]
    assert synced == [(path.stat().st_ino, path in m.parents) for path in order]


# Where two names cannot be exchanged at once.


def test_what_was_there_comes_back_if_the_new_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    write(tmp_path / "m", "old")
    rename = Path.rename

    def fails_for_new(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError("Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_new)
    with pytest.raises(OSError, match="Permission denied"):
        write(tmp_path / "m", overwrite=True)
    assert contents(tmp_path) == ["m", "m/old"]


def test_an_interrupt_between_the_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    write(tmp_path / "m", "old")
    rename = Path.rename

    def is_interrupted(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if self.name == "m":
            raise KeyboardInterrupt
        return renamed

    monkeypatch.setattr(Path, "rename", is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m", overwrite=True)
    assert contents(tmp_path) == ["m", "m/old"]


def test_the_only_copy_is_never_deleted(tmp_path: Path) -> None:
    write(tmp_path / "m", "old")
    with pytest.MonkeyPatch.context() as monkeypatch:
        no_exchange(monkeypatch)
        rename = Path.rename

        def fails_from_now_on(self: Path, target: Path) -> Path:
            if self.name != "m":
                raise OSError("Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fails_from_now_on)
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path / "m", overwrite=True)
    assert [path.read_text() for path in tmp_path.rglob("old/old")] == ["x"]
    with pytest.raises(FileExistsError):  # the next one puts it back
        write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/old"]


# Leftovers of the dead, and staging folders of the living.


def test_leftovers_of_a_dead_process_are_removed_by_the_next(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "variables").mkdir(parents=True)
        (folder / "variables" / "data").write_text("x")

    place = leave(tmp_path / "m", fill)
    assert contents(place) == ["lock", "new", "new/variables", "new/variables/data"]
    write(tmp_path / "other")
    assert place.exists(), "it belongs to another name"
    write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/new", "other", "other/new"]


@pytest.mark.parametrize("kept", [(), ("lock",)])
def test_leftovers_of_one_that_had_hardly_begun(tmp_path: Path, kept: tuple[str, ...]) -> None:
    place = leave(tmp_path / "m", lambda folder: None)
    if not kept:
        (place / "lock").unlink()
    assert contents(place) == list(kept)
    write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/new"]


def test_leftovers_that_were_being_removed(tmp_path: Path) -> None:
    (tmp_path / f".m.removed-{'0a' * 8}" / "variables").mkdir(parents=True)
    write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/new"]


def test_what_a_dead_process_had_put_aside_comes_back(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        folder.mkdir()
        (folder.parent / "old").mkdir()
        (folder.parent / "old" / "old").write_text("x")

    leave(tmp_path / "m", fill)
    assert not (tmp_path / "m").exists()
    with pytest.raises(FileExistsError, match="already exists"):
        write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/old"]


def test_living_writers_are_left_alone(tmp_path: Path) -> None:
    with whole_directory_on_disk(tmp_path / "m", overwrite=True) as folder:
        folder.mkdir()
        (folder / "first").write_text("x")
        for _ in range(2):
            write(tmp_path / "m", "second", overwrite=True)
        assert (folder / "first").exists()
    assert contents(tmp_path) == ["m", "m/first"]


def test_leftovers_of_another_machine_stay_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(_staging, "_identify_system", lambda: ("0" * 8, "1" * 8))
        place = leave(tmp_path / "m", lambda folder: folder.mkdir())
    write(tmp_path / "m")
    assert place.exists()
    hours_ago = time.time() - 23 * 3600
    for path in (place, place / "lock", place / "new"):
        os.utime(path, (hours_ago - 7200, hours_ago - 7200))
    os.utime(place / "new", (hours_ago, hours_ago))
    write(tmp_path / "m", overwrite=True)
    assert place.exists()
    os.utime(place / "new", (hours_ago - 7200, hours_ago - 7200))
    write(tmp_path / "m", overwrite=True)
    assert contents(tmp_path) == ["m", "m/new"]


def test_after_a_restart_leftovers_of_the_same_machine_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = _staging._identify_system()
    with monkeypatch.context() as before:
        before.setattr(_staging, "_identify_system", lambda: ("0" * 8, now[1]))
        leave(tmp_path / "m", lambda folder: folder.mkdir())
    write(tmp_path / "m")
    assert contents(tmp_path) == ["m", "m/new"]


def test_without_locks_leftovers_stay_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_staging, "_lock", lambda handle: None)
    place = leave(tmp_path / "m", lambda folder: folder.mkdir())
    write(tmp_path / "m")
    assert place.exists()
    for path in (place, place / "lock", place / "new"):
        os.utime(path, (0, time.time() - 25 * 3600))
    write(tmp_path / "m", overwrite=True)
    assert contents(tmp_path) == ["m", "m/new"]


def test_writer_that_was_taken_for_dead_shows_nothing(tmp_path: Path) -> None:
    def is_cleared(folder: Path) -> None:
        folder.mkdir()
        _staging._clear(folder.parent, "m", None)

    with pytest.raises(OSError, match="No such file"):
        write_by(tmp_path / "a" / "m", is_cleared)
    assert contents(tmp_path) == []


def test_workplace_that_is_taken_away_at_once_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    mkdir = Path.mkdir

    def taken_twice(path: Path, **options: Any) -> None:
        mkdir(path, **options)
        if "partial" in path.name:
            made.append(path)
            if len(made) < 3:
                _staging.clear_leftovers(tmp_path, "m")

    monkeypatch.setattr(Path, "mkdir", taken_twice)
    write(tmp_path / "m")
    assert len(made) == 3
    assert contents(tmp_path) == ["m", "m/new"]


def test_names_that_look_alike_are_left_alone(tmp_path: Path) -> None:
    names = [
        ".m.partial-",
        ".m.partial-x",
        ".mm.removed-" + "0" * 16,
        ".m.removed-0",
        "m.partial-a",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    write(tmp_path / "m")
    assert contents(tmp_path) == sorted([*names, "m", "m/new"])


# A full disk.


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            OSError(errno.ENOSPC, "x"),
            errno.ENOSPC,
            r"No space left on device\): .* are free, which",
        ),
        (ValueError("a; No space left on device"), errno.ENOSPC, r"No space left on device\): "),
        (OSError(errno.EDQUOT, "x"), errno.EDQUOT, ": make room within the quota"),
        (OSError(errno.EFBIG, "x"), errno.EFBIG, r"may not write files of that size \(see `ulim"),
    ],
)
def test_full_disk_says_what_is_free(
    tmp_path: Path, error: Exception, code: int, text: str
) -> None:
    write(tmp_path / "m", "old")

    def fails(folder: Path) -> None:
        folder.mkdir()
        (folder / "data").write_bytes(bytes(1000))
        raise error

    with pytest.raises(OSError, match=text) as caught:
        write_by(tmp_path / "m", fails)
    assert caught.value.errno == code
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith(f"{tmp_path} cannot be written to (")
    assert str(caught.value).endswith(". Existing files are unchanged")
    assert contents(tmp_path) == ["m", "m/old"]


def test_the_disk_with_less_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a write has no path, so a temporary file on another disk may be the cause."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk")
    room = {folder: shutil.disk_usage(folder).free for folder in (tmp_path, other)}
    error = OSError(errno.ENOSPC, "x")
    for folder, temporary in ((tmp_path, other), (other, tmp_path)):
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        with (
            pytest.raises(OSError, match="No space left") as caught,
            _disk.name_full_disk(folder),
        ):
            raise error
        named = min(room, key=room.__getitem__)
        assert caught.value.filename == str(named)
        advice = ". Make room, or set TMPDIR to a folder on a disk with more"
        assert str(caught.value).endswith(advice) == (named == temporary)
    (tmp_path / "file").write_text("x")
    below = OSError(errno.ENOSPC, "x", str(tmp_path / "file"))
    with pytest.raises(OSError, match="No space left") as caught, _disk.name_full_disk(tmp_path):
        raise below
    assert caught.value.filename == str(tmp_path)
    elsewhere = OSError(errno.ENOSPC, "x", str(other / "m"))
    with pytest.raises(OSError, match="x") as caught, _disk.name_full_disk(Path("/")):
        raise elsewhere
    assert caught.value is elsewhere


def test_copies_say_that_the_disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "x")

    with as_path("memory://full/m").open("wb") as file:
        file.write(b"x")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_files, "copy_file", fails)
    text = (
        rf"^{tmp_path} cannot be written to \(No space left on device\): .* are free, which is not "
        "enough. Existing files are unchanged. Make room, or set TMPDIR to a folder on a disk with"
    )
    with pytest.raises(OSError, match=text), on_disk(as_path("memory://full/m")):
        pytest.fail("there is no copy")


def test_sizes_for_people() -> None:
    sizes = [0, 999, 1000, 1_234_567, 10**9 - 1, 5 * 10**12]
    texts = ["0 bytes", "999 bytes", "1.0 kB", "1.2 MB", "1000.0 MB", "5000.0 GB"]
    assert [format_bytes(size) for size in sizes] == texts


def test_workplaces_are_closed_to_other_users(tmp_path: Path) -> None:
    with whole_directory_on_disk(tmp_path / "m") as folder:
        folder.mkdir()
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
