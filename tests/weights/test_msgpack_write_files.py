"""Tests write_weights: files are written whole or not at all, without copies of arrays."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import jax2tf_bridge
from jax2tf_bridge.errors import SerializationError, StateDictError
from jax2tf_bridge.storage import replace_file_at
from jax2tf_bridge.weights import flatten_state, read_weights, to_bytes, write_weights
from tests.fresh_process import run_python, several_devices
from tests.weights.trees import trees, unhurried

TREE = {"params": {"dense": {"kernel": np.arange(12.0).reshape(3, 4).T, "bias": jnp.ones(4)}}}


@unhurried
@given(target=trees())
def test_files_hold_the_bytes_of_flax(tmp_path_factory: Any, target: Any) -> None:
    path = tmp_path_factory.mktemp("files") / "weights.msgpack"
    write_weights(path, target)
    assert path.read_bytes() == flax.serialization.to_bytes(target)
    assert os.listdir(path.parent) == [path.name]


def test_paths_are_text_too(tmp_path: Path) -> None:
    write_weights(str(tmp_path / "w"), TREE)
    assert (tmp_path / "w").read_bytes() == to_bytes(TREE)


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "weights.msgpack", tmp_path / "link"
    path.write_bytes(b"something else")
    path.chmod(0o640)
    link.symlink_to(path)
    write_weights(link, TREE)
    assert link.is_symlink()
    assert path.read_bytes() == to_bytes(TREE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "weights.msgpack"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    texts = {
        tmp_path / "pipe": "exists and is not a regular file: choose another path, or write the "
        "bytes that to_bytes returns to it",
        tmp_path: "is a folder: name a file in it",
    }
    for path, text in texts.items():
        with pytest.raises(FileExistsError) as caught:
            write_weights(path, TREE)
        assert str(caught.value) == f"{path} {text}"
    assert (tmp_path / "pipe").is_fifo()


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none" / "weights.msgpack"
    with pytest.raises(FileNotFoundError) as caught:
        write_weights(path, TREE)
    assert caught.value.filename == str(path)
    assert str(caught.value) == (
        f"{path} cannot be written: there is no folder {path.parent}. Create it first"
    )
    path.parent.touch()
    with pytest.raises(NotADirectoryError) as refused:
        write_weights(path, TREE)
    assert str(refused.value) == (
        f"{path} cannot be written: {path.parent} is a file, not a folder"
    )


def test_an_error_while_a_file_is_written_names_only_its_path(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="full") as caught,
        replace_file_at(tmp_path / "w", bytes_of="to_bytes"),
    ):
        raise OSError(28, "the disk is full", "a", None, "b")
    assert str(caught.value) == f"[Errno 28] the disk is full: '{tmp_path / 'w'}'"


@pytest.mark.parametrize("name", ["model.safetensors", "MODEL.SafeTensors"])
def test_safetensors_is_another_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(SerializationError) as caught:
        write_weights(path, TREE)
    text, _, advice = str(caught.value).partition("use ")
    assert text == (
        f"{path} names a safetensors file, and write_weights writes msgpack: expected another "
        "name, such as weights.msgpack. For safetensors, "
    )
    assert os.listdir(tmp_path) == []
    # The advice works, also for arrays that save_file refuses or writes incorrectly.
    save_numpy = pytest.importorskip("safetensors.numpy")
    target = {**TREE, "step": 3, "half": jnp.ones((2, 2), jnp.bfloat16), "one": np.float32(2)}
    names = {
        **{"numpy": np, "jax2tf_bridge": jax2tf_bridge, "target": target, "path": str(path)},
        "safetensors": SimpleNamespace(numpy=save_numpy),
    }
    exec(advice.removesuffix("."), names)
    found = flatten_state(read_weights(path))
    expected = flatten_state(target)
    assert set(found) == set(expected)
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], np.asarray(leaf))
        assert found[name].dtype == np.asarray(leaf).dtype


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ({"a": 1, "b": {2}}, SerializationError),
        ({"a": np.array(["text"])}, SerializationError),
        ({"a": jax.random.key(0)}, SerializationError),
        ({1: 2, "1": 3}, StateDictError),
    ],
    ids=["set", "text", "key", "clash"],
)
def test_nothing_is_touched_by_what_cannot_be_written(
    target: Any, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.msgpack"
    path.write_bytes(b"before")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(error):
        write_weights(path, target)
    monkeypatch.undo()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["weights.msgpack"]


def test_an_array_that_fails_while_it_is_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.msgpack"
    path.write_bytes(b"before")

    def fail(array: Any) -> None:
        raise MemoryError("no room on the host")

    monkeypatch.setattr("jax2tf_bridge.weights.msgpack._write.host_array", fail)
    with pytest.raises(SerializationError, match=r"^params/dense/kernel is an array that could"):
        write_weights(path, TREE)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["weights.msgpack"]


KILLED = """
import os, signal, sys
import numpy as np
from jax2tf_bridge.weights import write_weights
# Private: what it counts for a bar of progress says when to end.
from jax2tf_bridge.weights.msgpack import _write

written = 0

class Bar:
    def __init__(self, *args, **kwargs):
        pass
    def __enter__(self):
        return self.advance
    def __exit__(self, *args):
        pass
    def advance(self, count):
        global written
        written += count
        if written > 2**22:
            (name,) = [n for n in os.listdir(os.path.dirname(sys.argv[1])) if n.endswith(".tmp")]
            os.kill(os.getpid(), signal.SIGKILL)

