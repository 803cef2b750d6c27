"""New weights for a model that is published: only the variables are written."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import (
    ArgumentsError,
    DTypeError,
    FileFormatError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.publishing import latest_version, publish_version
from jax2tf_bridge.saved_model import MANIFEST, SIDECAR, Sidecar, VariableEntry, write_sidecar

# Private: changed to write small groups, and to remove a version in between.
from jax2tf_bridge.saving import _publish_weights as _weights
from jax2tf_bridge.saving import publish_weights

# Private: fingerprints with fields that no TensorFlow writes yet.
from jax2tf_bridge.saving._variables import replace_checkpoint_digest
from tests.fresh_process import run_python

X = np.ones((2, 3), np.float32)
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)
BIAS = np.arange(4).astype(ml_dtypes.bfloat16)
FIRST = {"dense/kernel": KERNEL, "dense/bias": BIAS, "step": np.asarray(7, np.int64)}
SECOND = {"dense/kernel": -KERNEL, "dense/bias": BIAS * 2, "step": np.asarray(8, np.int64)}
TABLE_AND_CONSTANT = 1000.0


class Model(tf.Module):  # type: ignore[misc]
    """A layer with weights of several dtypes, a constant, and a table, as other state."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.Module()
        self.dense.kernel = tf.Variable(KERNEL)
        self.dense.bias = tf.Variable(BIAS)
        self.step = tf.Variable(FIRST["step"], trainable=False)
        self.constants = [tf.Variable(np.full(2000, 900.0), trainable=False)]
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        self.table.insert(["a"], [100.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)], autograph=False)
    def f(self, x: Any) -> Any:
        y = x @ self.dense.kernel + tf.cast(self.dense.bias, tf.float32)
        rest = tf.cast(self.constants[0][5], tf.float32) + self.table.lookup(tf.constant("a"))
        return y, tf.cast(self.step, tf.float32) + rest


def write(folder: Path) -> None:
    model = Model()
    tf.saved_model.save(model, str(folder))
    (folder / "assets" / "words.txt").write_text("a b c")
    variables = tuple(
        VariableEntry(
            "params" + "".join(f"[{key!r}]" for key in name.split("/")),
            name,
            f"{name}/.ATTRIBUTES/VARIABLE_VALUE",
            value.dtype.name,
            value.shape,
            name != "step",
        )
        for name, value in FIRST.items()
    )
    write_sidecar(folder, Sidecar("0.1.0", tf.__version__, {}, variables), {})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m"
    write(path)
    return path


@pytest.fixture
def root(tmp_path: Path, model: Path) -> Path:
    """A root with one version."""
    publish_version(tmp_path / "root", lambda folder: shutil.copytree(model, folder))
    return tmp_path / "root"


def assert_answers(folder: Path, weights: Mapping[str, Any]) -> None:
    loaded = tf.saved_model.load(folder)
    y, rest = loaded.f(tf.constant(X))
    expected = X @ weights["dense/kernel"] + weights["dense/bias"].astype(np.float32)
    np.testing.assert_allclose(y, expected)
    np.testing.assert_allclose(rest, weights["step"] + TABLE_AND_CONSTANT)


def versions(root: Path) -> list[str]:
    """Lists all but the record of the numbers that are used."""
    return sorted(n for n in os.listdir(root) if not n.startswith(".versions-used-up-to-"))


def assert_untouched(root: Path) -> None:
    assert sorted(os.listdir(root)) == [".versions-used-up-to-1", "1"]
    assert_answers(root / "1", FIRST)


def test_new_weights_old_graph(root: Path) -> None:
    published = publish_weights(root, SECOND)
    assert (published.version, published.path, published.result) == (2, root / "2", root / "1")
    assert_answers(root / "2", SECOND)
    assert_answers(root / "1", FIRST)
    assert versions(root) == ["1", "2"]
    third = {name: value * 0 for name, value in SECOND.items()}
    assert publish_weights(root, third, keep=2).removed == (1,)
    assert_answers(root / "3", third)
    assert_answers(root / "2", SECOND)


def test_only_the_variables_are_written(root: Path) -> None:
    publish_weights(root, SECOND)
    old, new = (
        {p.relative_to(v).as_posix(): p.stat() for p in v.rglob("*") if p.is_file()}
        for v in (root / "1", root / "2")
    )
    assert set(new) == set(old)
    written = {name for name in new if new[name].st_ino != old[name].st_ino}
    assert written == {
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
        "fingerprint.pb",
        MANIFEST.as_posix(),
    }
    assert {str(SIDECAR), "saved_model.pb", "assets/words.txt"} < set(new)


