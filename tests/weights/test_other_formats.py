"""Files that hold no weights: the message says what they are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge import FileFormatError, msgpack_restore, open_weights, read_weights, to_bytes

ARRAY = np.ones(3, np.float32)


def packed(compress: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(compress(to_bytes({"w": ARRAY})))


def write_npz(file: Path) -> None:
    with file.open("wb") as out:
        np.savez(out, w=ARRAY)


def write_npy(file: Path) -> None:
    with file.open("wb") as out:
        np.save(out, ARRAY)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (packed(lambda data: b""), "empty"),
        (packed(gzip.compress), "a gzip file: decompress"),
        (packed(bz2.compress), "a bzip2 file"),
        (packed(lzma.compress), "an xz file"),
        (packed(lambda data: b"\x89HDF\r\n\x1a\n" + data), "an HDF5 file"),
        (packed(lambda data: b"\x18\0\0\0JXFN" + data), "a .jaxfn file: it holds a function"),
        (packed(lambda data: b'{"w": [1, 2]}'), "JSON"),
        (packed(lambda data: pickle.dumps({"w": ARRAY})), "a pickle"),
        (write_npz, "a zip file, as numpy.savez"),
        (write_npy, "an array of numpy.save"),
    ],
)
@pytest.mark.parametrize("read", [read_weights, open_weights])
def test_what_a_file_is(read: Any, write: Any, says: str, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    write(file)
    with pytest.raises(FileFormatError, match=f"weights .* The bytes seem to be {says}"):
        read(file)
    with pytest.raises(FileFormatError, match=f"seem to be {says}"):
        msgpack_restore(file.read_bytes())


def test_a_folder_is_no_file_of_weights(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is a folder, and weights are read from one file"):
        read_weights(tmp_path)
