"""Publishing and saving by processes that are killed, that run out of space, or run together."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import export
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.publishing import latest_version, publish_version, published_versions
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.serialization import write_function
from jax2tf_bridge.storage import AnyPath

# Private: a directory of any kind, which need not have a certain file.
from jax2tf_bridge.storage._files import whole_directory_on_disk
from tests.saving.published_models import (
    KERNEL,
    assert_answers,
    assert_only_whole_versions,
    assert_whole,
    assert_whole_with_new_weights,
    write_files,
    write_model,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SIGKILL = -9


class Side:
    """Process whose forks do what is tested; see publishing_side.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def run(self, kind: str, path: Path, **job: Any) -> list[Mapping[str, Any]]:
        """Runs a job, and what each of its processes answered."""
        assert self._process.stdin is not None
        print(json.dumps({"kind": kind, "path": str(path), **job}), file=self._process.stdin)
        self._process.stdin.flush()
        answers: list[Mapping[str, Any]] = self._answer()
        return answers

    def run_one(self, kind: str, path: Path, **job: Any) -> Mapping[str, Any]:
        """Runs a job of a process that lives, and what it told."""
        (answer,) = self.run(kind, path, **job)
        assert answer["status"] == 0
        told: Mapping[str, Any] = answer["told"]
        return told

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait()}"
        return json.loads(line)


@pytest.fixture(scope="module")
def side() -> Iterator[Side]:
    with open_side() as side:
        yield side


