"""`--no-xla`: functions become TensorFlow's own operations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.inspecting import read_saved_model
from jax2tf_bridge.serialization import read_function
from tests.cli.conftest import Ok, Run

EXPORT = ("export", "tests.cli.models:cube", "--args", "f32[n]")


@pytest.fixture
def no_xla(ok: Ok) -> str:
    ok(*EXPORT, "--no-xla", "-o", "no-xla.jaxfn")
    return "no-xla.jaxfn"


def check_model(folder: str) -> None:
    """The model has values and gradients, and no module."""
    loaded = tf.saved_model.load(folder)
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.signatures["serving_default"](x=x)["output_0"]
    np.testing.assert_allclose(y, [1, 8, 27], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), [3, 12, 27], rtol=1e-6)
    assert read_saved_model(folder).modules == ()


def test_export_and_save(ok: Ok) -> None:
    text = ok(*EXPORT, "--no-xla", "--tensorflow", "2.17", "-o", "cube.jaxfn")
    assert text == (
        "cube.jaxfn: cube(x: float32[n]) -> (float32[n]); gradients to order 1; runs on "
        "TensorFlow 2.15 to 2.22, as its own operations\n"
    )
    portable = read_function("cube.jaxfn")
    assert portable.target.name == "TensorFlow 2.17 without XLA"
    assert not portable.vjp().target.xla
    ok("save", "cube.jaxfn", "-o", "model/1")
    check_model("model/1")


def test_save_of_a_function_for_xla(ok: Ok, cube: str) -> None:
    ok("save", cube, "--no-xla", "-o", "model/1")
    check_model("model/1")
    ok("publish", cube, "--no-xla", "-o", "models")
    check_model("models/1")


def test_retarget_there_and_back(ok: Ok, cube: str) -> None:
    there = ok("retarget", cube, "--no-xla")
    assert there.startswith("cube-no-xla.jaxfn: cube(")
    assert there.endswith("as its own operations\n")
    ok("save", "cube-no-xla.jaxfn", "-o", "model/1")
    check_model("model/1")
    back = ok("retarget", "cube-no-xla.jaxfn", "--tensorflow", "2.16", "-o", "back.jaxfn")
    assert back.endswith("runs on TensorFlow 2.16 to 2.22\n")
    ok("save", "back.jaxfn", "-o", "model/2")
    assert read_saved_model("model/2").modules
    ok("retarget", cube, "--no-xla", "--tensorflow", "2.17")
    assert Path("cube-tf2.17-no-xla.jaxfn").exists()


def test_inspect_says_so(ok: Ok, no_xla: str) -> None:
    lines = ok("inspect", no_xla)
    assert "TensorFlow 2.15 to 2.22; as TensorFlow's own operations, without XLA" in lines
    assert json.loads(ok("inspect", no_xla, "--json"))["xla"] is False
    ok("save", no_xla, "-o", "model")
    text = ok("inspect", "model")
    assert (
        "signature serving_default(x: float32[n]) -> (output_0: float32[n]); TensorFlow's own "
        "operations; gradients to any order\n"
    ) in text
    assert "compile" not in text
    facts = json.loads(ok("inspect", "model", "--json"))
    assert facts["modules"] == []
    assert facts["signatures"][0]["own_operations"] is True
    release = ".".join(tf.__version__.split(".")[:2])
    assert facts["tensorflow"][0] == release
    ok("inspect", "model", "--html", "page.html")


@pytest.mark.slow
def test_verify_and_serve_check(ok: Ok, no_xla: str) -> None:
    ok("save", no_xla, "-o", "model/1")
    assert "serving_default" in ok("verify", "model/1", "--against", "tests.cli.models:cube")
    told = ok("serve-check", "model/1", "--python", sys.executable)
    assert "signature serving_default, with gradients" in told


def test_errors(run: Run, ok: Ok, no_xla: str) -> None:
    ended = run("export", "tests.cli.models:kernel", "--args", "f32[3]", "--no-xla", "-o", "k")
    assert ended.code == 1
    assert "kernel cannot run on every TensorFlow from 2.15 on without XLA" in ended.error
    ended = run("save", no_xla, "-o", "model", "--precompile")
    assert (ended.code, ended.error) == (
        1,
        "--precompile has nothing to compile: TensorFlow runs its own operations as they are. "
        "Leave it out.",
    )
    ok("save", no_xla, "-o", "model")
    ended = run("retarget", "model", "--tensorflow", "2.17", "-o", "other")
    assert ended.code == 1
    assert "has no module to retarget" in ended.error
    ended = run("publish", "--params", "w.msgpack", "--no-xla", "-o", "models")
    assert ended.code == 2
    assert "--no-xla: without FILE, publish replaces only the weights" in ended.error