def test_no_graph_is_built_and_no_model_is_loaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this is to be done without")

    monkeypatch.setattr(tf.saved_model, "load", fails)
    monkeypatch.setattr(tf.Graph, "__init__", fails)
    publish_weights(root, SECOND)


def test_files_are_copied_where_there_are_no_links(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: Any, target: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fails)
    publish_weights(root, SECOND)
    assert (root / "2" / "saved_model.pb").stat().st_nlink == 1
    assert_answers(root / "2", SECOND)


def test_fingerprint_is_that_of_the_new_checkpoint(root: Path) -> None:
    publish_weights(root, SECOND)
    old, new = (tf.saved_model.experimental.read_fingerprint(str(root / n)) for n in "12")
    assert new.checkpoint_hash != old.checkpoint_hash
    assert new.saved_object_graph_hash == old.saved_object_graph_hash
    assert new.graph_def_program_hash == old.graph_def_program_hash
    # TensorFlow's own is what we compute for the same index.
    for version in "12":
        written = (root / version / "fingerprint.pb").read_bytes()
        index = (root / version / "variables" / "variables.index").read_bytes()
        (root / version / "fingerprint.pb").write_bytes(replace_checkpoint_digest(written, index))
    assert tf.saved_model.experimental.read_fingerprint(str(root / "1")) == old
    assert tf.saved_model.experimental.read_fingerprint(str(root / "2")) == new


def test_fingerprint_keeps_what_a_newer_tensorflow_says() -> None:
    of_any_kind = b"\x49" + bytes(8) + b"\x55" + bytes(4) + b"\x58\x07"
    written = replace_checkpoint_digest(b"\x28\x01" + of_any_kind, b"an index")
    assert written.startswith(b"\x28")
    assert written.endswith(of_any_kind)
    assert len(written) > 2 + len(of_any_kind)


def test_model_without_a_fingerprint(root: Path) -> None:
    (root / "1" / "fingerprint.pb").unlink()
    publish_weights(root, SECOND)
    assert not (root / "2" / "fingerprint.pb").exists()
    assert_answers(root / "2", SECOND)


@pytest.mark.parametrize(
    "data", [b"\x29" + bytes(8), b"\x28\xff", b"\x3a\x05ab", b"\x28" + b"\xff" * 11]
)
def test_damaged_fingerprint(root: Path, data: bytes) -> None:
    (root / "1" / "fingerprint.pb").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"fingerprint\.pb"):
        publish_weights(root, SECOND)
    assert_untouched(root)


def test_arrays_of_every_library(root: Path) -> None:
    weights = {
        "dense/kernel": tf.Variable(SECOND["dense/kernel"]),
        "dense/bias": jnp.asarray(SECOND["dense/bias"]),
        "step": tf.constant(SECOND["step"]),
    }
    publish_weights(root, weights)
    assert_answers(root / "2", SECOND)
    strided = np.asfortranarray(SECOND["dense/kernel"])
    publish_weights(root, SECOND | {"dense/kernel": strided})
    assert_answers(root / "3", SECOND)


def test_within_a_function_that_tensorflow_traces(root: Path) -> None:
    @tf.function(autograph=False)
    def publishes() -> Any:
        publish_weights(root, SECOND)
        return tf.constant(1)

    publishes()
    assert_answers(root / "2", SECOND)


def test_some_of_the_weights(root: Path) -> None:
    with pytest.raises(StructureError) as caught:
        publish_weights(root, {"step": SECOND["step"]})
    assert str(caught.value) == (
        f"The weights do not fit the variables of {root / '1'}:\n"
        "  - 'dense/kernel' is missing; expected float32[3,4]\n"
        "  - 'dense/bias' is missing; expected bfloat16[4]"
    )


def test_values_of_64_bits_are_cast(root: Path) -> None:
    publish_weights(root, SECOND | {"dense/kernel": SECOND["dense/kernel"].astype(np.float64)})
    assert_answers(root / "2", SECOND)