@contextlib.contextmanager
def open_side() -> Iterator[Side]:
    """Starts a process, whose forks publish."""
    command = [sys.executable, "-m", "tests.saving.publishing_side"]
    # Its forks run while no other thread does anything; Python warns of all.
    command[1:1] = ["-W", "ignore::DeprecationWarning"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield Side(process)
        assert process.stdin is not None
        process.stdin.close()


def copier(model: Path) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(model, folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m"
    write_model(path)
    return path


def three_versions(root: Path, model: Path) -> None:
    for _ in range(3):
        publish_version(root, copier(model), keep=3)


RECORD = ".versions-used-up-to-"


def hidden(folder: Path) -> list[str]:
    """Lists hidden names, but the record of the numbers that are used."""
    names = [name for name in os.listdir(folder) if name.startswith(".")]
    return [name for name in names if not name.startswith(RECORD)]


def assert_next_publish_works(root: Path, model: Path, before: Mapping[int, AnyPath]) -> None:
    """It gets the next number, cleans up, and leaves three versions."""
    published = publish_version(root, copier(model), keep=3)
    assert published.version in (max(before) + 1, max(before) + 2)
    assert [n for n in os.listdir(root) if n.startswith(RECORD)] == [f"{RECORD}{published.version}"]
    assert hidden(root) == []
    assert latest_version(root) == published.path
    assert len(published_versions(root)) == 3
    assert_only_whole_versions(root)


@pytest.mark.parametrize("kind", ["publish", "publish_weights", "rollback"])
def test_publisher_that_is_killed_before_any_of_its_operations(
    side: Side, tmp_path: Path, model: Path, kind: str
) -> None:
    root = tmp_path / "m"
    three_versions(root, model)
    operations = side.run_one(kind, root, keep=2)["operations"]
    three_versions(root, model)
    assert operations >= 60
    shown = set()
    for n in range(1, operations + 1):
        before = published_versions(root)
        (answer,) = side.run(kind, root, keep=2, kill_at=n)
        assert answer["status"] == SIGKILL, n
        assert_only_whole_versions(root)
        after = published_versions(root)
        assert max(after) in (max(before), max(before) + 1)
        assert len(after) >= 2
        shown.add(max(after) - max(before))
        if n % 20 == 0:
            newest = latest_version(root)
            assert newest is not None
            is_new = kind == "publish_weights" and max(after) > max(before)
            assert_answers(newest, KERNEL + 1 if is_new else KERNEL)
        assert_next_publish_works(root, model, before)
    assert shown == {0, 1}, "it was killed before and after the version was there"


def measure(side: Side, kind: str, root: Path) -> float:
    """Measures how long a publisher runs here: the quickest of three."""
    lasted = []
    for _ in range(3):
        started = time.monotonic()
        side.run(kind, root, keep=2)
        lasted.append(time.monotonic() - started)
    return min(lasted)


@pytest.mark.parametrize("kind", ["publish", "publish_weights"])
def test_publisher_that_is_killed_at_any_time(
    side: Side, tmp_path: Path, model: Path, kind: str
) -> None:
    """Also within TensorFlow, whose operations on files Python does not see."""
    root = tmp_path / "m"
    three_versions(root, model)
    times = random.Random(0)
    longest = measure(side, kind, root)
    killed = tried = 0
    # Beside other work a publisher may take longer or shorter than those that were measured.
    while tried < 60 or (killed < 30 and tried < 1000):
        tried += 1
        before = published_versions(root)
        (answer,) = side.run(kind, root, keep=2, kill_after_s=times.uniform(0, longest))
        killed += answer["status"] == SIGKILL
        assert answer["status"] in (0, SIGKILL)
        assert_only_whole_versions(root)
        assert_next_publish_works(root, model, before)
    assert killed >= 30


@pytest.mark.parametrize("without_exchange", [False, True])
def test_save_that_is_killed_before_any_of_its_operations(
    side: Side, tmp_path: Path, model: Path, without_exchange: bool
) -> None:
    path = tmp_path / "models" / "m"
    shutil.copytree(model, path)
    job = {"without_exchange": without_exchange}
    operations = side.run_one("save", path, **job)["operations"]
    assert operations >= 60
    missing, shown = 0, set()
    for n in range(1, operations + 1):
        (path / "old").write_text("x")
        (answer,) = side.run("save", path, kill_at=n, **job)
        assert answer["status"] == SIGKILL, n
        if without_exchange and not path.exists():
            missing += 1
        with pytest.raises(FileExistsError), whole_directory_on_disk(path):
            pytest.fail("a model is there")
        shown.add((path / "old").exists())
        (path / "old").unlink(missing_ok=True)
        assert_whole(path)
        assert hidden(path.parent) == []
        if n % 20 == 0:
            assert_answers(path)
    assert missing == (1 if without_exchange else 0) or (without_exchange and missing <= 3)
    assert shown == {False, True}, "it was killed before and after it was replaced"


def test_new_save_that_is_killed_before_any_of_its_operations(
    side: Side, tmp_path: Path, model: Path
) -> None:
    path = tmp_path / "models" / "new" / "m"
    (tmp_path / "models").mkdir()
    operations = side.run_one("save", path)["operations"]
    shutil.rmtree(path.parent)
    for n in range(1, operations + 1):
        (answer,) = side.run("save", path, kill_at=n)
        assert answer["status"] == SIGKILL, n
        if path.exists():
            assert_whole(path)
        with whole_directory_on_disk(path, overwrite=True) as folder:
            shutil.copytree(model, folder)
        assert_whole(path)
        assert hidden(path.parent) == hidden(path.parent.parent) == []
        shutil.rmtree(path.parent)


def test_save_of_a_function_that_is_killed_before_any_of_its_operations(
    side: Side, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    captured = np.arange(3000, dtype=np.float32)
    portable = export(lambda x: x + captured)(captured)
    write_function(folder / "record.jaxfn", portable)
    path = folder / "m"
    side.run_one("save_record", path)
    operations = side.run_one("save_record", path)["operations"]
    assert operations >= 60
    shown = set()
    for n in range(1, operations + 1):
        (path / "old").write_text("x")
        (answer,) = side.run("save_record", path, kill_at=n)
        assert answer["status"] == SIGKILL, n
        shown.add((path / "old").exists())
        loaded = tf.saved_model.load(path)
        results = loaded.signatures["serving_default"](x=tf.constant(captured))
        np.testing.assert_array_equal(results["output_0"], 2 * captured)
        assert read_sidecar(path) is not None
    assert shown == {False, True}, "it was killed before and after it was replaced"
    side.run_one("save_record", path)
    assert hidden(folder) == []


@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize("keep", [None, 2])
def test_publishers_at_once(side: Side, tmp_path: Path, processes: int, keep: int | None) -> None:
    """Each gets a number of its own; a reader that looks all the time sees whole versions only."""
    root = tmp_path / "m"
    publish_version(root, write_files)
    with reader(root) as seen:
        many = side.run("publish_files", root, processes=processes, times=30, keep=keep)
        models = side.run("publish", root, processes=processes, keep=keep)
    made = [number for answer in many + models for number in answer["told"]["versions"]]
    assert sorted(made) == list(range(2, 31 * processes + 2))
    assert max(published_versions(root)) == max(made)
    assert len(published_versions(root)) == (keep or len(made) + 1)
    assert hidden(root) == []
    assert_only_whole_versions(root)
    for answer in models:
        path = root / str(answer["told"]["versions"][0])
        if path.exists():
            assert_answers(path)
    assert len(seen) > 5


@contextlib.contextmanager
def reader(root: Path) -> Iterator[set[int]]:
    """Looks for the latest version all the time, and reads all of it; gives those it has seen."""
    seen: set[int] = set()
    errors: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            newest = latest_version(root)
            assert newest is not None
            try:
                assert_whole(newest)
            except (AssertionError, FileFormatError, OSError):
                if newest.exists():  # else it was removed meanwhile
                    raise
            assert int(newest.name) >= max(seen, default=0), "a number that came late"
            seen.add(int(newest.name))

    def collect() -> None:
        try:
            read()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
    assert errors == []


@pytest.mark.parametrize("kind", ["publish", "publish_weights", "save"])
def test_file_that_may_not_be_larger(side: Side, tmp_path: Path, model: Path, kind: str) -> None:
    """Limits the size of files of a process (RLIMIT_FSIZE), which needs no rights."""
    root = tmp_path / "models" / "m"
    if kind == "save":
        shutil.copytree(model, root)
    else:
        three_versions(root, model)
    before = {path: path.stat().st_ino for path in root.rglob("*")}
    failed = 0
    for largest in (0, 100, 1000, 5000, 10_000, 23_000, 40_000):
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] in (resource.RLIM_INFINITY, largest)
        told = side.run_one(kind, root, largest_file=largest, keep=2)
        if "versions" in told:
            break
        failed += 1
        assert " cannot be written to (File too large): this process may not" in told["text"]
        assert {path: path.stat().st_ino for path in root.rglob("*")} == before
        assert hidden(root.parent) == []
    assert failed >= 3
    side.run_one(kind, root, keep=2)
    assert hidden(root.parent) == []
    if kind == "save":
        assert_whole(root)
    else:
        assert_only_whole_versions(root)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=1000", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount(8) here")
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["publish", "publish_weights", "save"])
def test_full_disk(side: Side, small_disk: Path, model: Path, kind: str) -> None:
    root = small_disk / "models" / "m"
    if kind == "save":
        shutil.copytree(model, root)
    else:
        three_versions(root, model)
    before = {path: path.stat().st_ino for path in root.rglob("*")}
    ballast = small_disk / "ballast"
    failed = 0
    for free in range(0, 120_000, 4096 if kind == "publish_weights" else 8192):
        with open(ballast, "wb") as file, contextlib.suppress(OSError):
            file.write(bytes(shutil.disk_usage(small_disk).free - free))
        told = side.run_one(kind, root, keep=2)
        if "versions" in told:
            break
        failed += 1
        assert " cannot be written to (No space left on device): " in told["text"], told
        assert {path: path.stat().st_ino for path in root.rglob("*")} == before
        assert hidden(root.parent) == hidden(root) == []
        ballast.unlink()
    assert failed >= 5
    ballast.unlink(missing_ok=True)
    side.run_one(kind, root, keep=2)
    assert hidden(root.parent) == []
    if kind == "save":
        assert_whole(root)
        return
    assert hidden(root) == []
    newest = latest_version(root)
    assert newest is not None
    if kind == "publish":
        assert_whole(newest)
        assert_answers(newest)
    else:
        assert_whole_with_new_weights(newest)
        assert_answers(newest, KERNEL + 1)


