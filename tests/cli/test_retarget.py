"""`jax2tf-bridge retarget`: the function in a file for another TensorFlow release."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import inspect, to_tf
from jax2tf_bridge.serialization import read_function
from tests.cli import models
from tests.cli.conftest import Ok, Run


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
        "TensorFlow 2.16 to 2.22\n"
    )
    assert Path(file).read_bytes() == before
    portable = read_function("older.jaxfn")
    assert (
        portable.module.stablehlo_version == portable.vjp().module.stablehlo_version == (0, 17, 7)
    )
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = to_tf(portable)(x)
    np.testing.assert_allclose(y, [1, 8])
    np.testing.assert_allclose(tape.gradient(y, x), [3, 12], rtol=1e-6)


def test_writes_beside_the_file_by_default(ok: Ok, file: str) -> None:
    assert ok("retarget", file, "--tensorflow", "2.17").startswith("cube-tf2.17.jaxfn: cube(")
    assert read_function("cube-tf2.17.jaxfn").tensorflow_releases[0] == "2.17"
    printed = ok("retarget", file, "--tensorflow", "2.17", "--json")
    assert json.loads(printed) == inspect("cube-tf2.17.jaxfn").as_json()


def test_what_jax_wrote_becomes_a_file_of_ours(ok: Ok) -> None:
    exported = jax.export.export(jax.jit(models.cube))(jnp.ones(3))
    Path("cube").write_bytes(exported.serialize(vjp_order=1))
    ok("retarget", "cube", "--tensorflow", "2.15", "-o", "cube.jaxfn")
    ok("save", "cube.jaxfn", "-o", "m")
    y = tf.saved_model.load("m").serving_default(tf.constant([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(y, [1, 8, 27])


def test_errors(run: Run, file: str) -> None:
    for words, code, error in (
        ([file], 2, "choose a target: --tensorflow RELEASE, such as 2.16, --no-xla, or --for-"),
        ([file, "--tensorflow", "2.1"], 2, "--tensorflow 2.1: TensorFlow 2.15 is the oldest"),
        ([file, "--tensorflow", "2.16", "-o", "no/f"], 2, "--output: there is no folder no"),
        (
            [file, "--for-converters"],
            2,
            "--for-converters: a .jaxfn file does not store this option. Pass it when you write a "
            f"SavedModel: jax2tf-bridge save {file} --for-converters -o DIR",
        ),
        (["no.jaxfn", "--tensorflow", "2.16"], 2, "no.jaxfn: No such file or directory"),
    ):
        ended = run("retarget", *words)
        assert (ended.code, ended.out) == (code, "")
        assert ended.error.startswith(error)
