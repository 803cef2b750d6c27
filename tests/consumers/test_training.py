"""200 steps of training where JAX is not installed: other TensorFlows, LiteRT and C++."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import named_tensor_pb2

from jax2tf_bridge import Signature, Target, save, save_litert
from scripts._env import ROOT
from tests.consumers.cpp_programs import compiled
from tests.consumers.environments import process_environment
from tests.consumers.harness import NEWEST_TENSORFLOW, TENSORFLOW_RELEASES, Harness
from tests.training.steps import STEPS, TRAININGS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

WAYS = {"XLA": None, "operations": Target.widest(xla=False)}
RELEASES = (*TENSORFLOW_RELEASES[:2], NEWEST_TENSORFLOW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the models of each training, and what JAX computes with it."""
    parent = tmp_path_factory.mktemp("trainings")
    for training in TRAININGS:
        folder = parent / training.name
        folder.mkdir()
        for way, target in WAYS.items():
            saved = save(
                folder / way,
                training.signatures(),
                params=training.state,
                trainable=["params"],
                weight_signatures=["get_weights"],
                target=target,
            )
        training.record(folder / "record.npz", saved.signatures["get_weights"].outputs)
        save_litert(folder / "model.tflite", training.signatures(), params=training.state)
    return parent


def check(python: Path, folder: Path, *models: str, tolerance: float) -> None:
    """Trains in an environment, and compares with JAX."""
    done = subprocess.run(
        [str(python), "-m", "tests.training.consume_steps", folder, *models],
        cwd=ROOT,
        env=process_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == len(TRAININGS) * len(models)
    for each in differences.values():
        assert len(each) == 4 * len(STEPS)
        # Momenta end near zero, where they have few exact digits.
        assert max(v for k, v in each.items() if "state" not in k) < tolerance, differences
        assert max(each.values()) < 10 * tolerance, differences


@pytest.mark.parametrize("release", RELEASES)
def test_tensorflow_trains_like_jax(harness: Harness, folder: Path, release: str) -> None:
    check(harness.consumer_python(release), folder, *WAYS, tolerance=1e-5)


def test_litert_trains_like_jax(harness: Harness, folder: Path) -> None:
    check(harness.litert_python(), folder, "model.tflite", tolerance=1e-4)


def test_cpp_trains_like_jax(harness: Harness, tmp_path: Path) -> None:
    training = TRAININGS[0]
    train = Signature(
        lambda state, x, y: training.train(state, x, y),
        args=[training.x, training.y],
        polymorphic_shapes=list(training.shapes),
        updates_params=True,
    )
    save(tmp_path / "model", train, params=training.state)
    with tf.io.TFRecordWriter(str(tmp_path / "requests")) as writer:
        for _ in range(max(STEPS)):
            for name, array in (("x", training.x), ("y", training.y), ("", np.zeros(0))):
                proto = tf.make_tensor_proto(array)
                named = named_tensor_pb2.NamedTensorProto(name=name, tensor=proto)
                writer.write(named.SerializeToString())
    program = compiled("answer", harness, NEWEST_TENSORFLOW)
    files = [tmp_path / name for name in ("model", "requests", "answers")]
    environment = process_environment({"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"})
    done = subprocess.run(
        [program, *files], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    losses = list(read_losses(tmp_path / "answers"))
    state: Any = training.state
    step = jax.jit(training.train)
    for loss in losses:
        outputs, state = step(state, training.x, training.y)
        np.testing.assert_allclose(loss, outputs["loss"], rtol=1e-5)
    assert len(losses) == max(STEPS)


def read_losses(path: Path) -> Iterator[Any]:
    for record in tf.data.TFRecordDataset(str(path)):
        named = named_tensor_pb2.NamedTensorProto.FromString(record.numpy())
        if named.name == "loss":
            yield tf.make_ndarray(named.tensor)
