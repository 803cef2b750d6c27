"""Real models in a C++ program, compiled by XLA and as TensorFlow's operations."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import named_tensor_pb2

from jax2tf_bridge import Signature, Target, save
from tests.consumers.conftest import Recorder
from tests.consumers.cpp_programs import compiled
from tests.consumers.environments import process_environment
from tests.consumers.exchange import OPERATIONS, Array, read_arrays
from tests.consumers.harness import NEWEST_TENSORFLOW, Harness
from tests.consumers.one_by_one import take_errors
from tests.models.comparing import compare
from tests.models.exports import PARTS, SAMPLE, exported_part, part_of
from tests.models.model import Model

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_WAYS = {"xla": "model", "operations": f"{OPERATIONS}model"}
# In the order in which two workers of pytest have one process each to wait for.
_CASES = [(way, model) for part in PARTS for way in _WAYS for model in part]


@pytest.fixture
def program(harness: Harness) -> Path:
    """Compiles the program against the newest TensorFlow."""
    return compiled("answer", harness, NEWEST_TENSORFLOW)


def _write(path: Path, requests: Sequence[Mapping[str, Array]]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            for name, array in request.items():
                named = named_tensor_pb2.NamedTensorProto(
                    name=name, tensor=tf.make_tensor_proto(array)
                )
                writer.write(named.SerializeToString())
            writer.write(b"")


def _answers(path: Path) -> Iterator[Mapping[str, Array]]:
    answer: dict[str, Array] = {}
    for record in tf.data.TFRecordDataset(str(path)):
        named = named_tensor_pb2.NamedTensorProto.FromString(record.numpy())
        if named.name:
            answer[named.name] = tf.make_ndarray(named.tensor)
        else:
            yield answer
            answer = {}


def _run(program: Path, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, model, folder / "requests", folder / "answers"],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment({"TF_CPP_MIN_LOG_LEVEL": "3"}),
    )


@pytest.mark.parametrize("target", [Target.widest(), Target.widest(xla=False)], ids=str)
def test_sizes_that_do_not_fit_are_an_error_status(
    program: Path, target: Target, tmp_path: Path
) -> None:
    """A session compares no shapes with the signature's: an operation would take others."""
    signature = Signature(lambda x: x + x, args=[np.ones((2, 3))], polymorphic_shapes="(b, 3)")
    save(tmp_path / "model", signature, target=target)
    for shape in ((2, 4), (2, 3, 1), (0, 3)):
        _write(tmp_path / "requests", [{"x": np.ones(shape, np.float32)}])
        done = _run(program, tmp_path / "model", tmp_path)
        assert done.returncode == 1, shape
        assert "run: INVALID_ARGUMENT" in done.stderr
    _write(tmp_path / "requests", [{"x": np.ones((2, 4), np.float32)}])
    said = _run(program, tmp_path / "model", tmp_path).stderr
    assert re.search(r"expected shape \[\?,3\]|tensor<\?x3xf32>", said), said


@pytest.mark.parametrize(
    ("way", "model"),
    [
        pytest.param(way, model, marks=() if model.name in SAMPLE else pytest.mark.complete)
        for way, model in _CASES
    ],
    ids=str,
)
def test_values_are_those_of_jax(
    harness: Harness, program: Path, record: Recorder, way: str, model: Model, tmp_path: Path
) -> None:
    folder, exports = exported_part(harness, part_of(harness, model))
    assert not exports[model.name].failures, str(exports[model.name])
    exported = folder / model.name
    facts = json.loads((exported / "model.json").read_text())
    arrays = [read_arrays(exported / f"call-{i}.npz") for i in range(facts["calls"])]
    requests = [dict(zip(facts["inputs"], a["inputs"], strict=True)) for a in arrays]
    # Other sizes in one session: what is open is open.
    assert len({tuple(a.shape for a in request.values()) for request in requests}) > 1
    _write(tmp_path / "requests", requests)
    done = _run(program, exported / _WAYS[way], tmp_path)
    assert done.returncode == 0, done.stderr
    failures: list[str] = []
    for i, (answer, call) in enumerate(zip(_answers(tmp_path / "answers"), arrays, strict=True)):
        names, wanted = facts["outputs"], call["results"]
        results = [np.asarray(answer[name]) for name in names]
        where = f"call {i}, "
        failures += compare(where, names, results, wanted, facts["tolerance"], noted=way)
    assert failures == []
    record("C++", model.name, way, take_errors()[way])
