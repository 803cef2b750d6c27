"""Tests versions in storage without atomic renames, which fails, delays and forgets."""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jax2tf_bridge.errors import FileFormatError

# Private: a store and a machine that fail, without its pauses.
from jax2tf_bridge.publishing import (
    _versions,
    latest_version,
    publish_version,
    published_versions,
)
from jax2tf_bridge.saved_model import MANIFEST
from jax2tf_bridge.storage import (
    AnyPath,
    StoragePath,
    _paths,
    _uploads,
    as_path,
    whole_directory,
)
from jax2tf_bridge.storage._uploads import PARTIAL, make_claim
from tests.sampling import stride
from tests.storage.flaky import TROUBLE, register

ROOT = "flaky://root/models"
PB = "saved_model.pb"


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register()
    monkeypatch.setattr(_paths, "_PAUSES_S", (0.0,) * 4)
    yield
    register()


def write(path: Path) -> None:
    (path / "variables").mkdir(parents=True)
    (path / PB).write_bytes(b"graph")
    (path / "variables" / "data").write_bytes(b"weights")


def root() -> StoragePath:
    path = as_path(ROOT)
    assert isinstance(path, StoragePath)
    return path


def check_whole(*allowed: list[int]) -> None:
    """Checks the versions that a reader sees, and that each has all its files."""
    versions = published_versions(ROOT)
    assert sorted(versions) in allowed
    for path in versions.values():
        assert isinstance(path, StoragePath)
        files = {name for name, _ in path.files_below()}
        assert files - {f".{PB}.partial"} == {PB, "variables/data", MANIFEST.as_posix()}
        assert (path / "variables/data").read_bytes() == b"weights"
        assert (path / PB).read_bytes() == b"graph"


RECORD = ".versions-used-up-to-"


def names() -> list[str]:
    """Lists the names in the folder, except for the records of used numbers."""
    return [name for name in root().names() if not name.startswith(RECORD)]


def check_clean(*numbers: int, records: int | None = 1) -> None:
    """Checks that the folder has only these versions, and the record of the largest number."""
    assert names() == sorted(map(str, numbers))
    recorded = [int(n.removeprefix(RECORD)) for n in root().names() if n.startswith(RECORD)]
    assert max(recorded) == max(numbers)
    assert records in (None, len(recorded))
    for number in numbers:
        path = root() / str(number)
        files = dict(path.files_below())
        assert files.pop(MANIFEST.as_posix()) > 0
        assert files == {PB: 5, "variables/data": 7}


def test_versions_follow_each_other() -> None:
    assert latest_version(ROOT) is None
    for number in (1, 2, 3):
        assert publish_version(ROOT, write, keep=2).version == number
    assert latest_version(ROOT) == root() / "3"
    check_clean(2, 3)


def test_numbers_are_not_used_again() -> None:
    for number in (1, 2, 3):
        assert publish_version(ROOT, write, keep=1).version == number
        for name, _ in list((root() / str(number)).files_below()):
            root().backend.remove(f"{ROOT}/{number}/{name}")
        assert root().names() == [f"{RECORD}{number}"]
        assert latest_version(ROOT) is None


def test_version_that_cannot_be_read_back_removes_none() -> None:
    def check(path: AnyPath) -> None:
        if path == root() / "2":
            raise FileFormatError("it is cut short")

    publish_version(ROOT, write)
    published = publish_version(ROOT, write, keep=1, check=check)
    text = f"older versions stay, because {ROOT}/2 cannot be read back: it is cut short"
    assert (published.removed, published.notes) == ((), (text,))
    check_clean(1, 2)


# Two kinds of trouble meet the odd operations, and two the even ones.
@pytest.mark.parametrize(
    ("first", "kind"), [(0, "fails"), (1, "dies"), (1, "forgets"), (0, "shows late")]
)
def test_every_operation_may_fail(first: int, kind: str) -> None:
    step = stride(2)
    for at in itertools.count(1 + first % step, step):
        register()
        publish_version(ROOT, write)
        published = None
        with TROUBLE.happens(kind, at):
            with contextlib.suppress(*([] if kind == "shows late" else [OSError])):
                published = publish_version(ROOT, write, keep=1)
            count = TROUBLE.count
        check_whole(*([[1, 2], [2]] if published else [[1], [1, 2], [2]]))
        # Numbers of what failed may be left out.
        last = publish_version(ROOT, write, keep=1).version
        assert last in (2, 3)
        check_whole([last])
        publish_version(ROOT, write, keep=1)  # removes what could not be removed then
        check_clean(last + 1)
        if at > count:
            assert published
            assert published.removed == (1,)
            assert published.notes == ()
            break
    assert count > 20


