"""A C++ program replays the warm-up file as TensorFlow Serving does; then nothing compiles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax2tf_bridge
from tests.consumers.cpp_programs import compiled
from tests.consumers.harness import NEWEST_TENSORFLOW, OLDEST_TENSORFLOW, Harness
from tests.consumers.replaying import Replay, numbers, replay

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

BUCKETS = (1, 8, 32, 64, 96, 128)
WIDTH = 28
WEIGHTS = np.random.default_rng(0).normal(size=(WIDTH, 10)).astype(np.float32)


ON_THE_NEWEST = pytest.mark.parametrize(
    "program",
    [pytest.param(OLDEST_TENSORFLOW, marks=pytest.mark.complete), NEWEST_TENSORFLOW],
    indirect=True,
)


@pytest.fixture(params=[OLDEST_TENSORFLOW, NEWEST_TENSORFLOW])
def program(harness: Harness, request: pytest.FixtureRequest) -> Path:
    """Compiles the program against one TensorFlow release."""
    return compiled("replay", harness, request.param)


def layer(params: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x @ params)


def save(path: Path, **options: Any) -> Path:
    portable = jax2tf_bridge.export(layer, polymorphic_shapes=[None, f"(b, {WIDTH})"])(
        WEIGHTS, np.zeros((4, WIDTH), np.float32)
    )
    jax2tf_bridge.save(path, portable, params=WEIGHTS, **options)
    return path


def check(done: Replay, sizes: list[int]) -> None:
    """Compares all answers with NumPy's."""
    inputs = [numbers(number, size, WIDTH) for number, size in enumerate(sizes)]
    expected = np.concatenate([np.tanh(x @ WEIGHTS) for x in inputs])
    np.testing.assert_allclose(done.answers.reshape(-1, 10), expected, rtol=2e-4, atol=2e-4)
    assert [run.name for run in done.requests] == [str(size) for size in sizes]


def test_nothing_compiles_after_the_warm_up(program: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", buckets={"b": BUCKETS})
    generator = random.Random(0)
    sizes = [*(generator.randint(1, 128) for _ in range(500)), 0, 129, 300, 128]
    done = replay(program, model, sizes, tmp_path / "answers")
    check(done, sizes)
    assert [run.name for run in done.warm_up] == ["serving_default"] * len(BUCKETS)
    assert [run.compilations for run in done.warm_up] == [1, 2, 3, 4, 5, 6]
    assert done.compilations() == (len(BUCKETS), 0)


@ON_THE_NEWEST
def test_without_buckets_each_size_compiles(program: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", warm_up=False)
    done = replay(program, model, [3, 5, 3, 7, 5], tmp_path / "answers")
    check(done, [3, 5, 3, 7, 5])
    assert done.warm_up == ()
    assert [run.compilations for run in done.requests] == [1, 2, 2, 3, 3]


@ON_THE_NEWEST
def test_without_warm_up_each_bucket_compiles_once(program: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", buckets={"b": (4, 8)}, warm_up=False)
    sizes = [3, 4, 1, 5, 8, 20, 2]
    done = replay(program, model, sizes, tmp_path / "answers")
    check(done, sizes)
    assert [run.compilations for run in done.requests] == [1, 1, 1, 2, 2, 2, 2]


@ON_THE_NEWEST
def test_larger_sizes_as_they_are(program: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", buckets={"b": (4, 8)}, oversize="as is")
    sizes = [3, 8, 20, 21, 20]
    done = replay(program, model, sizes, tmp_path / "answers")
    check(done, sizes)
    assert [run.compilations for run in done.requests] == [2, 2, 3, 4, 4]