def test_disk_without_room_for_another_folder(small_disk: Path) -> None:
    root = small_disk / "m"
    publish_version(root, write_files)
    statistics = os.statvfs(small_disk)
    for number in range(statistics.f_ffree):
        (small_disk / str(number)).touch()
    for path in (root, small_disk / "other" / "m"):
        with pytest.raises(OSError, match=r"No space left on device\): .* are free, ") as caught:
            publish_version(path, write_files)
        assert str(caught.value).startswith(f"{path} cannot be written to (")
    assert list(published_versions(root)) == [1]
    assert hidden(root) == []
    assert not (small_disk / "other").exists()


def test_leftovers_on_a_full_disk_are_removed_first(
    side: Side, small_disk: Path, model: Path
) -> None:
    root = small_disk / "m"
    three_versions(root, model)
    operations = side.run_one("publish", root)["operations"]
    (answer,) = side.run("publish", root, kill_at=operations // 2)
    assert answer["status"] == SIGKILL
    (place,) = hidden(root)
    with open(root / place / "new" / "large", "wb") as file, contextlib.suppress(OSError):
        file.write(bytes(shutil.disk_usage(small_disk).free))
    assert shutil.disk_usage(small_disk).free == 0
    publish_version(root, copier(model))
    assert hidden(root) == []
    assert_only_whole_versions(root)
