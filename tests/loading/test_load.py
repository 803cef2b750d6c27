"""SavedModels of save() come back into JAX: functions, gradients, weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Processing, Signature, load, save
from jax2tf_bridge.cli import main
from jax2tf_bridge.errors import (
    DTypeError,
    FileFormatError,
    GradientError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.loading import LoadedModel
from tests.fresh_process import run_python
from tests.plugins.blocked_imports import blocked

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 3)).astype(np.float32)
CAPTURED = GENERATOR.normal(size=(2, 1024)).astype(np.float32)
PARAMS: dict[str, Any] = {
    "dense": {"kernel": GENERATOR.normal(size=(3, 2)).astype(np.float32)},
    "layers": [np.int32(3), (jnp.bfloat16(1.5),)],
}


def predict(params: Any, x: Any, *, scale: Any) -> Any:
    hidden = jnp.tanh(x @ params["dense"]["kernel"]) * scale
    return {"wide": hidden @ CAPTURED, "n": [params["layers"][0] + x.shape[0]]}


def encode(params: Any, x: Any) -> Any:
    return x @ params["dense"]["kernel"] + params["layers"][1][0].astype(jnp.float32)


SIGNATURES = {
    "serving_default": Signature(
        predict, args=[X], kwargs={"scale": np.float32(2)}, polymorphic_shapes="(b, 3)"
    ),
    "encode": Signature(encode, args=[X], polymorphic_shapes="(b, 3)", output_names=["code"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "1"
    save(path, SIGNATURES, params=PARAMS, vjp_order=2)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(folder)


@pytest.mark.costly
def test_functions_have_the_arguments_that_they_had(model: LoadedModel) -> None:
    for size in (1, 4):
        found = model.serving_default(X[:size], scale=2.0)
        expected = predict(PARAMS, X[:size], scale=2.0)
        np.testing.assert_allclose(found["wide"], expected["wide"], rtol=1e-5, atol=1e-5)
        assert found["n"] == [3 + size]
    np.testing.assert_allclose(model.encode(X), encode(PARAMS, X), rtol=1e-5, atol=1e-6)


def test_signatures_have_the_names_that_tensorflow_has(folder: Path, model: LoadedModel) -> None:
    in_tensorflow = tf.saved_model.load(str(folder)).signatures["serving_default"]
    signature = model.signatures["serving_default"]
    assert list(signature.inputs) == ["x", "scale"]
    assert signature.inputs["x"] == "float32[b,3]"
    expected = in_tensorflow(x=tf.constant(X), scale=tf.constant(2.0))
    found = signature(x=X, scale=np.float32(2))
    assert found.keys() == expected.keys() == signature.outputs.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)
    assert list(model.signatures["encode"].outputs) == ["code"]
    (code,) = model.signatures["encode"](x=[[1, 2, 3]]).values()
    np.testing.assert_allclose(
        code, encode(PARAMS, np.array([[1, 2, 3]], np.float32)), rtol=1e-5, atol=1e-6
    )


def test_unknown_names_are_errors_that_list_the_known(folder: Path, model: LoadedModel) -> None:
    known = r"There is no signature 'encdoe': did you mean 'encode'\? There are: [a-z_, ]*encode"
    for signatures in (model.signatures, model.functions):
        with pytest.raises(KeyError, match=known):
            signatures["encdoe"]
    with pytest.raises(KeyError, match=r"There is no input 'y'\. There are: x"):
        model.signatures["encode"].inputs["y"]
    with pytest.raises(KeyError, match="There is no captured array 'x'"):
        model.constants["x"]


def test_weights_are_the_pytree_that_was_saved(model: LoadedModel) -> None:
    assert str(jax.tree.structure(model.params)) == str(jax.tree.structure(PARAMS))
    for found, expected in zip(jax.tree.leaves(model.params), jax.tree.leaves(PARAMS), strict=True):
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, expected, strict=True)
    ((name, captured),) = model.constants.items()
    assert name.startswith("constant")
    np.testing.assert_array_equal(captured, CAPTURED)


def test_gradients_of_each_order_that_was_saved(model: LoadedModel) -> None:
    function = model.functions["encode"]
    predicting = model.functions["serving_default"]

    def loaded(kernel: Any, x: Any) -> Any:
        params = {**model.params, "dense": {"kernel": kernel}}
        return (predicting(params, x, scale=1.0)["wide"] ** 2).mean() + function(params, x).sum()

    def original(kernel: Any, x: Any) -> Any:
        params = {**PARAMS, "dense": {"kernel": kernel}}
        return (predict(params, x, scale=1.0)["wide"] ** 2).mean() + encode(params, x).sum()

    kernel = PARAMS["dense"]["kernel"]
    first = [jax.jit(jax.grad(f, (0, 1)))(kernel, X) for f in (loaded, original)]
    np.testing.assert_allclose(first[0][0], first[1][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first[0][1], first[1][1], rtol=1e-4, atol=1e-4)
    second = [
        jax.jit(jax.grad(lambda k, f=f: (jax.grad(f)(k, X) ** 2).sum()))(kernel)
        for f in (loaded, original)
    ]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-3, atol=1e-3)


def test_one_order_more_says_how_many_there_are(model: LoadedModel) -> None:
    def loss(x: Any) -> Any:
        return (model.serving_default(x, scale=1.0)["wide"] ** 2).sum()

    third = jax.grad(lambda x: jax.grad(lambda y: jax.grad(loss)(y).sum())(x).sum())
    with pytest.raises(GradientError, match=r"gradients up to order 2; .* vjp_order=3"):
        third(X)


def test_a_function_without_a_gradient_says_why(tmp_path: Path) -> None:
    def doubling(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.sum() < 10, lambda y: 2 * y, x)

    save(tmp_path / "1", Signature(doubling, args=[np.ones(2, np.float32)]))
    model = load(tmp_path / "1")
    np.testing.assert_array_equal(model.serving_default(np.ones(2, np.float32)), [8, 8])
    assert model.params is None
    with pytest.raises(GradientError, match="doubling has no gradient: the SavedModel stores none"):
        jax.grad(lambda x: model.serving_default(x).sum())(np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: m.encode(X[:, :2]), ShapeError, r"x: expected shape \(b, 3\), got \(4, 2\)"),
        (lambda m: m.encode(X > 0), DTypeError, "x: expected float32, got bool"),
        (lambda m: m.encode("text"), DTypeError, "x: expected float32, got 'text' of type str"),
        (
            lambda m: m.serving_default(X, scale=2**40),
            DTypeError,
            "scale: expected float32, got 1099511627776 of type int",
        ),
        (lambda m: m.functions["encode"]({}, X), StructureError, "the key 'dense' is missing"),
        (lambda m: m.signatures["encode"](y=X), StructureError, "the input x is missing"),
        (
            lambda m: m.signatures["encode"](x=None),
            DTypeError,
            r"The input x must be an array or numbers for float32\[b,3\]\. Got: None of type None",
        ),
        (
            lambda m: m.signatures["encode"](x=[[1, 2, 3], [4]]),
            DTypeError,
            r"Got: \[\[1, 2, 3\], \[4\]\] of type list\.",
        ),
        (lambda m: m.signatures["encode"](self=X), StructureError, "there is no input self"),
        (
            lambda m: m.encdoe,
            AttributeError,
            r"^the SavedModel has no signature 'encdoe': did you mean 'encode'\? There are: ",
        ),
    ],
)
def test_wrong_calls_are_told(
    model: LoadedModel, call: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(model)


class Scale(NamedTuple):
    factor: Any


@jax.tree_util.register_pytree_with_keys_class
class Layer:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("kernel"), self.kernel),), None

    @classmethod
    def tree_unflatten(cls, static: None, children: Any) -> Layer:
        return cls(*children)


def test_node_types_that_are_not_registered_are_dicts_and_tuples(tmp_path: Path) -> None:
    params = (Layer(np.ones((3, 2), np.float32)), Scale(np.float32(2)))
    signature = Signature(lambda p, x: x @ p[0].kernel * p[1].factor, args=[X])
    save(tmp_path / "1", signature, params=params)
    model = load(tmp_path / "1")
    layer, scale = model.params
    np.testing.assert_array_equal(layer["kernel"], np.ones((3, 2)))
    assert (scale.factor, type(scale).__name__) == (2, "Scale")
    gradient = jax.grad(lambda p: model.functions["serving_default"](p, X).sum())(model.params)
    np.testing.assert_allclose(gradient[0]["kernel"], 2 * X.sum(0)[:, None] * np.ones(2), rtol=1e-5)


def test_keys_and_seeds(tmp_path: Path) -> None:
    def noise(key: Any) -> Any:
        return jax.random.normal(key, (3,))

    args = [jax.random.key(0)]
    save(
        tmp_path / "1",
        {"words": Signature(noise, args=args), "seed": Signature(noise, args=args, seed="scalar")},
    )
    model = load(tmp_path / "1")
    expected = noise(jax.random.key(7))
    np.testing.assert_array_equal(model.words(jax.random.key(7)), expected)
    (from_words,) = model.signatures["words"](key=np.array([0, 7], np.uint32)).values()
    np.testing.assert_array_equal(from_words, expected)
    for seed in (np.uint32(7), 7):
        (from_seed,) = model.signatures["seed"](key=seed).values()
        np.testing.assert_array_equal(from_seed, expected)
    text = "The input key must be a key, its 2 words, or a seed from 0 to 4294967295. Got: "
    for wrong, error, got in (
        (-1, DTypeError, "-1 of type int."),
        ("7", DTypeError, "'7' of type str."),
        (np.float32(7), DTypeError, "an array of float32."),
        ([7], ShapeError, "the shape (1,)."),
    ):
        with pytest.raises(error, match=re.escape(f"{text}{got}")):
            model.signatures["seed"](key=wrong)


def test_what_tensorflow_does_before_is_left_out(tmp_path: Path) -> None:
    signature = Signature(
        jnp.sin,
        args=[X],
        processing=Processing(
            preprocess=lambda text: tf.strings.to_number(text),
            inputs={"text": tf.TensorSpec([4, 3], tf.string)},
        ),
    )
    save(tmp_path / "1", signature)
    model = load(tmp_path / "1")
    np.testing.assert_allclose(model.serving_default(X), np.sin(X), rtol=1e-5)
    (name,) = model.signatures["serving_default"].inputs
    (found,) = model.signatures["serving_default"](**{name: X}).values()
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-5)


def test_functions_with_buckets_run_at_any_size(tmp_path: Path) -> None:
    signature = Signature(lambda x: jnp.exp(x), args=[X], polymorphic_shapes="(b, 3)")
    save(tmp_path / "1", signature, buckets={"b": [4]})
    np.testing.assert_allclose(
        load(tmp_path / "1").serving_default(X[:3]), np.exp(X[:3]), rtol=1e-5
    )


def test_weights_of_64_bits_need_them_switched_on(tmp_path: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    try:
        signature = Signature(lambda p, x: x * p, args=[np.ones(3)])
        save(tmp_path / "1", signature, params=np.float64(0.1))
        assert load(tmp_path / "1").serving_default(np.ones(3)).dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", False)
    with pytest.raises(DTypeError, match="jax_enable_x64"):
        load(tmp_path / "1")


def test_variables_of_another_model_are_told(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "1")
    other = {**PARAMS, "dense": {"kernel": np.ones((3, 2), np.float64)}}
    module = tf.Module()
    module.params = {"dense/kernel": tf.Variable(other["dense"]["kernel"])}
    tf.train.Checkpoint(params=module.params).write(str(copied / "variables" / "variables"))
    with pytest.raises(FileFormatError, match="they do not belong together"):
        load(copied)


def test_damage_is_one_error(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "1")
    files = sorted(p for p in copied.rglob("*") if p.is_file() and "fingerprint" not in p.name)
    generator = np.random.default_rng(0)
    told = 0
    for file in files:
        whole = file.read_bytes()
        for _ in range(12):
            data = bytearray(whole)
            position = generator.integers(len(data))
            data[position] ^= 1 << generator.integers(8)
            file.write_bytes(data)
            try:
                load(copied)
            except FileFormatError:
                told += 1
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FileFormatError):
            load(copied)
        file.write_bytes(whole)
    assert told > 12
    assert load(copied).params is not None


def test_a_newer_sidecar_is_told(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "1")
    file = copied / "assets.extra" / "jax2tf_bridge.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(FileFormatError, match="upgrade"):
        load(copied)


def test_nothing_of_tensorflow_is_needed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither to load a model nor to retarget it."""
    copied = shutil.copytree(folder, tmp_path / "1")
    with blocked("tensorflow", "keras"):
        with pytest.raises(ImportError):
            import tensorflow.saved_model  # noqa: F401
        assert main(["retarget", str(copied), "--tensorflow", "2.15", "--overwrite"]) == 0
        found = load(copied).encode(X)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{copied}: ")
    assert printed.endswith(" modules retargeted; runs on TensorFlow 2.15 to 2.22\n")
    np.testing.assert_allclose(found, encode(PARAMS, X), rtol=1e-5)
    retargeted = tf.saved_model.load(str(copied))
    np.testing.assert_allclose(retargeted.encode(X), encode(PARAMS, X), rtol=1e-5)


@pytest.mark.slow
def test_tensorflow_is_not_needed(folder: Path, tmp_path: Path) -> None:
    """Neither to load a model nor to retarget it."""
    code = """
    import sys
    sys.modules["tensorflow"] = None
    import numpy as np
    from jax2tf_bridge import load
    from jax2tf_bridge.cli import main
    assert main(["retarget", sys.argv[1], "--tensorflow", "2.15", "--overwrite"]) == 0
    model = load(sys.argv[1])
    print(model.encode(np.ones((5, 3), np.float32)).shape)
    """
    copied = shutil.copytree(folder, tmp_path / "1")
    _, shape = run_python(code, str(copied)).splitlines()
    assert shape == "(5, 2)"
