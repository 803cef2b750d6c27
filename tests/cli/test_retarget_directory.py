"""`jax2tf-bridge retarget DIR`: the modules of a SavedModel for another TensorFlow release."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Target, convert, export, inspect
from jax2tf_bridge.inspecting import read_saved_model
from jax2tf_bridge.saving import save_functions
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.signatures import Signature
from tests.cli.conftest import Ok, Run
from tests.saved_model.by_hand import INT4, INT32, Call, Model

NEW = Target.installed()
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
WEIGHTS = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)


def predict(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


class Net(tf.Module):  # type: ignore[misc]
    """A model with a weight, whatever converts its function."""

    def __init__(self, function: Callable[..., Any], batch: int | None) -> None:
        super().__init__()
        self.w = tf.Variable(WEIGHTS)

        @tf.function(input_signature=[tf.TensorSpec([batch, 3], tf.float32, "x")], autograph=False)
        def call(x: Any) -> Any:
            return function(self.w, x)

        self.call = call


def save(net: Net, path: Path) -> None:
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(net, str(path), signatures={"serving_default": net.call}, options=options)


def values(path: Path) -> tuple[Any, Any, Any]:
    """A result, and the gradients of its sum for the argument and the weight."""
    loaded = tf.saved_model.load(str(path))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.call(x)
    served = loaded.signatures["serving_default"](x=x)
    (result,) = served.values()
    np.testing.assert_array_equal(result, y)
    return y, *tape.gradient(y, [x, loaded.w])


def assert_right(path: Path) -> None:
    y, dx, dw = values(path)
    np.testing.assert_allclose(y, predict(WEIGHTS, X), rtol=1e-6)
    expected = jax.grad(lambda w, x: predict(w, x).sum(), argnums=(1, 0))(WEIGHTS, X)
    np.testing.assert_allclose(dx, expected[0], rtol=1e-5)
    np.testing.assert_allclose(dw, expected[1], rtol=1e-5)


def versions(path: Path) -> set[object]:
    return {m.stablehlo_version for m in read_saved_model(path).modules}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose modules are at the version of the installed TensorFlow."""
    path = tmp_path_factory.mktemp("models") / "newest"
    save(Net(convert(predict, polymorphic_shapes=[None, "(b, _)"], target=NEW), None), path)
    return path


@pytest.fixture
def new(newest: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(newest, tmp_path / "new")
    return tmp_path / "new"


def test_values_and_gradients_are_the_same(ok: Ok, new: Path) -> None:
    before = files(new)
    assert versions(new) == set(NEW.stablehlo_versions)
    text = ok("retarget", "new", "--tensorflow", "2.16", "-o", "old")
    assert text == "old: 2 modules retargeted; runs on TensorFlow 2.16 to 2.22\n"
    assert files(new) == before
    assert versions(Path("old")) == {(0, 17, 7)}
    assert_right(Path("old"))
    # The weights are copied; the fingerprint was that of another graph.
    after = files(Path("old"))
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"saved_model.pb", "fingerprint.pb"}
    assert "fingerprint.pb" not in after


def test_beside_the_model_by_default(ok: Ok, new: Path) -> None:
    assert ok("retarget", "new", "--tensorflow", "2.15").startswith("new-tf2.15: 2 modules")
    assert versions(Path("new-tf2.15")) == {(0, 14, 24)}


def test_in_place(ok: Ok, run: Run, new: Path) -> None:
    assert ok("retarget", "new", "--tensorflow", "2.17", "--overwrite").startswith("new: 2 modules")
    assert versions(new) == {(1, 1, 1)}
    assert_right(new)
    printed = ok("retarget", "new", "--tensorflow", "2.15", "-o", "new", "--overwrite", "--json")
    assert json.loads(printed) == inspect("new").as_json()
    assert versions(new) == {(0, 14, 24)}
    assert [p.name for p in Path.cwd().iterdir()] == ["new"]


def test_models_that_jax2tf_wrote(ok: Ok, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax2tf is deprecated, and says so
        jax2tf = pytest.importorskip(
            "jax.experimental.jax2tf", reason="this JAX has no jax2tf any more"
        )
        try:
            save(Net(jax2tf.convert(predict), 4), tmp_path / "theirs")
        except NotImplementedError as e:
            pytest.skip(f"jax2tf fails on this pair of releases: {e}")
    (call, *_) = read_saved_model(tmp_path / "theirs").modules
    assert call.calling_convention_version >= 9
    ok("retarget", "theirs", "--tensorflow", "2.15", "-o", "mended")
    for module in read_saved_model("mended").modules:
        assert module.stablehlo_version == (0, 14, 24)
        assert module.calling_convention_version == 8
        # TensorFlow has this attribute from 2.20 on alone.
        assert not module.uses_shardy
    assert_right(Path("mended"))


def test_models_of_the_bridge_keep_their_functions(ok: Ok, tmp_path: Path) -> None:
    portable = export(predict, polymorphic_shapes=[None, "(b, _)"], target=NEW)(WEIGHTS, X)
    save_functions(tmp_path / "ours", {"serving_default": Signature(portable)})
    ok("retarget", "ours", "--tensorflow", "2.16", "-o", "old")
    (file,) = (tmp_path / "old" / "assets.extra" / "jax2tf_bridge").iterdir()
    stored = read_function(file)
    assert stored.module.stablehlo_version == stored.vjp().module.stablehlo_version == (0, 17, 7)
    modules = {bytes(m.module) for m in read_saved_model("old").modules}
    assert modules == {stored.module.data, stored.vjp().module.data}
    facts = json.loads(ok("inspect", "old", "--json"))
    assert facts["modules"][0]["arguments"] == ["float32[3,2]", "float32[b,3]"]


def test_linear_algebra_becomes_stablehlo(ok: Ok, tmp_path: Path) -> None:
    exported = jax.export.export(
        jax.jit(lambda x: jnp.linalg.qr(x)[1]),
        platforms=["cpu"],
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call(name)
            for name in ("lapack_sgeqrf_ffi", "lapack_sorgqr_ffi")
        ],
    )(X)
    model = Model({"main": [Call(exported.mlir_module_serialized, version=9).node()]})
    model.write(tmp_path / "qr")
    assert "no handler in TensorFlow" in ok("inspect", "qr")
    text = ok("retarget", "qr", "--tensorflow", "2.15", "-o", "mended")
    assert text == "mended: 1 module retargeted; runs on TensorFlow 2.15 to 2.22\n"


