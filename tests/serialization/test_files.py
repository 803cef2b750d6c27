"""Files: written whole or not at all, read back, told apart from those of jax.export."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import stat
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, export, write_weights
from jax2tf_bridge.errors import FileFormatError, FunctionError, SerializationError

# Private: a file changes while it is read, and reads are counted.
from jax2tf_bridge.serialization import (
    _files,
    deserialize,
    read_function,
    serialize,
    write_function,
)

# Tests let a file shrink, and memory run out, between two reads.
from jax2tf_bridge.serialization.jaxfn import IDENTIFIER, _file_parts
from jax2tf_bridge.serialization.jaxfn._file_parts import Part
from jax2tf_bridge.weights import to_bytes
from tests.fresh_process import run_python
from tests.serialization.equality import assert_equal
from tests.serialization.records import changed, simple, with_vjps


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    def f(params: Any, x: Any) -> Any:
        return {"y": jnp.tanh(x @ params["w"])}

    shapes = [None, "(b, 3)"]
    return export(f, polymorphic_shapes=shapes)({"w": np.ones((3, 4), np.float32)}, np.ones((2, 3)))


def test_write_and_read(portable: PortableFunction, tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    write_function(path, portable, vjp_order=2)
    found = read_function(str(path))
    assert_equal(found, deserialize(serialize(portable, vjp_order=2)))
    assert_equal(replace(found, gradient=portable.with_vjp(0).gradient), portable.with_vjp(0))
    assert found.vjp().module.data == portable.vjp().module.data
    assert path.read_bytes() == serialize(portable, vjp_order=2)
    assert os.listdir(tmp_path) == ["f.jaxfn"]


@pytest.mark.parametrize("vjp_size", [0, 1, 1 << 17])
@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, 1 << 17])
def test_modules_of_all_sizes(size: int, vjp_size: int, tmp_path: Path) -> None:
    portable = with_vjps(changed(simple(), module=os.urandom(size)), os.urandom(vjp_size))
    path = tmp_path / "f.jaxfn"
    write_function(path, portable)
    assert_equal(read_function(path), portable)


def test_structure_that_is_larger_than_the_first_read(tmp_path: Path) -> None:
    constraints = tuple(f"b >= {n}" for n in range(5_000))
    portable = changed(simple(), constraints=constraints, module=os.urandom(1 << 17))
    path = tmp_path / "f.jaxfn"
    write_function(path, portable)
    assert_equal(read_function(path), portable)


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    path.write_bytes(b"something else")
    path.chmod(0o640)
    link = tmp_path / "link.jaxfn"
    link.symlink_to(path)
    write_function(link, simple())
    assert link.is_symlink()
    assert read_function(path).name == "f"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual, path = tmp_path / "usual", tmp_path / "f.jaxfn"
    usual.write_bytes(b"")
    write_function(path, simple())
    assert path.stat().st_mode == usual.stat().st_mode


class Unwritable(Exception):
    """Failure while a file is written."""


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_an_error_leaves_everything_as_it_was(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.jaxfn"
    write_function(path, simple())
    before = path.read_bytes()

    def fail(*args: Any) -> None:
        raise Unwritable

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(Unwritable):
        write_function(path, replace(simple(), name="another"))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["f.jaxfn"]


DEATH = """
import os, sys
from jax2tf_bridge.serialization import deserialize, write_function