def test_large_checkpoints_are_written_in_groups(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than the largest tensor at once; here the constant, of 16000 bytes."""
    monkeypatch.setattr(_weights, "_GROUP_BYTES", 1)
    publish_weights(root, SECOND)
    names = sorted(os.listdir(root / "2" / "variables"))
    assert names == [
        "variables.data-00000-of-00002",
        "variables.data-00001-of-00002",
        "variables.index",
    ]
    assert_answers(root / "2", SECOND)
    publish_weights(root, FIRST)
    assert_answers(root / "3", FIRST)


@pytest.mark.slow
def test_memory_for_one_tensor_besides_those_given(tmp_path: Path) -> None:
    code = """
    import re, sys
    from pathlib import Path
    import numpy as np
    import tensorflow as tf
    from jax2tf_bridge.saved_model import Sidecar, VariableEntry, write_sidecar
    from jax2tf_bridge.publishing import publish_version
    from jax2tf_bridge.saving import publish_weights

    def memory(field):
        status = Path("/proc/self/status").read_text()
        return int(re.search(field + r":\\s*(\\d+) kB", status)[1]) / 1024

    root, count, mib = Path(sys.argv[1]), 6, 64
    shape = (mib * 2**20 // 4,)
    entries = [
        VariableEntry(f"params['w{i}']", f"w{i}", f"w{i}/.ATTRIBUTES/VARIABLE_VALUE", "float32",
                      shape, True) for i in range(count)
    ]

    def write(folder):
        model = tf.Module()
        for i in range(count):
            setattr(model, f"w{i}", tf.Variable(tf.zeros(shape)))
        tf.saved_model.save(model, str(folder))
        write_sidecar(folder, Sidecar("0.1.0", tf.__version__, {}, tuple(entries)), {})

    publish_version(root, write)
    odd = [np.ones(shape[0] + 1, np.float32)[1:] for _ in range(count)]  # not aligned: copied
    peaks = []
    for _ in range(2):  # on a busy machine, a tensor's memory may be given back late
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = memory("VmRSS")
        publish_weights(root, {f"w{i}": array for i, array in enumerate(odd)})
        peaks.append(memory("VmHWM") - before)
    print(round(min(peaks)))
    loaded = tf.saved_model.load(root / "3")
    print(float(tf.reduce_min(loaded.w5)))
    """
    peak, value = run_python(code, str(tmp_path / "root")).split()
    assert int(peak) < 1.5 * 64
    assert value == "1.0"


# Weights that do not fit.


def test_unknown_names(root: Path) -> None:
    unknown = {"dense/kernels": KERNEL, "dense/bias": BIAS, "step": SECOND["step"], "q": KERNEL}
    with pytest.raises(StructureError) as caught:
        publish_weights(root, unknown)
    assert str(caught.value) == (
        f"The weights do not fit the variables of {root / '1'}:\n"
        "  - 'dense/kernels' is not one of its variables: did you mean 'dense/kernel'?\n"
        "  - 'q' is not one of its variables\n"
        "  - 'dense/kernel' is missing; expected float32[3,4]"
    )
    assert_untouched(root)


@pytest.mark.parametrize(
    ("wrong", "error", "lines"),
    [
        (
            {"dense/kernel": KERNEL.T},
            ShapeError,
            ["params['dense']['kernel']: expected float32[3,4], got float32[4,3]"],
        ),
        (
            {"dense/bias": BIAS.astype(np.float32), "step": 8.0},
            DTypeError,
            [
                "params['dense']['bias']: expected bfloat16[4], got float32[4]",
                "params['step']: expected int64[], got float64[]",
            ],
        ),
        (
            {"dense/kernel": KERNEL[0], "dense/bias": BIAS.astype(np.float16)},
            ArgumentsError,
            [
                "params['dense']['kernel']: expected float32[3,4], got float32[4]",
                "params['dense']['bias']: expected bfloat16[4], got float16[4]",
            ],
        ),
        (
            {"dense/kernel": ["a", "b"]},
            ArgumentsError,
            ["params['dense']['kernel']: expected float32[3,4], got string[2]"],
        ),
    ],
)
def test_shapes_and_dtypes(
    root: Path, wrong: Mapping[str, Any], error: type[Exception], lines: list[str]
) -> None:
    with pytest.raises(error) as caught:
        publish_weights(root, SECOND | dict(wrong))
    assert type(caught.value) is error
    assert str(caught.value) == (
        f"The weights do not fit the variables of {root / '1'}:\n  - "
        + "\n  - ".join(lines)
        + "\nIf the function now takes such weights, publish the whole model."
    )
    assert_untouched(root)


def test_root_without_a_version(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "new"):
        with pytest.raises(FileNotFoundError, match="has no published version yet"):
            publish_weights(root, SECOND)
    assert os.listdir(tmp_path) == []


def test_model_that_was_written_by_others(root: Path) -> None:
    (root / "1" / SIDECAR).unlink()
    with pytest.raises(FileFormatError, match=r"was not written by save\(\): it has no assets"):
        publish_weights(root, SECOND)
    assert_untouched(root)


def test_damaged_checkpoint(root: Path) -> None:
    index = root / "1" / "variables" / "variables.index"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(FileFormatError, match=r"is damaged, .*its last bytes are not those"):
        publish_weights(root, SECOND)
    assert versions(root) == ["1"]


DATA = "variables/variables.data-00000-of-00001"


@pytest.mark.parametrize(
    ("file", "size", "text"),
    [
        ("saved_model.pb", 5000, "It is cut short, damaged, or of another format"),
        ("saved_model.pb", 2, "there is no graph"),
        ("saved_model.pb", 0, "there is no graph"),
        ("saved_model.pb", None, "it has no saved_model.pb"),
        ("variables/variables.index", 0, "it has 0 bytes"),
        ("variables/variables.index", None, "has no variables/variables.index"),
        (DATA, 1000, "is cut short: it has 1000 bytes, and variables up to byte"),
        (DATA, None, "00000-of-00001 is missing"),
    ],
)
def test_damaged_version_is_not_copied_and_no_other_is_removed(
    root: Path, file: str, size: int | None, text: str
) -> None:
    publish_weights(root, SECOND)
    path = root / "2" / file
    data = path.read_bytes()
    path.unlink()  # version 1 may share the file
    if size is not None:
        path.write_bytes(data[:size])
    with pytest.raises(FileFormatError) as caught:
        publish_weights(root, FIRST, keep=1)
    assert str(caught.value).startswith(f"The newest version, {root / '2'}, is damaged, so no ")
    assert text in str(caught.value)
    assert str(caught.value).endswith(
        "Remove that folder to use the version before it, or publish the whole model."
    )
    assert versions(root) == ["1", "2"]
    # The remedy of the message.
    shutil.rmtree(root / "2")
    published = publish_weights(root, SECOND, keep=1)
    assert (published.version, published.result) == (3, root / "1")
    assert_answers(root / "3", SECOND)


def test_version_without_any_file_is_not_copied(root: Path) -> None:
    (root / "2").mkdir()
    with pytest.raises(FileFormatError, match=r"2, is damaged.* it has no saved_model\.pb"):
        publish_weights(root, FIRST, keep=1)
    assert versions(root) == ["1", "2"]


def test_damaged_constants_are_no_error_of_tensorflows(root: Path) -> None:
    data = root / "1" / DATA
    content = bytearray(data.read_bytes())
    content[:16000] = bytes(16000)
    data.write_bytes(content)
    text = r"The variables of .* cannot be read: .* Publish the whole model instead\.$"
    with pytest.raises(FileFormatError, match=f"(?s){text}"):
        publish_weights(root, SECOND)
    assert versions(root) == ["1"]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("key", "gone", "params['dense']['kernel'] is float32[3,4], and 'gone' holds nothing"),
        (
            "shape",
            [4],
            "is float32[4], and 'dense/kernel/.ATTRIBUTES/VARIABLE_VALUE' holds float32",
        ),
        ("dtype", "int32", "is int32[3,4], and 'dense/kernel/.ATTRIBUTES/VARIABLE_VALUE' holds"),
    ],
)
def test_sidecar_of_another_model(root: Path, field: str, value: Any, text: str) -> None:
    file = root / "1" / SIDECAR
    content = json.loads(file.read_text())
    content["variables"][0][field] = value
    file.write_text(json.dumps(content))
    weights = dict(SECOND)
    if field != "key":
        shape, dtype = content["variables"][0]["shape"], content["variables"][0]["dtype"]
        weights["dense/kernel"] = np.zeros(shape, dtype)
    with pytest.raises(FileFormatError, match="does not belong to the variables beside it") as e:
        publish_weights(root, weights)
    assert text in str(e.value)
    assert versions(root) == ["1"]


# While others publish.


def test_base_that_is_removed_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, taken = _weights._list_entries, []

    def is_removed(base: Path, *args: Any) -> Any:
        taken.append(base.name)
        if len(taken) == 1:
            publish_version(root, lambda folder: shutil.copytree(base, folder), keep=1)
        return entries(base, *args)

    monkeypatch.setattr(_weights, "_list_entries", is_removed)
    published = publish_weights(root, SECOND)
    assert taken == ["1", "2"]
    assert (published.version, published.result) == (3, root / "2")
    assert_answers(root / "3", SECOND)


def test_full_disk_says_what_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**kwargs: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "x; No space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", fails)
    with pytest.raises(OSError, match=r"free, 16\.\d kB are needed\. Existing files are unchang"):
        publish_weights(root, SECOND)
    monkeypatch.undo()
    assert latest_version(root) == root / "1"
    assert_untouched(root)