def test_large_constants_take_bounded_time(ok: Ok, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(3, 1_000_000)).astype(np.float32)
    exported = jax.export.export(jax.jit(lambda x: x @ weights), platforms=["cpu"])(X)
    assert len(exported.mlir_module_serialized) > 10_000_000
    model = Model({"main": [Call(exported.mlir_module_serialized, version=9).node()]})
    model.write(tmp_path / "large")
    begun = time.monotonic()
    ok("retarget", "large", "--tensorflow", "2.15", "-o", "mended")
    assert time.monotonic() - begun < 10
    (module,) = read_saved_model("mended").modules
    assert len(module.module) > 10_000_000


SINE = export(jnp.sin, platforms=["cpu"])(X).module.data


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            Call(SINE, results=[INT32]),
            "The StableHLO module of main/XlaCallModule does not match its portable function: "
            "result 0: the portable function says int32[4,3], the module tensor<4x3xf32>",
        ),
        (
            Call(SINE, arguments=[INT4]),
            "main/XlaCallModule takes or returns int4, which no TensorFlow passes to "
            "a module correctly. Export the function again with jax2tf_bridge.export, which passes "
            "them as 8-bit integers.",
        ),
        (Call(b"nothing"), "The module of main/XlaCallModule cannot be read"),
        (Call(SINE[:-40]), "The module of main/XlaCallModule cannot be read"),
    ],
)
def test_modules_that_cannot_be_retargeted(
    run: Run, tmp_path: Path, call: Call, error: str
) -> None:
    Model({"main": [call.node()]}).write(tmp_path / "model")
    before = files(tmp_path)
    ended = run("retarget", "model", "--tensorflow", "2.15", "-o", "mended")
    assert ended.code == 1
    assert ended.error.startswith(error), ended.error
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            ["--tensorflow", "3.1"],
            2,
            "--tensorflow 3.1: TensorFlow 2.22 is the newest that is known",
        ),
        (["--tensorflow", "2.15", "-o", "new"], 1, "new already exists; --overwrite replaces"),
        (["--tensorflow", "2.15", "-o", "file"], 1, "file already exists, and is not a folder"),
        (["--tensorflow", "2.15", "-o", "file/x"], 1, "file is a file, not a folder"),
        (
            ["--tensorflow", "2.15", "-o", "folder", "--overwrite"],
            1,
            "folder is not replaced: it has other contents, and no saved_model.pb",
        ),
    ],
)
def test_errors(run: Run, new: Path, words: list[str], code: int, error: str) -> None:
    Path("file").touch()
    Path("folder").mkdir()
    Path("folder", "thesis.tex").touch()
    before = files(Path.cwd())
    ended = run("retarget", "new", *words)
    assert ended.code == code
    assert error in ended.error
    assert files(Path.cwd()) == before


def test_a_folder_that_is_no_model(run: Run) -> None:
    Path("folder").mkdir()
    ended = run("retarget", "folder", "--tensorflow", "2.15")
    assert (ended.code, ended.error) == (
        1,
        "folder is not a SavedModel: it has no saved_model.pb. Name the folder that holds "
        "saved_model.pb.",
    )


def test_a_file_is_not_overwritten_by_that_option(run: Run) -> None:
    words = ("retarget", "f.jaxfn", "--tensorflow", "2.15", "--overwrite")
    ended = run(*words)
    assert (ended.code, ended.error) == (2, "f.jaxfn: No such file or directory")
    Path("f.jaxfn").touch()
    ended = run(*words)
    assert (ended.code, ended.error) == (
        2,
        "--overwrite is for SavedModels, and f.jaxfn is a file. Remove the option: "
        "an existing output file is replaced without it",
    )


def test_a_function_beside_the_model_that_is_lost(run: Run, tmp_path: Path) -> None:
    portable = export(predict)(WEIGHTS, X)
    save_functions(tmp_path / "ours", {"serving_default": Signature(portable)})
    (file,) = (tmp_path / "ours" / "assets.extra" / "jax2tf_bridge").iterdir()
    file.unlink()
    ended = run("retarget", "ours", "--tensorflow", "2.15", "-o", "mended")
    assert ended.code == 1
    assert ended.error == (
        f"The SavedModel ours lacks {file.name}, which holds one of its functions. Copy the whole "
        "folder."
    )
