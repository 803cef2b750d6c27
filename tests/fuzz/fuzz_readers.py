"""One fuzzing process: `python -m tests.fuzz.fuzz_readers READER [libFuzzer's arguments]`.

A reader may raise FileFormatError and nothing else, and what it hands out must be whole. libFuzzer
ends the process at anything else, and at what takes longer than -timeout seconds. Memory beyond
MEMORY is refused by the system. libFuzzer's own -rss_limit_mb is of no use: it asks for the peak of
the process, and Linux counts in that what the process that started this one took.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["jax2tf_bridge", "shape_poly"]):
    from jax2tf_bridge import PortableFunction
    from jax2tf_bridge.bytecode import read_summary
    from jax2tf_bridge.errors import FileFormatError
    from jax2tf_bridge.portable import array_size

    # Private: readers that public functions reach only below a root of versions.
    from jax2tf_bridge.publishing._labels import read_labels, update_labels
    from jax2tf_bridge.publishing._manifest import iterate_differences, read_manifest
    from jax2tf_bridge.saved_model import GRAPH_FILE, MANIFEST, read_saved_model
    from jax2tf_bridge.serialization import deserialize, read_function
    from jax2tf_bridge.serialization.jax_exported import read_exported
    from jax2tf_bridge.serialization.jaxfn import HEADER_SIZE, IDENTIFIER
    from jax2tf_bridge.serialization.jaxfn._format import fill_header
    from jax2tf_bridge.weights import msgpack_restore, open_weights, read_weights

MEMORY = 512 << 20
"""Maximum number of bytes that the readers may take together, above the use at their start."""

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-readers-"))
(_FOLDER / MANIFEST.parent).mkdir()
_FILE = Path(tempfile.mkdtemp(prefix="fuzz-readers-")) / "function.jaxfn"


def _use(portable: PortableFunction) -> None:
    """All that one can do with a portable function without running it."""
    repr(portable)
    for _ in range(4):
        assert len(portable.in_paths()) == len(portable.in_avals)
        assert len(list(portable.out_tree.leaf_paths())) == len(portable.out_avals)
        assert all(i < len(portable.in_avals) for i in portable.module.kept_arguments)
        assert all(len(c.data) == array_size(c.aval) for c in portable.lifted_constants if c.data)
        if not portable.has_vjp:
            break
        portable = portable.vjp()


def jaxfn(data: bytes) -> None:
    """A .jaxfn file, from memory."""
    _use(deserialize(data))


def jaxfn_file(data: bytes) -> None:
    """A file, by its name."""
    _FILE.write_bytes(data)
    _use(read_function(_FILE))


def exported(data: bytes) -> None:
    """Reads a file of jax.export."""
    _use(read_exported(data))


def bytecode(data: bytes) -> None:
    """Reads a StableHLO portable artifact."""
    summary = read_summary(data)
    assert sum(summary.operations.values()) <= len(data)


def _numbers(tree: Any) -> list[bytes]:
    """The numbers of all arrays and scalars in a tree, each of which is read."""
    found, left = [], [tree]
    while left:
        item = left.pop()
        if isinstance(item, dict | list):
            left += item.values() if isinstance(item, dict) else item
        elif isinstance(item, np.ndarray | np.generic):
            found.append(item.tobytes())
    return found


def msgpack(data: bytes) -> None:
    """Weights in msgpack, from memory."""
    assert sum(map(len, _numbers(msgpack_restore(data)))) <= len(data)


def weights_file(data: bytes) -> None:
    """A file of weights, as a whole and leaf by leaf; both ways it holds the same."""
    _FILE.write_bytes(data)
    tree = read_weights(_FILE, mmap=False)
    expected = _numbers(tree)
    assert _numbers(read_weights(_FILE)) == expected
    with open_weights(_FILE) as weights:
        str(weights)
        infos = weights.info.values()
        arrays = [v.tobytes() for v in weights.values() if isinstance(v, np.ndarray | np.generic)]
        assert sorted(arrays) == sorted(expected)
        assert sum(info.nbytes for info in infos) == sum(map(len, expected))


def saved_model(data: bytes) -> None:
    """Reads a saved_model.pb in a folder of its own."""
    (_FOLDER / GRAPH_FILE).write_bytes(data)
    contents = read_saved_model(_FOLDER, accept_any_tool=True)
    assert all(entry.name for entry in contents.entries if entry.is_signature)


def manifest(data: bytes) -> None:
    """Reads the manifest of a version, and compares the version with it."""
    (_FOLDER / MANIFEST).write_bytes(data)
    found = read_manifest(_FOLDER)
    assert found is not None
    list(iterate_differences(_FOLDER, found, contents=True))
    assert len(found.code_digest()) == len(found.weights_digest())


def model_config(data: bytes) -> None:
    """Reads the labels of a file of models, and changes them; the others stay."""
    file = _FOLDER / "models.config"
    file.write_bytes(data)
    root = _FOLDER / "dense"
    labels = read_labels(root)
    # A label may be longer or stranger than those that the bridge writes.
    update_labels(root, lambda old: {"stable": len(old)})
    assert read_labels(root) == {"stable": len(labels)}


READERS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f
    for f in (
        *(jaxfn, jaxfn_file, exported, bytecode, msgpack, weights_file),
        *(saved_model, manifest, model_config),
    )
}


def _with_header(data: bytes) -> bytes:
    """The bytes with the header that they ought to have, so that the checksum hides nothing."""
    (size,) = struct.unpack_from("<Q", data, 16)
    structure = bytearray(data[:size] if HEADER_SIZE <= size <= len(data) else data)
    structure[4:8] = IDENTIFIER
    rest = data[len(structure) :]
    fill_header(structure, len(rest))
    return bytes(structure) + rest


def _mutated(data: bytes, max_size: int, seed: int) -> bytes:
    changed: bytes = atheris.Mutate(data, max_size)
    keeps_its_header = len(changed) < HEADER_SIZE or random.Random(seed).random() < 0.1
    return changed if keeps_its_header else _with_header(changed)


def _limit_memory() -> None:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (taken,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))
    limit = (int(taken) << 10) + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Fuzzes the reader that the first argument names."""
    name, *arguments = sys.argv[1:]
    reader = READERS[name]

    def run(data: bytes) -> None:
        try:
            reader(data)
        except FileFormatError as e:
            if isinstance(e.__cause__ or e.__context__, MemoryError):
                raise MemoryError from e

    mutator = {"custom_mutator": _mutated} if name.startswith("jaxfn") else {}
    atheris.Setup([sys.argv[0], *arguments], run, **mutator)
    _limit_memory()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
