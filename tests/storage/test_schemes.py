"""Tests paths with a scheme, by fsspec; neither TensorFlow nor JAX is imported."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jax2tf_bridge import open_weights, read_function, read_weights, write_weights
from jax2tf_bridge.errors import FileFormatError

# Private: a store that fails, without its pauses, and packages that are not installed.
from jax2tf_bridge.storage import (
    StoragePath,
    _backend,
    _paths,
    _uploads,
    as_path,
    check_free,
    on_disk,
    replace_file_at,
    whole_directory,
)
from tests.fresh_process import run_python
from tests.storage import flaky

PB = "saved_model.pb"


@pytest.fixture(autouse=True)
def empty_memory() -> Iterator[None]:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()


def model(folder: Path, text: str = "graph") -> None:
    (folder / "variables").mkdir(parents=True)
    (folder / PB).write_text(text)
    (folder / "variables" / "data").write_text("weights")


def test_path_has_the_methods_of_pathlib() -> None:
    path = as_path("memory://root/model.jaxfn")
    assert isinstance(path, StoragePath)
    assert (str(path), os.fspath(path)) == ("memory://root/model.jaxfn",) * 2
    assert (path.name, path.stem, path.suffix) == ("model.jaxfn", "model", ".jaxfn")
    assert path.parent == as_path("memory://root/") == path.parent.parent
    assert path.parent / Path("a", "b") == as_path("memory://root/a/b")
    assert path.with_name("x") == as_path("memory://root/x")
    assert (path.parent / "a/b").relative_to("memory://root") == Path("a/b")
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match=r"^memory://root/model.jaxfn does not exist$"):
        path.stat()
    with pytest.raises(FileNotFoundError, match=r"^memory://root/model.jaxfn does not exist$"):
        path.read_bytes()


def test_paths_on_disk_stay_pathlibs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_path(str(tmp_path)) == as_path(tmp_path) == as_path(f"file://{tmp_path}") == tmp_path
    assert as_path(r"C:/models") == Path("C:/models")
    with pytest.raises(OSError, match=r"^gs:/bucket/m has one slash after .* 'gs://bucket/m'$"):
        as_path(Path("gs://bucket/m"))
    with pytest.raises(OSError, match=r"^file://tmp/x names another machine: give the path alone"):
        as_path("file://tmp/x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gs:").mkdir()
    assert as_path("gs:/bucket") == Path("gs:/bucket")


def test_bytes_are_no_path() -> None:
    message = (
        "A path must be a str or os.PathLike[str], not bytes: b'{}'. Give os.fsdecode(path); "
        "deserialize reads the contents of a .jaxfn file."
    )
    for given, shown in ((b"f.jaxfn", "f.jaxfn"), (b"x" * 100, "x" * 40)):
        with pytest.raises(TypeError) as caught:
            read_function(given)  # type: ignore[arg-type]
        assert str(caught.value) == message.format(shown)


def test_schemes_are_written_in_any_case() -> None:
    assert as_path("MEMORY://root/M") == as_path("memory://root/M")
    write_weights("Memory://root/w", [1])
    assert read_weights("memory://root/w") == {"0": 1}


@pytest.mark.parametrize(
    "path", ["simplecache::s3://bucket/m", "zip://m::memory://a.zip", "zip::simplecache::gs://b/m"]
)
def test_joined_addresses_are_refused(path: str) -> None:
    text = f"^{path} joins addresses with ::, as fsspec does: give one address$"
    with pytest.raises(OSError, match=text):
        as_path(path)
    # In names two colons are nothing special.
    assert as_path("std::vector") == Path("std::vector")
    write_weights("memory://root/std::vector", [1])
    assert read_weights("memory://root/std::vector") == {"0": 1}


@pytest.mark.parametrize(
    ("path", "installed", "text"),
    [
        (
            "ram://a/b",
            {"fsspec"},
            "needs TensorFlow, because nothing else supports ram://: pip install",
        ),
        ("gs://a/b", {"fsspec"}, "needs a package for gs://: pip install gcsfs"),
        ("s3://a/b", set(), r"needs fsspec for s3://: pip install 'jax2tf-bridge\[storage\]' s3fs"),
        (
            "memory://a",
            set(),
            r"needs fsspec for memory://: pip install 'jax2tf-bridge\[storage\]'",
        ),
        ("https://a/b", {"fsspec"}, "needs a package for https://: pip install aiohttp"),
        ("webdav://a/b", {"fsspec"}, r"needs a package for webdav://\. fsspec says: .*webdav4"),
        (
            "nothing://a",
            {"fsspec"},
            "has the scheme nothing://, which TensorFlow and fsspec do not",
        ),
    ],
)
def test_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, path: str, installed: set[str], text: str
) -> None:
    monkeypatch.setattr(_backend, "_is_installed", lambda package: package in installed)
    for package in ("gcsfs", "aiohttp", "webdav4"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(OSError, match=f"^{path} {text}"):
        as_path(path)


def test_weights_are_read_leaf_by_leaf() -> None:
    kernel = np.arange(1 << 16, dtype=np.float32)
    path = "memory://root/weights.msgpack"
    write_weights(path, {"kernel": kernel, "step": 3})
    assert as_path("memory://root").names() == ["weights.msgpack"]  # type: ignore[union-attr]
    for mmap in (True, False):
        found = read_weights(path, mmap=mmap)
        assert found["step"] == 3
        np.testing.assert_array_equal(found["kernel"], kernel)
    with open_weights(path) as weights:
        assert weights["step"] == 3
        with replace_file_at(path, bytes_of="x") as file:
            file.write(b"\x00")
        with pytest.raises(FileFormatError, match=r"changed while it was open: .*it has 1 byte"):
            _ = weights["kernel"]
    with pytest.raises(ValueError, match="was closed"):
        _ = weights["kernel"]
    with pytest.raises(FileFormatError, match=r"memory://root is a directory: expected a file"):
        read_weights("memory://root")


def test_file_appears_whole_or_not_at_all() -> None:
    path = as_path("memory://root/file")
    for text, error in ((b"old", None), (b"new", RuntimeError("no"))):
        try:
            with replace_file_at(path, bytes_of="x") as file:
                file.write(text)
                assert path.exists() == (text == b"new")
                if error:
                    raise error
        except RuntimeError:
            pass
    assert path.read_bytes() == b"old"
    assert path.parent.names() == ["file"]  # type: ignore[union-attr]
    with pytest.raises(FileExistsError, match="is a folder: name a file in it"):
        write_weights("memory://root", {"a": 1})
    with pytest.raises(IsADirectoryError, match=r"^memory://root is a folder: name a file$"):
        read_function("memory://root")


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_directory_is_sent_and_fetched(tmp_path: Path, scheme: str) -> None:
    # Behind "local" fsspec has the disk, where folders are made before files.
    path = as_path(f"{scheme}://{tmp_path}/root/m")
    assert isinstance(path, StoragePath)
    with whole_directory(path, has=PB) as folder:
        model(folder)
        (folder / "a").write_text("first")
        assert folder.is_relative_to(tempfile.gettempdir())
        assert not path.exists()
    assert dict(path.files_below()) == {"a": 5, PB: 5, "variables/data": 7}
    assert path.parent.names() == ["m"]
    with on_disk(path) as copy:
        assert (copy / "variables" / "data").read_text() == "weights"
    assert not copy.exists()
    with on_disk(path / PB) as copy:
        assert copy.read_text() == "graph"
    write_weights(path.parent / "w", [1])
    assert read_weights(f"{path.parent}/w") == {"0": 1}


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_glob_characters_are_parts_of_names(tmp_path: Path, scheme: str) -> None:
    root = as_path(f"{scheme}://{tmp_path}/root")
    names = ["run1", "run[1]", "run?", "a *"]
    for name in names:
        with whole_directory(root / name, has=PB) as folder:
            model(folder)
        write_weights(root / name / "w[ab]*", {"name": name})
    assert isinstance(root, StoragePath)
    assert root.names() == sorted(names)
    for at, name in enumerate(names[1:], start=2):
        with on_disk(root / name) as copy:
            assert read_weights(copy / "w[ab]*") == {"name": name}
            assert copy.name == (name if "[" not in name else "copy")  # TensorFlow reads it
        _uploads.remove_directory(root / name, PB)
        assert root.names() == sorted([names[0], *names[at:]])
    assert (root / "run1" / PB).read_bytes() == b"graph"


def test_buckets_are_no_targets() -> None:
    path = as_path("memory://models")
    text = (
        r"^memory://models is a bucket, or the top of its storage: name a path below, as "
        r"memory://models/model$"
    )
    with pytest.raises(OSError, match=text):
        check_free(path, overwrite=False)
    with pytest.raises(OSError, match=text), whole_directory(path, has=PB):
        pytest.fail("nothing is to be written")
    with pytest.raises(OSError, match=text):
        write_weights(path, [1])
    for top in ("memory://", "memory:///"):
        with pytest.raises(OSError, match=r"name a path below, as memory://bucket/model$"):
            check_free(as_path(top), overwrite=False)
    assert MemoryFileSystem.store == {}


@pytest.mark.parametrize("name", ["../../stray", "a/../../stray", "./stray"])
def test_names_that_lead_out_of_a_folder_are_not_copied(name: str) -> None:
    with as_path("memory://root/m").open("wb") as file:
        file.write(b"x")
    MemoryFileSystem.store[f"/root/m/{name}"] = MemoryFileSystem.store.pop("/root/m")
    text = re.escape(
        f"memory://root/m cannot be copied to the disk: it has the file {name!r}, a name outside "
        "of it"
    )
    with pytest.raises(OSError, match=f"^{text}$"), on_disk(as_path("memory://root/m")):
        pytest.fail("nothing is to be copied")


def test_directory_that_is_there_stays() -> None:
    path = as_path("memory://root/m")
    with whole_directory(path, has=PB) as folder:
        model(folder)
    text = "already exists: name a new path"
    with pytest.raises(FileExistsError, match=text), whole_directory(path, has=PB):
        pytest.fail("nothing is to be written")
    text = r"already exists: overwrite=True needs a local path, .* publish the next version below"
    with pytest.raises(FileExistsError, match=text):
        check_free(path, overwrite=True, has=PB)
    with pytest.raises(NotADirectoryError, match="already exists, and is not a folder"):
        check_free(path / PB, overwrite=False)


def test_directory_without_its_last_file_is_not_sent() -> None:
    path = as_path("memory://root/m")
    text = r"is not written: readers look for its saved_model\.pb, which the writer did not make"
    with contextlib.ExitStack() as stack:
        (stack.enter_context(whole_directory(path, has=PB)) / "variables").mkdir(parents=True)
        with pytest.raises(FileNotFoundError, match=text):
            stack.close()
    assert isinstance(path, StoragePath)
    assert path.parent.names() == []


@pytest.mark.parametrize("kind", ["fails", "dies", "forgets", "shows late"])
def test_every_operation_may_fail(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paths, "_PAUSES_S", (0.0,) * 4)
    flaky.register()
    folder, file = as_path("flaky://root/a/m"), as_path("flaky://root/f/file")
    assert isinstance(folder, StoragePath)

    def write() -> None:
        with replace_file_at(file, bytes_of="x") as opened:
            opened.write(b"new")
        with whole_directory(folder, has=PB) as new:
            model(new)

    for at in itertools.count(1):
        flaky.register()
        with replace_file_at(file, bytes_of="x") as opened:
            opened.write(b"older")  # of another size, by which a lost renaming is seen
        done = False
        with flaky.TROUBLE.happens(kind, at):
            with contextlib.suppress(*([] if kind == "shows late" else [OSError])):
                write()
                done = True
            count = flaky.TROUBLE.count
        assert file.read_bytes() in (b"older", b"new")
        whole = {PB: 5, "variables/data": 7}
        found = dict(folder.files_below())
        found.pop(f".{PB}.partial", None)
        assert found == whole if PB in found else not done
        if PB not in found:
            write()
        assert file.read_bytes() == b"new" or not done
        with contextlib.suppress(FileExistsError):
            write()  # cleans up
        assert dict(folder.files_below()) == whole
        assert folder.parent.names() == ["m"]
        if at > count:
            assert done
            break
    assert count > 20


def test_full_storage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paths, "_PAUSES_S", (0.0,) * 4)
    errors = []

    def write(at: int) -> None:
        with (
            flaky.TROUBLE.happens("is full", at),
            whole_directory(as_path("flaky://root/a/m"), has=PB) as new,
        ):
            model(new)

    for at in itertools.count(1):
        flaky.register()
        try:
            write(at)
        except OSError as e:
            errors.append(e)
        if flaky.TROUBLE.count < at:
            break
    assert len(errors) > 10
    assert {e.errno for e in errors} == {errno.ENOSPC}
    assert [str(e) for e in errors if not str(e).startswith("flaky://root/a")] == []


def test_buckets_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    flaky.register()
    monkeypatch.setattr(flaky.FlakyFileSystem, "protocol", ("s3", "s3a"))
    path = as_path("flaky://root/m")
    path.mkdir(parents=True, exist_ok=True)
    assert flaky.TROUBLE.count == 0

    def refuses(*_: object, **__: object) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(flaky.FlakyFileSystem, "_open", refuses)
    text = r"^flaky://root/m cannot be written: the folder, or the bucket, does not exist$"
    with pytest.raises(FileNotFoundError, match=text):
        write_weights(path, [1])
    with (
        pytest.raises(FileNotFoundError, match=text),
        whole_directory(path, has=PB) as folder,
    ):
        model(folder)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="tells dead writers on Linux alone"
)
def test_killed_writers(tmp_path: Path) -> None:
    """The next writer on the same machine removes the leftovers of a killed one at once."""
    killed = run_python("from tests.storage.killed_writers import run; run()", str(tmp_path))
    assert int(killed) > 10


@pytest.mark.parametrize("runs", [True, False])
def test_tensorflow_is_asked_first_where_it_runs(
    monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_backend, "_open_gfile", lambda *_: asked.append("tensorflow"))
    monkeypatch.setattr(_backend, "_open_fsspec", lambda *_: asked.append("fsspec"))
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    if runs:
        monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(io=None))
    with pytest.raises(
        OSError, match="has the scheme other://, which TensorFlow and fsspec do not"
    ):
        as_path("other://a")
    assert asked == (["tensorflow", "fsspec"] if runs else ["fsspec", "tensorflow"])


def test_path_of_another_package() -> None:
    class Address(os.PathLike[str]):
        def __fspath__(self) -> str:
            return "memory://root/m"

    assert as_path(Address()) == as_path("memory://root/m")