record = deserialize(open(sys.argv[1], "rb").read())
os.replace = os.fsync = lambda *args: os._exit(0)  # the process dies when all is written
write_function(sys.argv[1], record, vjp_order=0)
"""


def test_a_process_that_dies_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    portable = with_vjps(simple(), b"the VJP")
    write_function(path, portable)
    run_python(DEATH, str(path))
    assert_equal(read_function(path), portable)


def test_nothing_is_touched_by_a_function_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    with pytest.raises(SerializationError):
        write_function(path, simple(), vjp_order=1)
    assert os.listdir(tmp_path) == []


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_function(tmp_path / "none" / "f.jaxfn", simple())
    with pytest.raises(FileNotFoundError):
        read_function(tmp_path / "none.jaxfn")


def test_what_jax_exported(tmp_path: Path) -> None:
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), np.float32))
    data = exported.serialize(vjp_order=1)
    assert data[4:8] != IDENTIFIER
    path = tmp_path / "f.bin"
    path.write_bytes(data)
    vjp = jax.export.deserialize(data).vjp()
    for found in (read_function(path), deserialize(data), deserialize(memoryview(data))):
        assert found.module.data == exported.mlir_module_serialized
        assert not found.constraints_known
        assert found.vjp().module.data == vjp.mlir_module_serialized
    # And so that it lasts:
    kept = deserialize(serialize(found, vjp_order=1))
    assert_equal(kept, found)


def test_a_large_file_of_jax(tmp_path: Path) -> None:
    constant = np.random.default_rng(0).standard_normal(1 << 15).astype(np.float32)
    exported = jax.export.export(jax.jit(lambda x: x + constant))(
        jax.ShapeDtypeStruct(constant.shape, np.float32)
    )
    path = tmp_path / "f.bin"
    path.write_bytes(exported.serialize())
    assert read_function(path).module.data == exported.mlir_module_serialized


def test_weights_in_the_place_of_a_function(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.msgpack", {"w": np.ones(30, np.float32)})
    hint = "The bytes seem to be weights in msgpack: read them with read_weights"
    with pytest.raises(FileFormatError, match=hint):
        read_function(tmp_path / "w.msgpack")


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("f.tflite", b"\x20\0\0\0TFL3", "a LiteRT model"),
        ("f.onnx", b"\x08\x08\x12\x04jax2", "an ONNX model"),
        ("f.npz", b"PK\x03\x04", r"a zip archive, as .npz and .keras files are"),
        ("saved_model.pb", b"\x08\x01", "a graph of TensorFlow"),
    ],
)
def test_files_of_other_formats_are_named(
    tmp_path: Path, name: str, start: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(start + bytes(100))
    with pytest.raises(FileFormatError) as caught:
        read_function(tmp_path / name)
    assert str(caught.value) == (
        f"{tmp_path / name} is {kind}, not an exported function. Pass the .jaxfn file that export "
        "wrote, or the folder of a SavedModel."
    )


@pytest.mark.parametrize("count", [1, 20, 1 << 16])
def test_weights_of_every_count_are_told(count: int) -> None:
    # The counts stand in 4 bits, 2 bytes and 4 bytes.
    data = to_bytes({f"weight{i}": i for i in range(count)})
    with pytest.raises(FileFormatError, match="The bytes seem to be weights in msgpack"):
        deserialize(data)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"w": list(range(50))}),
        b"\x89HDF\r\n\x1a\n" + bytes(50),
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        b"\x80" + bytes(50),
        b"\xde\xad\xbe\xef" + bytes(50),
    ],
    ids=["pickle", "HDF5", "PNG", "an empty mapping", "a key that is no text"],
)
def test_other_bytes_are_not_called_weights(data: bytes) -> None:
    with pytest.raises(FileFormatError) as caught:
        deserialize(data)
    assert "weights" not in str(caught.value)


@pytest.mark.parametrize("size", [1000, 1 << 17])
def test_neither_of_the_two(size: int, tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    path.write_bytes(bytes(size))
    with pytest.raises(FileFormatError) as caught:
        read_function(path)
    text = str(caught.value)
    assert text.startswith(
        f"{path} is not a .jaxfn file: its bytes 4 to 7 are b'\\x00\\x00\\x00\\x00'"
    )
    assert "It cannot be read as a file of jax.export either: " in text
    assert caught.value.file == str(path)


def test_errors_without_a_file_speak_of_the_data() -> None:
    with pytest.raises(FileFormatError, match=r"^The data has 0 bytes and is not a function") as e:
        deserialize(b"")
    assert e.value.file is None


def test_a_path_in_place_of_bytes() -> None:
    path: Any = "model.jaxfn"
    with pytest.raises(FunctionError, match=r"Got: 'model.jaxfn' of type str. Read a file with re"):
        deserialize(path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    # Opening one waits for the other end.
    writer = threading.Thread(target=lambda: open(path, "wb").close())
    writer.start()
    with pytest.raises(FileFormatError, match="is not a regular file: read its bytes and use des"):
        read_function(path)
    writer.join()


def test_a_file_that_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.jaxfn"
    write_function(path, changed(simple(), module=bytes(1 << 20)))
    reading = _file_parts.read_parts

    def shrinking(handle: io.FileIO, parts: Sequence[Part], file: str) -> list[bytes]:
        os.truncate(path, 1 << 17)
        return reading(handle, parts, file)

    monkeypatch.setattr(_files, "read_parts", shrinking)
    with pytest.raises(FileFormatError, match=r"it became shorter while it was read\."):
        read_function(path)


def test_a_file_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.jaxfn"
    write_function(path, simple())
    with io.FileIO(path) as handle, pytest.raises(FileFormatError) as caught:
        _file_parts.read_parts(handle, [Part("module", "f", 0, 1 << 60, "")], "f.jaxfn")
    assert str(caught.value) == (
        f"f.jaxfn cannot be read: {1 << 60} bytes of it do not fit into memory."
    )


@pytest.mark.parametrize("size", [100, (1 << 22) - 1, 1 << 22, (1 << 24) + 5])
def test_what_is_read_is_what_was_written(size: int, tmp_path: Path) -> None:
    module = np.random.default_rng(0).bytes(size)
    path = tmp_path / "f.jaxfn"
    write_function(path, changed(simple(), module=module))
    assert read_function(path).module.data == module
    with path.open("r+b") as handle:
        handle.seek(-3, os.SEEK_END)
        handle.write(bytes([module[-3] ^ 1]))
    with pytest.raises(FileFormatError, match="the checksum of the module of the function"):
        read_function(path)


@contextlib.contextmanager
def traced_peak() -> Iterator[list[int]]:
    """Yields a list that has the largest memory in use when the block ends."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_a_large_module_is_in_memory_once(tmp_path: Path) -> None:
    size = 1 << 24
    path = tmp_path / "f.jaxfn"
    write_function(path, changed(simple(), module=bytes(size)))
    with traced_peak() as peak:
        portable = read_function(path)
    assert len(portable.module.data) == size <= peak[0] < 1.1 * size


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """Or /dev/null would be gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    texts = {path: "exists and is not a regular file: choose", tmp_path: "is a folder: name a"}
    for target, text in texts.items():
        with pytest.raises(FileExistsError, match=text):
            write_function(target, simple())
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_not_read_if_they_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.exported"
    path.touch()
    os.truncate(path, 2**31)
    reading = _file_parts.read_part
    sizes: list[int] = []

    def counted(handle: io.FileIO, size: int, file: str) -> bytes:
        sizes.append(size)
        return reading(handle, size, file)

    monkeypatch.setattr(_files, "read_part", counted)
    with pytest.raises(FileFormatError, match="it has 2147483648 bytes, and that format holds at"):
        read_function(path)
    assert 0 < sum(sizes) < 1 << 20


def test_other_files_are_in_memory_once(tmp_path: Path) -> None:
    size = 1 << 24
    path = tmp_path / "f.exported"
    path.touch()
    os.truncate(path, size)
    with traced_peak() as peak, pytest.raises(FileFormatError, match=r"is not a \.jaxfn file"):
        read_function(path)
    assert size <= peak[0] < 1.5 * size
