"""200 steps of training where JAX is not installed: other TensorFlows, LiteRT and C++."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable, Mapping
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
from tests.consumers.harness import CONSUMER_RELEASES, NEWEST_TENSORFLOW, Harness
from tests.sampling import sampled
from tests.training.consume_steps import measure
from tests.training.steps import STEPS, TRAININGS, Training, is_key
from tests.training.test_generation import DECODE, PROMPT, STATE, write_in_jax

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

WAYS = {"XLA": None, "operations": Target.widest(xla=False)}
RELEASES = (*CONSUMER_RELEASES[:2], NEWEST_TENSORFLOW)


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


@pytest.mark.parametrize(
    "case",
    sampled(list(itertools.product(TRAININGS, WAYS)), every=5),
    ids=lambda case: f"{case[0].name}-{case[1]}",
)
def test_cpp_trains_like_jax(harness: Harness, tmp_path: Path, case: tuple[Training, str]) -> None:
    training, way = case

    def train(state: Any, x: Any, y: Any) -> Any:
        outputs, new = training.train(state, x, y)
        return {**outputs, **name_weights(new)}, new

    signature = Signature(
        train,
        args=[training.x, training.y],
        polymorphic_shapes=list(training.shapes),
        updates_params=True,
    )
    save(tmp_path / "model", signature, params=training.state, target=WAYS[way])
    requests = [{"x": training.x, "y": training.y}] * max(STEPS)
    answers = answer_in_cpp(harness, tmp_path, requests)
    assert len(answers) == max(STEPS)
    state: Any = training.state
    step = jax.jit(train)
    for number, answer in enumerate(answers, 1):
        outputs, state = step(state, training.x, training.y)
        assert answer.keys() == outputs.keys()
        if number not in STEPS:
            continue
        for name, expected in outputs.items():
            # Momenta end near zero, where they have few exact digits.
            tolerance = 1e-5 if name.startswith(("loss", "params")) else 1e-4
            assert measure(answer[name], np.asarray(expected)) < tolerance, (number, name)


def name_weights(state: Any) -> dict[str, Any]:
    """Returns the leaves by names that begin with the first key of their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        f"{path[0].key}_{number}": jax.random.key_data(leaf) if is_key(leaf) else leaf
        for number, (path, leaf) in enumerate(leaves)
    }


@pytest.mark.parametrize("way", sampled(list(WAYS), every=len(WAYS)))
def test_cpp_keeps_the_cache_of_a_text(harness: Harness, tmp_path: Path, way: str) -> None:
    save(tmp_path / "model", DECODE, params=STATE, target=WAYS[way])
    expected = write_in_jax(50)
    requests = [{"words": PROMPT}, *({"words": np.array([w], np.int32)} for w in expected[:-1])]
    answers = answer_in_cpp(harness, tmp_path, requests)
    assert [int(answer["word"]) for answer in answers] == expected


def answer_in_cpp(
    harness: Harness, folder: Path, requests: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Loads the model in a folder in a C++ process, and returns its answers to requests."""
    with tf.io.TFRecordWriter(str(folder / "requests")) as writer:
        for request in requests:
            for name, array in (*request.items(), ("", np.zeros(0))):
                proto = tf.make_tensor_proto(array)
                named = named_tensor_pb2.NamedTensorProto(name=name, tensor=proto)
                writer.write(named.SerializeToString())
    program = compiled("answer", harness, NEWEST_TENSORFLOW)
    files = [folder / name for name in ("model", "requests", "answers")]
    environment = process_environment({"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"})
    done = subprocess.run(
        [program, *files], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = [{}]
    for record in tf.data.TFRecordDataset(str(folder / "answers")):
        named = named_tensor_pb2.NamedTensorProto.FromString(record.numpy())
        if named.name:
            answers[-1][named.name] = tf.make_ndarray(named.tensor)
        else:
            answers.append({})
    return answers[:-1]
