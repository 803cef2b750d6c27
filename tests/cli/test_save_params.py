"""`jax2tf-bridge save` and `publish` with --params: a function and its weights as two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import write_weights
from tests.cli.conftest import Ok, Run
from tests.cli.models import params as PARAMS

X = np.ones((5, 3), np.float32)


def expected(scale: float) -> Any:
    return X @ (PARAMS["w"] * scale) + PARAMS["b"] * scale


def answer(folder: str) -> Any:
    model = tf.saved_model.load(folder)
    return model.serving_default(X)["y"]


@pytest.fixture
def files(ok: Ok) -> tuple[str, str]:
    """A function, and weights for it."""
    specs = ("--args", "@tests.cli.models:params", "f32[b,3]")
    ok("export", "tests.cli.models:predict", *specs, "-o", "predict.jaxfn")
    write_weights("weights.msgpack", {k: v * 2 for k, v in PARAMS.items()})
    return "predict.jaxfn", "weights.msgpack"


def test_weights_become_variables(ok: Ok, files: tuple[str, str]) -> None:
    function, weights = files
    text = ok("save", function, "-o", "model/1", "--params", weights)
    assert text.startswith("model/1: serving_default(x: float32[b,3]) -> ")
    np.testing.assert_allclose(answer("model/1"), expected(2), rtol=1e-6)
    assert set(tf.saved_model.load("model/1").params) == {"w", "b"}


def test_versions_with_other_weights(ok: Ok, run: Run, files: tuple[str, str]) -> None:
    function, weights = files
    ok("publish", function, "-o", "models", "--params", weights)
    write_weights(weights, {k: v * 3 for k, v in PARAMS.items()})
    text = ok("publish", "-o", "models", "--params", weights)
    assert text == "models/2: version 1 with the weights in weights.msgpack\n"
    np.testing.assert_allclose(answer("models/2"), expected(3), rtol=1e-6)
    ended = run("publish", "-o", "models", "--params", weights, "--keep", "1")
    assert (ended.code, ended.out) == (
        0,
        "models/3: version 2 with the weights in weights.msgpack\n",
    )
    assert ended.err == "jax2tf-bridge: note: removed the versions 1, 2\n"


def test_weights_that_do_not_fit(run: Run, files: tuple[str, str]) -> None:
    function, weights = files
    write_weights(weights, {"W": PARAMS["w"], "b": PARAMS["b"]})
    ended = run("save", function, "-o", "m", "--params", weights)
    assert ended.code == 1
    assert ended.error.startswith(
        "The weights in weights.msgpack do not fit the argument params of predict: w is missing; "
        "W is not expected"
    )
    ended = run("save", function, "-o", "m", "--params", "none.msgpack")
    assert (ended.code, ended.error) == (2, "none.msgpack: No such file or directory")
    assert not Path("m").exists()


def test_what_publish_needs(run: Run, files: tuple[str, str]) -> None:
    _, weights = files
    ended = run("publish", "-o", "models")
    assert ended.code == 2
    assert "publish needs FILE, or --params with new weights for the newest version" in ended.error
    ended = run("publish", "-o", "models", "--params", weights, "--buckets", "b=1", "--precompile")
    assert ended.code == 2
    assert "--buckets, --precompile: without FILE, publish replaces only the weights" in ended.error
    ended = run("publish", "-o", "models", "--params", weights)
    assert ended.code == 1
    assert "models has no version yet, and the first one needs FILE beside --params" in ended.error


def test_files_in_the_wrong_place(run: Run, ok: Ok, files: tuple[str, str]) -> None:
    function, weights = files
    ok("export", "tests.cli.models:cube", "--args", "f32[n]", "-o", "cube.jaxfn")
    ended = run("save", "cube.jaxfn", "-o", "m", "--params", weights)
    assert "do not fit the argument x of cube: a single array is missing; " in ended.error
    ended = run("save", weights, "-o", "m")
    assert "seem to be weights in msgpack: read them with read_weights" in ended.error
    ok("publish", function, "-o", "models")
    ended = run("publish", "-o", "models", "--params", weights)
    assert ended.error.endswith(
        "models/1 has no weights: none of its signatures takes --params. Publish it once with FILE "
        "and --params, and weights alone from then on."
    )
    ended = run("publish", function, "-o", "models/1")
    assert "models/1 is a SavedModel, and not the folder of its versions: name " in ended.error


# Selection of the trained weights.

NORMED = {
    "params": {"scale": np.ones(3, np.float32)},
    "batch_stats": {"mean": np.zeros(3, np.float32)},
}


@pytest.fixture
def normed(ok: Ok) -> tuple[str, str]:
    """A function with running statistics, and its weights."""
    spec = '{"params": {"scale": "f32[3]"}, "batch_stats": {"mean": "f32[3]"}}'
    ok("export", "tests.cli.models:normed", "--args", spec, "f32[b,3]", "-o", "normed.jaxfn")
    write_weights("normed.msgpack", NORMED)
    return "normed.jaxfn", "normed.msgpack"


def trainable(folder: str) -> list[str]:
    model = tf.saved_model.load(folder)
    return [variable.name.removesuffix(":0") for variable in model.trainable_variables]


def test_running_statistics_are_not_trained(run: Run, ok: Ok, normed: tuple[str, str]) -> None:
    function, weights = normed
    ended = run("save", function, "-o", "all", "--params", weights)
    assert ended.code == 0
    assert ended.err == (
        "jax2tf-bridge: note: batch_stats are trainable, and an optimizer in TensorFlow would "
        "change these running statistics: to leave them fixed, pass --trainable params\n"
    )
    # The remedy of the note.
    ok("save", function, "-o", "some", "--params", weights, "--trainable", "params")
    ok("save", function, "-o", "none", "--params", weights, "--no-trainable")
    ok("publish", function, "-o", "root", "--params", weights, "--trainable", "params/scale")
    assert trainable("all") == ["batch_stats/mean", "params/scale"]
    assert trainable("some") == trainable("root/1") == ["params/scale"]
    assert trainable("none") == []


def test_trainable_that_means_nothing(run: Run, normed: tuple[str, str]) -> None:
    function, weights = normed
    ended = run("save", function, "-o", "m", "--trainable", "params")
    assert ended.code == 2
    assert "--trainable is for weights that are variables: add --params WEIGHTS" in ended.error
    ended = run("save", function, "-o", "m", "--params", weights, "--trainable", "parms")
    assert ended.code == 1
    assert "'parms'" in ended.error
    ended = run("publish", "-o", "m", "--params", weights, "--no-trainable")
    assert ended.error.startswith("--no-trainable: without FILE, publish replaces only the weights")


# Several signatures.


def test_several_signatures_share_weights(ok: Ok, run: Run, files: tuple[str, str]) -> None:
    function, weights = files
    specs = ("--args", "@tests.cli.models:params", "f32[n,3]")
    ok("export", "tests.cli.models:total", *specs, "-o", "t")
    named = (f"predict={function}", "total=t")
    text = ok("save", *named, "-o", "m", "--params", weights, "--buckets", "n=4")
    assert text == (
        "m: predict(x: float32[b,3]) -> (n_0: float32[], y: float32[b,2])\n"
        "m: total(z: float32[n,3]) -> (output_0: float32[n])\n"
    )
    model = tf.saved_model.load("m")
    assert sorted(model.signatures) == ["predict", "total"]
    assert len(model.params) == 2


def test_options_of_inputs_go_to_the_signatures_that_have_them(ok: Ok, run: Run) -> None:
    for name in ("real_words", "cube"):
        spec = "i32[b,n]" if name == "real_words" else "f32[m]"
        ok("export", f"tests.cli.models:{name}", "--args", spec, "-o", f"{name}.jaxfn")
    named = ("words=real_words.jaxfn", "cube=cube.jaxfn")
    buckets = ("--buckets", "b=2", "--buckets", "n=4", "--buckets", "m=4")
    ok("save", *named, "-o", "m", *buckets, "--pad-values", "ids=1", "--unchecked-padding", "m")
    ended = run("save", *named, "-o", "n", *buckets, "--pad-values", "id=1")
    assert (ended.code, Path("n").exists()) == (1, False)
    assert "ids" in ended.error
    ok("publish", *named, "-o", "root")
    assert sorted(tf.saved_model.load("root/1").signatures) == ["cube", "words"]
    ended = run("save", "real_words.jaxfn", "cube.jaxfn", "-o", "n")
    assert ended.code == 2
    assert ended.error.endswith(
        "cube.jaxfn: with several files, each needs the name of its signature, such as "
        "cube=cube.jaxfn"
    )
    Path("cube-2.jaxfn").write_bytes(Path("cube.jaxfn").read_bytes())
    for words, text in {
        ("cube.jaxfn", "cube-2.jaxfn"): "cube-2.jaxfn: with several files, each needs the name of "
        "its signature, such as cube_2=cube-2.jaxfn",
        ("a=cube.jaxfn", "a=cube-2.jaxfn"): "a names both cube.jaxfn and cube-2.jaxfn. Give each "
        "file a name of its own",
        ("cube-2=cube.jaxfn",): "argument [NAME=]PATH: 'cube-2' cannot name a signature. Use "
        "letters, digits and underscores, as cube_2=cube.jaxfn (jax2tf-bridge save --help says "
        "more)",
    }.items():
        ended = run("save", *words, "-o", "n")
        assert (ended.code, ended.error) == (2, text)