def test_what_a_dead_writer_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(ROOT, write)
    here = _uploads.identify_machine()
    with _uploads.stage_upload() as place:
        alive = make_claim(root() / "2", PARTIAL, place)
        (root() / "2" / "data").open("wb").close()
        assert publish_version(ROOT, write).version == 3
        assert names() == [alive.file.name, "1", "2", "3"]
        # A writer on another machine counts as dead only after some time.
        monkeypatch.setattr(_uploads, "identify_machine", lambda: "00000000")
        assert publish_version(ROOT, write).version == 4
        assert (root() / "2" / "data").exists()
        now = time.time()
        with monkeypatch.context() as later:
            later.setattr(time, "time", lambda: now + 25 * 3600)
            assert publish_version(ROOT, write).version == 5
        check_clean(1, 3, 4, 5)
        monkeypatch.setattr(_uploads, "identify_machine", lambda: here)
        make_claim(root() / "6", PARTIAL, place)
        (root() / "6" / "data").open("wb").close()
    assert publish_version(ROOT, write).version == 6
    check_clean(1, 3, 4, 5, 6)


def test_many_threads_publish_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(lambda _: publish_version(ROOT, write), range(12)))
    numbers = [each.version for each in published]
    assert len(set(numbers)) == 12
    check_clean(*numbers, records=None)
    publish_version(ROOT, write)
    check_clean(*numbers, max(numbers) + 1)


def test_publisher_that_another_one_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for_the_other(record: StoragePath) -> None:
        monkeypatch.setattr(_versions, "write_marker", _uploads.write_marker)
        _uploads.write_marker(record)
        assert publish_version(ROOT, write).version == 2  # removes the record of 1

    monkeypatch.setattr(_versions, "write_marker", wait_for_the_other)
    assert publish_version(ROOT, write).version == 1
    check_clean(1, 2)


def test_root_that_cannot_be_one() -> None:
    publish_version(ROOT, write)
    text = re.escape(f"{ROOT}/1 is a SavedModel, and not the folder of its versions: name {ROOT}")
    with pytest.raises(FileExistsError, match=text):
        publish_version(f"{ROOT}/1", write)
    with pytest.raises(NotADirectoryError, match="is a file, and not the folder of the versions"):
        latest_version(f"{ROOT}/1/{PB}")

    with pytest.raises(OSError, match=r"^flaky:// is a bucket, or .*, as flaky://bucket/model$"):
        publish_version("flaky://", write)

    with pytest.raises(OSError, match=r"^flaky://root/m\[1\] cannot hold a SavedModel: Tenso"):
        publish_version("flaky://root/m[1]", write)

    def without_graph(path: Path) -> None:
        path.mkdir()
        (path / "data").write_text("x")

    text = r"/2 is not written: readers look for its saved_model\.pb, which the writer did not make"
    with pytest.raises(FileNotFoundError, match=text):
        publish_version(ROOT, without_graph)
    check_clean(1)


def test_number_that_has_no_next() -> None:
    write_model = root() / str(2**63 - 1) / PB
    with write_model.open("wb") as file:
        file.write(b"graph")
    text = f"^{ROOT} has the version {2**63 - 1}, and there is no larger number for the next$"
    with pytest.raises(ValueError, match=text):
        publish_version(ROOT, write)


def test_what_goes_wrong_afterwards_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    publish_version(ROOT, write)

    def refuses(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(_uploads, "_withdraw", refuses)
        first = publish_version(ROOT, write).notes
    assert re.fullmatch(rf"{ROOT}/\.2\.partial-\S+ could not be removed: .*denied", first[0])
    with monkeypatch.context() as patched:
        patched.setattr(_versions._BehindScheme, "directories", refuses)
        second = publish_version(ROOT, write, keep=1).notes
    assert second == ("older versions could not be listed, and stay: [Errno 13] Permission denied",)
    check_clean(1, 2, 3)


def test_directory_that_somebody_else_is_writing() -> None:
    path = root() / "m"
    with _uploads.stage_upload() as place:
        make_claim(path, PARTIAL, place)
        text = "^flaky://root/models/m is being written by another process$"
        with pytest.raises(FileExistsError, match=text), whole_directory(path, has=PB) as folder:
            write(folder)
    with whole_directory(path, has=PB) as folder:
        write(folder)
    assert root().names() == ["m"]
