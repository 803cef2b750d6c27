"""`jax2tf-bridge save`: from a file to a SavedModel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.serialization import read_function, write_function
from tests.cli.conftest import Run
from tests.saving.precompiling import in_this_process
from tests.serialization.records import changed

Ok = Callable[..., str]


@pytest.fixture
def file(ok: Ok) -> str:
    ok("export", "tests.cli.models:cube", "--args", "f32[n]", "-o", "cube.jaxfn")
    return "cube.jaxfn"


def test_says_what_it_saved(ok: Ok, file: str) -> None:
    text = ok("save", file, "-o", "model/1")
    assert text == "model/1: serving_default(x: float32[n]) -> (output_0: float32[n])\n"
    loaded = tf.saved_model.load("model/1")
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.signatures["serving_default"](x=x)["output_0"]
    np.testing.assert_allclose(y, [1, 8, 27])
    np.testing.assert_allclose(tape.gradient(y, x), [3, 12, 27], rtol=1e-6)


def test_what_is_there_is_replaced_only_if_asked(run: Run, ok: Ok, file: str) -> None:
    Path("model").mkdir()
    Path("model/kept").touch()
    ended = run("save", file, "-o", "model")
    assert (ended.code, ended.error) == (1, "model is there already; --overwrite replaces it")
    assert Path("model/kept").exists()
    ended = run("save", file, "-o", "model", "--overwrite")
    assert ended.code == 1
    assert ended.error.endswith(
        "model is not replaced: it has no saved_model.pb, but something else"
    )
    assert Path("model/kept").exists()
    Path("model/saved_model.pb").touch()
    ok("save", file, "-o", "model", "--overwrite")
    assert not Path("model/kept").exists()
    ended = run("save", file, "-o", file, "--overwrite")
    assert (ended.code, ended.error) == (
        1,
        f"{Path.cwd()}/cube.jaxfn is there already, and is no folder",
    )


def test_notes(run: Run, ok: Ok, file: str) -> None:
    ok("export", "tests.cli.models:cube", "--args", "f32", "--vjp-order", "0", "-o", "0.jaxfn")
    ended = run("save", "0.jaxfn", "-o", "0")
    assert ended.code == 0
    assert ended.err.startswith(
        "jax2tf-bridge: note: saved without a gradient: cube has no gradient: "
    )


def test_the_gradients_in_the_file_are_saved(ok: Ok) -> None:
    ok("export", "tests.cli.models:cube", "--args", "f32", "--vjp-order", "2", "-o", "2.jaxfn")
    ok("save", "2.jaxfn", "-o", "2")
    cube = tf.saved_model.load("2").serving_default
    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        slope = inner.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(slope, x), 12, rtol=1e-6)


def test_a_module_that_is_too_new_says_what_mends_it(run: Run, file: str) -> None:
    write_function(file, changed(read_function(file), stablehlo_version=(9, 0, 0)))
    ended = run("save", file, "-o", "m")
    assert ended.code == 1
    assert ended.error.startswith("cube needs StableHLO 9.0.0 and calling convention 8; ")
    release = ".".join(tf.__version__.split(".")[:2])
    assert (
        f" Where JAX is installed, retarget it: jax2tf-bridge retarget {file} --tensorflow "
        f"{release}. Or export it again without --tensorflow, or serve it with a newer TensorFlow."
    ) in ended.error
    assert not Path("m").exists()


def test_files_that_are_none(run: Run, file: str) -> None:
    ended = run("save", "no.jaxfn", "-o", "m")
    assert (ended.code, ended.error) == (2, "no.jaxfn: No such file or directory")
    data = Path(file).read_bytes()
    Path("cut.jaxfn").write_bytes(data[:-1])
    ended = run("save", "cut.jaxfn", "-o", "m")
    assert ended.code == 1
    assert ended.error.startswith("cut.jaxfn cannot be read as a .jaxfn file: ")
    assert not Path("m").exists()


def test_without_tensorflow(run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in [m for m in sys.modules if m.startswith("jax2tf_bridge.saving")]:
        monkeypatch.delitem(sys.modules, name)
    ended = run("save", file, "-o", "m")
    assert (ended.code, ended.error) == (
        1,
        "jax2tf-bridge save needs TensorFlow, which is not installed here. Install it with: pip "
        "install 'jax2tf-bridge[tensorflow-cpu]'",
    )


def test_buckets(run: Run, ok: Ok, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = in_this_process(monkeypatch)
    ok("save", file, "-o", "model", "--buckets", "n=2,4", "--oversize", "n=as-is", "--precompile")
    assert Path("model/assets.extra/tf_serving_warmup_requests").exists()
    assert Path("model/assets.extra/xla_cache").is_dir()
    assert len(started) == 1
    loaded = tf.saved_model.load("model")
    np.testing.assert_allclose(loaded.serving_default(tf.ones(7)), np.ones(7))
    ended = run("save", file, "-o", "other", "--buckets", "m=2")
    assert (ended.code, "'m'" in ended.error) == (1, True)
    ended = run("save", file, "-o", "other", "--buckets", "m")
    assert ended.code == 2
    assert "'m' is not of the form NAME=N,N, as b=1,8,32" in ended.error


def test_versions_are_published(run: Run, file: str) -> None:
    for version in ("1", "2", "3"):
        ended = run("publish", file, "-o", "models", "--keep", "2")
        assert ended.out.startswith(f"models/{version}: serving_default(x: float32[n]) -> ")
    assert ended.err == "jax2tf-bridge: note: removed the versions 1\n"
    assert sorted(p.name for p in Path("models").iterdir()) == ["2", "3"]
    ended = run("publish", file, "-o", "models", "--keep", "0")
    assert ended.code == 2
    assert "the newest version always stays, so that N is 1 or more. Got: 0" in ended.error


def test_more_gradients_than_the_file_has(run: Run, ok: Ok, file: str) -> None:
    ended = run("save", file, "-o", "model", "--vjp-order", "3")
    assert ended.code == 1
    assert "has no gradient" in ended.error
    assert not Path("model").exists()
