"""inspect() of LiteRT models."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as tensorflow_schema

from jax2tf_bridge import Signature, inspect, save_litert
from jax2tf_bridge.errors import FileFormatError

# Private: its tables are compared with TensorFlow's, and no converter leaves out signatures.
from jax2tf_bridge.inspecting import _litert as schema
from jax2tf_bridge.inspecting._litert import format_litert
from tests.cli.conftest import Ok

W = np.ones((28, 10), np.float32)


def classify(params: dict[str, np.ndarray], x: np.ndarray) -> dict[str, object]:
    return {"probabilities": jnp.tanh(x @ params["w"])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("litert") / "classify.tflite"
    x = np.ones((2, 28), np.float32)
    signature = Signature(classify, args=[x], polymorphic_shapes="(b, 28)")
    save_litert(path, {"classify": signature}, params={"w": W})
    return path


def test_a_model_says_what_it_is(model: Path) -> None:
    inspection = inspect(model)
    assert inspection.kind == "LiteRT model"
    assert inspection.facts["signatures"] == [
        {
            "name": "classify",
            "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 28]}],
            "outputs": [{"name": "probabilities", "dtype": "float32", "shape": [None, 10]}],
        }
    ]
    assert inspection.facts["weights"]["bytes"] >= W.nbytes
    text = inspection.text()
    assert text.startswith(f"{model}, a LiteRT model, ")
    assert "\nsignature classify(x: float32[?,28]) -> (probabilities: float32[?,10])\n" in text
    assert "1 TANH" in text
    assert "needs" not in text


def test_operators_outside_of_litert_are_named(tmp_path: Path) -> None:
    module = tf.Module()
    module.invert = tf.function(tf.linalg.inv, [tf.TensorSpec([2, 2], tf.float32)])
    concrete = module.invert.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.SELECT_TF_OPS]
    path = tmp_path / "invert.tflite"
    path.write_bytes(converter.convert())
    inspection = inspect(path)
    assert {"name": "FlexMatrixInverse", "count": 1, "custom": True} in inspection.facts["ops"]
    (line,) = (line for line in inspection.text().splitlines() if line.startswith("needs:"))
    assert "the Flex delegate, for " in line
    assert "FlexMatrixInverse" in line


def test_a_model_without_signatures_shows_its_main_function(model: Path) -> None:
    facts = {**inspect(model).facts}
    facts["signatures"] = [{**facts["signatures"][0], "name": None}]
    assert "main function, without a signature, (x: float32[?,28])" in "\n".join(
        format_litert(facts, 0)
    )


def test_a_page_is_written(ok: Ok, model: Path, tmp_path: Path) -> None:
    ok("inspect", str(model), "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "TANH" in page
    assert "probabilities: float32[?,10]" in page


@pytest.mark.parametrize("size", [8, 100, 500])
def test_a_cut_file_is_refused(model: Path, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.tflite"
    cut.write_bytes(model.read_bytes()[:size])
    with pytest.raises(FileFormatError, match=r"A LiteRT model in .*cut\.tflite cannot be read"):
        inspect(cut)


@pytest.mark.parametrize(
    ("enumeration", "names"),
    [("BuiltinOperator", schema.OPERATORS), ("TensorType", schema.DTYPES)],
)
def test_the_tables_are_tensorflows(enumeration: str, names: tuple[str, ...]) -> None:
    for name, number in vars(getattr(tensorflow_schema, enumeration)).items():
        if isinstance(number, int) and not name.startswith("_"):
            assert names[number].lower() == name.lower()
