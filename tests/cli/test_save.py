"""`jax2tf-bridge save`: from a file to a SavedModel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import inspect
from jax2tf_bridge.serialization import read_function, write_function
from tests.cli.conftest import Ok, Run
from tests.saving.precompiling import in_this_process
from tests.serialization.records import changed


def test_says_what_it_saved(ok: Ok, cube: str) -> None:
    text = ok("save", cube, "-o", "model/1")
    assert text == "model/1: serving_default(x: float32[n]) -> (output_0: float32[n])\n"
    loaded = tf.saved_model.load("model/1")
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.signatures["serving_default"](x=x)["output_0"]
    np.testing.assert_allclose(y, [1, 8, 27])
    np.testing.assert_allclose(tape.gradient(y, x), [3, 12, 27], rtol=1e-6)


def test_what_is_there_is_replaced_only_if_asked(run: Run, ok: Ok, cube: str) -> None:
    Path("model").mkdir()
    Path("model/kept").touch()
    ended = run("save", cube, "-o", "model")
    assert (ended.code, ended.error) == (1, "model already exists; --overwrite replaces it")
    assert Path("model/kept").exists()
    ended = run("save", cube, "-o", "model", "--overwrite")
    assert ended.code == 1
    assert ended.error.endswith(
        "model is not replaced: it has other contents, and no saved_model.pb"
    )
    assert Path("model/kept").exists()
    Path("model/saved_model.pb").touch()
    ok("save", cube, "-o", "model", "--overwrite")
    assert not Path("model/kept").exists()
    ended = run("save", cube, "-o", cube, "--overwrite")
    assert (ended.code, ended.error) == (
        1,
        f"{Path.cwd()}/cube.jaxfn already exists, and is not a folder",
    )


def test_notes(run: Run, ok: Ok, cube: str) -> None:
    ok("export", "tests.cli.models:cube", "--args", "f32", "--vjp-order", "0", "-o", "0.jaxfn")
    ended = run("save", "0.jaxfn", "-o", "0")
    assert ended.code == 0
    assert ended.err.startswith(
        "jax2tf-bridge: note: saved without a gradient: cube has no gradient: "
    )


def test_the_gradients_in_the_file_are_saved(ok: Ok) -> None:
    ok("export", "tests.cli.models:cube", "--args", "f32", "--vjp-order", "2", "-o", "2.jaxfn")
    printed = ok("save", "2.jaxfn", "-o", "2", "--json")
    assert json.loads(printed) == inspect("2").as_json()
    cube = tf.saved_model.load("2").serving_default
    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        slope = inner.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(slope, x), 12, rtol=1e-6)


def test_a_module_that_is_too_new_says_what_mends_it(run: Run, cube: str) -> None:
    write_function(cube, changed(read_function(cube), stablehlo_version=(9, 0, 0)))
    ended = run("save", cube, "-o", "m")
    assert ended.code == 1
    assert ended.error.startswith("cube needs StableHLO 9.0.0 and calling convention 8; ")
    release = ".".join(tf.__version__.split(".")[:2])
    assert (
        f" Where JAX is installed, retarget it: jax2tf-bridge retarget {cube} --tensorflow "
        f"{release}, or in Python retarget(portable, Target.tensorflow('{release}')). Or "
        "export it again without --tensorflow, or serve it with a newer TensorFlow."
    ) in ended.error
    assert not Path("m").exists()


def test_files_that_are_none(run: Run, cube: str) -> None:
    ended = run("save", "no.jaxfn", "-o", "m")
    assert (ended.code, ended.error) == (2, "no.jaxfn: No such file or directory")
    data = Path(cube).read_bytes()
    Path("cut.jaxfn").write_bytes(data[:-1])
    ended = run("save", "cut.jaxfn", "-o", "m")
    assert ended.code == 1
    assert ended.error.startswith("cut.jaxfn cannot be read as a .jaxfn file: ")
    assert not Path("m").exists()


def test_buckets(run: Run, ok: Ok, cube: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = in_this_process(monkeypatch)
    buckets = ("--buckets", "n=2,4", "--oversize", "n=as-is", "--vjp-order", "0")
    ok("save", cube, "-o", "model", *buckets, "--precompile")
    assert Path("model/assets.extra/tf_serving_warmup_requests").exists()
    assert Path("model/assets.extra/xla_cache").is_dir()
    assert len(started) == 1
    loaded = tf.saved_model.load("model")
    np.testing.assert_allclose(loaded.serving_default(tf.ones(7)), np.ones(7))
    ended = run("save", cube, "-o", "other", "--buckets", "m=2")
    assert (ended.code, "'m'" in ended.error) == (1, True)
    ended = run("save", cube, "-o", "other", "--buckets", "m")
    assert ended.code == 2
    assert "'m' is not of the form NAME=N,N, as b=1,8,32" in ended.error


def test_requests_are_joined(run: Run, ok: Ok, cube: str) -> None:
    ok("save", cube, "-o", "model", "--buckets", "n=2,4", "--batching", "--vjp-order", "0")
    assert "no gradient; buckets n 2, 4; joins concurrent requests\n" in ok("inspect", "model")
    ok("retarget", "model", "--no-xla", "-o", "own")
    for folder in ("model", "own"):
        signature = tf.saved_model.load(folder).signatures["serving_default"]
        for size in (3, 7):
            results = signature(x=2 * tf.ones(size))
            np.testing.assert_allclose(results["output_0"], np.full(size, 8), rtol=1e-6)
    ended = run("retarget", "model", "--for-converters", "-o", "other")
    assert (ended.code, ended.error) == (
        1,
        "model cannot be rewritten for converters: serving_default joins requests with "
        "TensorFlow's BatchFunction, which they do not know. Save the model without batching.",
    )
    ended = run("save", cube, "-o", "other", "--batching")
    assert (ended.code, ended.error) == (
        1,
        "--batching cannot join the requests of the signature serving_default: it has no buckets. "
        "Give save --buckets NAME=N,N, or leave out --batching.",
    )


def test_versions_are_published(run: Run, cube: str) -> None:
    for version in ("1", "2", "3"):
        ended = run("publish", cube, "-o", "models", "--keep", "2", "--vjp-order", "0")
        assert ended.out.startswith(f"models/{version}: serving_default(x: float32[n]) -> ")
    assert ended.err == "jax2tf-bridge: note: removed the versions 1\n"
    assert sorted(p.name for p in Path("models").iterdir()) == [".versions-used-up-to-3", "2", "3"]
    ended = run("publish", cube, "-o", "models", "--keep", "0")
    assert ended.code == 2
    assert "argument --keep: expected a number of at least 1. Got: 0" in ended.error


def test_more_gradients_than_the_file_has(run: Run, ok: Ok, cube: str) -> None:
    ended = run("save", cube, "-o", "model", "--vjp-order", "3")
    assert ended.code == 1
    assert "has no gradient" in ended.error
    assert not Path("model").exists()


@pytest.mark.parametrize("command", ["save", "publish"])
def test_the_file_and_the_folder_swapped(run: Run, cube: str, command: str) -> None:
    Path("models").mkdir()
    ended = run(command, "models", "-o", cube)
    assert (ended.code, ended.error) == (
        2,
        f"--output: {cube} is a file. Name the folder to write there, and the file before it: "
        f"jax2tf-bridge {command} {cube} -o DIR",
    )
    ended = run(command, "models", "-o", "more")
    assert (
        ended.error
        == f"models is a folder, and {command} reads files that export wrote. Pass a file"
    )
