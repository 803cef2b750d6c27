"""`jax2tf-bridge retarget`: the function in a file for another TensorFlow release."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import to_tf
from jax2tf_bridge.serialization import read_function
from tests.cli import models
from tests.cli.conftest import Run

Ok = Callable[..., str]


@pytest.fixture
def file(ok: Ok) -> str:
    words = ("--args", "f32[n]", "--tensorflow", "2.21", "-o", "cube.jaxfn")
    ok("export", "tests.cli.models:cube", *words)
    return "cube.jaxfn"


def test_values_and_gradients_are_the_same(ok: Ok, file: str) -> None:
    before = Path(file).read_bytes()
    text = ok("retarget", file, "--tensorflow", "2.16", "-o", "older.jaxfn")
    assert text == (
        "older.jaxfn: cube(x: float32[n]) -> (float32[n]); gradients to order 1; runs on "
        "TensorFlow 2.16 to 2.21\n"
    )
    assert Path(file).read_bytes() == before
    record = read_function("older.jaxfn")
    assert record.module.stablehlo_version == record.vjp().module.stablehlo_version == (0, 17, 7)
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = to_tf(record)(x)
    np.testing.assert_allclose(y, [1, 8])
    np.testing.assert_allclose(tape.gradient(y, x), [3, 12], rtol=1e-6)


def test_writes_beside_the_file_by_default(ok: Ok, file: str) -> None:
    assert ok("retarget", file, "--tensorflow", "2.17").startswith("cube-tf2.17.jaxfn: cube(")
    assert read_function("cube-tf2.17.jaxfn").tensorflow_releases[0] == "2.17"


def test_what_jax_wrote_becomes_a_file_of_ours(ok: Ok) -> None:
    exported = jax.export.export(jax.jit(models.cube))(jnp.ones(3))
    Path("cube").write_bytes(exported.serialize(vjp_order=1))
    ok("retarget", "cube", "--tensorflow", "2.15", "-o", "cube.jaxfn")
    ok("save", "cube.jaxfn", "-o", "m")
    y = tf.saved_model.load("m").serving_default(tf.constant([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(y, [1, 8, 27])


def test_errors(run: Run, file: str) -> None:
    for words, code, error in (
        ([file], 2, "the following arguments are required: --tensorflow"),
        ([file, "--tensorflow", "2.1"], 2, "--tensorflow 2.1: TensorFlow 2.15 is the oldest"),
        ([file, "--tensorflow", "2.16", "-o", "no/f"], 2, "--output: there is no folder no"),
        (["no.jaxfn", "--tensorflow", "2.16"], 2, "no.jaxfn: No such file or directory"),
    ):
        ended = run("retarget", *words)
        assert (ended.code, ended.out) == (code, "")
        assert ended.error.startswith(error)


def test_without_jax(run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [m for m in sys.modules if m.startswith("jax2tf_bridge.from_jax")]:
        monkeypatch.delitem(sys.modules, name)
    ended = run("retarget", file, "--tensorflow", "2.16")
    assert (ended.code, ended.error) == (
        1,
        "jax2tf-bridge retarget needs JAX, which is not installed here. Install it with: pip "
        "install 'jax2tf-bridge[jax]'",
    )