_write.progress_bar = Bar
write_weights(sys.argv[1], [np.zeros(2**20, np.uint8) for _ in range(8)])
"""


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.msgpack"
    write_weights(path, TREE)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() == to_bytes(TREE)


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path) -> None:
    code = """
    import errno, os, resource, sys
    import numpy as np
    from jax2tf_bridge.weights import write_weights

    # The system refuses more, as it does where there is no room.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))
    try:
        write_weights(sys.argv[1], [np.zeros(2**20, np.uint8) for _ in range(8)])
    except OSError as e:
        print(errno.errorcode[e.errno], e.filename == sys.argv[1])
    """
    path = tmp_path / "weights.msgpack"
    write_weights(path, TREE)
    assert run_python(code, str(path)) == "EFBIG True"
    assert path.read_bytes() == to_bytes(TREE)
    assert os.listdir(tmp_path) == ["weights.msgpack"]


class Terminal(io.StringIO):
    """Terminal as stderr."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("progress", "size", "on_terminal", "shown"),
    [
        (None, 2**12, True, False),
        (None, 2**29, True, True),
        (None, 2**29, False, False),
        (True, 2**12, False, True),
        (False, 2**29, True, False),
    ],
)
def test_when_progress_is_shown(
    progress: bool | None,
    size: int,
    on_terminal: bool,
    shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jax2tf_bridge.weights.msgpack._write._MIN_PROGRESS_BYTES", 2**20)
    stderr = Terminal() if on_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    # The bar is drawn from the size on that is long here.
    target = {"w": np.zeros(min(size, 2**21), np.uint8)}
    write_weights(tmp_path / "weights.msgpack", target, progress=progress)
    assert ("writing weights.msgpack" in stderr.getvalue()) == shown


def test_progress_counts_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax2tf_bridge.weights.msgpack._write._MAX_BLOCK_BYTES", 1000)
    counted = []

    class Bar:
        def __init__(self, description: str, total: int, unit: str, *, show: bool | None) -> None:
            counted.append(-total)

        def __enter__(self) -> Any:
            return counted.append

        def __exit__(self, *args: object) -> None:
            pass

    monkeypatch.setattr("jax2tf_bridge.weights.msgpack._write.progress_bar", Bar)
    path = tmp_path / "weights.msgpack"
    write_weights(path, {"w": np.zeros(10**4, np.uint8), "b": 1})
    assert sum(counted) == 0
    assert max(counted) <= 1000
    assert -counted[0] == path.stat().st_size


def peaks(code: str, path: Path, **options: Any) -> list[int]:
    """Runs code in a new process; returns the MiB that writing took, for each call of `peak`."""
    measured = textwrap.dedent("""
        import gc, re, sys
        from pathlib import Path
        import numpy as np
        from jax2tf_bridge.weights import to_bytes, write_weights

        def mebibytes(field):
            status = Path("/proc/self/status").read_text()
            return int(re.search(field + r":\\s*(\\d+) kB", status)[1]) / 1024

        def peak(write, tree):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = mebibytes("VmRSS")
            kept = write(tree)
            print(round(mebibytes("VmHWM") - before))

        def to_file(tree):
            write_weights(sys.argv[1], tree)
    """)
    found = run_python(measured + textwrap.dedent(code), str(path), **options)
    return [int(line) for line in found.splitlines()]


on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux tells the peak of memory in /proc"
)


@pytest.mark.costly
@on_linux
def test_nothing_is_copied_twice(tmp_path: Path) -> None:
    """Trees have 64 MiB. Files need memory for pieces of one array, bytes only for the result."""
    code = """
        small = {"plain": 0, "gaps": np.zeros((4, 4)).T, "other order": np.zeros(3, ">f8")}

        def large(kind):
            if kind == "plain":
                return {str(i): np.ones(2**17) for i in range(32)} | {"b": b"x" * 2**25}
            return {"w": np.ones((2**11, 2**12)).T if kind == "gaps" else np.ones(2**23, ">f8")}

        for kind in small:
            for write in (to_file, to_bytes):
                write(small[kind])
                peak(write, large(kind))
                gc.collect()
    """
    found = peaks(code, tmp_path / "w")
    files, results = found[::2], found[1::2]
    assert len(files) == len(results) == 3
    assert max(files) <= 24, files
    assert max(results) <= 64 + 24, results


@pytest.mark.slow
@on_linux
def test_of_jax_arrays_one_at_a_time_is_copied_at_most(tmp_path: Path) -> None:
    """32 arrays of 8 MiB: on one CPU device none is copied, on several one at a time."""
    code = """
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("x",))
        for place in (jax.devices()[0], NamedSharding(mesh, PartitionSpec("x"))):
            make = lambda size, count: {
                str(i): jax.device_put(jnp.full((size,), i, jnp.float32), place)
                for i in range(count)
            }
            to_file(make(4, 1))
            peak(to_file, jax.block_until_ready(make(2**21, 32)))
    """
    on_one, on_four = peaks(code, tmp_path / "w", env=several_devices(4))
    assert on_one <= 16
    assert on_four <= 64
