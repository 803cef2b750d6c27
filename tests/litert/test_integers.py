"""save_litert() with integers: inputs and outputs, the share of integers, the check of ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, save_litert
from jax2tf_bridge.errors import SavingError, UnsupportedByTargetError
from jax2tf_bridge.litert import LiteRTModel
from tests.litert.running import interpreter

RANDOM = np.random.default_rng(0)
PARAMS = {
    "conv": {
        "kernel": RANDOM.normal(0, 0.3, (3, 3, 1, 8)).astype(np.float32),
        "bias": RANDOM.normal(0, 0.1, 8).astype(np.float32),
    },
    "dense": {
        "kernel": RANDOM.normal(0, 0.1, (128, 10)).astype(np.float32),
        "bias": RANDOM.normal(0, 0.1, 10).astype(np.float32),
    },
}
IMAGES = RANDOM.uniform(0, 16, (24, 4, 4)).astype(np.float32)
DATA = [{"images": image[None]} for image in IMAGES]


def logits(params: Any, images: Any) -> Any:
    x = jax.lax.conv_general_dilated(
        images[..., None] / 16,
        params["conv"]["kernel"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = jax.nn.relu(x + params["conv"]["bias"]).reshape(-1, 128)
    return x @ params["dense"]["kernel"] + params["dense"]["bias"]


def predict(params: Any, images: Any) -> dict[str, Any]:
    scores = logits(params, images)
    return {
        "digit": jnp.argmax(scores, axis=1),
        "least": jnp.argmin(scores, axis=1),
        "scores": scores,
    }


def _save(tmp_path: Path, function: Any, **options: Any) -> LiteRTModel:
    signature = Signature(function, args=[IMAGES[:2]], polymorphic_shapes="(b, 4, 4)")
    options = {"params": PARAMS, "representative_data": DATA, **options}
    return save_litert(tmp_path / "model.tflite", signature, overwrite=True, **options)


@pytest.mark.costly
@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.1), ("int16x8", 0.02)])
def test_a_model_of_integers(tmp_path: Path, quantize: Any, most: float) -> None:
    saved = _save(tmp_path, logits, quantize=quantize, integers_only=True)
    dtype = "int8" if quantize == "int8" else "int16"
    signature = saved.signatures["serving_default"]
    assert str(signature) == f"(images: {dtype}[b,4,4]) -> (output_0: {dtype}[b,10])"
    assert saved.operations.integers == saved.operations.total > 3
    assert str(saved).endswith(
        f"MB, quantised: {quantize}, {saved.operations.total} of {saved.operations.total} "
        "operations in integers"
    )
    runner = interpreter(saved.path).get_signature_runner()
    assert runner.get_input_details()["images"]["quantization"] == signature.scales["images"]
    scale, zero_point = signature.scales["images"]
    integers = np.rint(IMAGES / scale + zero_point).astype(dtype)
    (found,) = runner(images=integers).values()
    assert found.dtype == dtype
    scale, zero_point = signature.scales["output_0"]
    apart = np.abs((found - np.float32(zero_point)) * scale - logits(PARAMS, IMAGES)).max()
    assert 0 < apart < most


@pytest.mark.slow
def test_places_of_extremes_in_int8_and_in_floats_for_int16(tmp_path: Path) -> None:
    expected = predict(PARAMS, IMAGES)
    for quantize, floats in (
        ("int8", {"QUANTIZE", "DEQUANTIZE"}),
        ("int16x8", {"QUANTIZE", "DEQUANTIZE", "ARG_MAX", "ARG_MIN"}),
    ):
        saved = _save(tmp_path, predict, quantize=quantize)
        assert {text.partition(" ")[0] for text in saved.operations.floats} == floats
        found = interpreter(saved.path).get_signature_runner()(images=IMAGES)
        for name in ("digit", "least"):
            assert np.mean(found[name] == expected[name]) > 0.9
    text = _refused(UnsupportedByTargetError, tmp_path, predict, quantize="int16x8")
    assert text == (
        "The model would not consist of integers only. LiteRT's converter leaves in floats:\n"
        "  - ARG_MAX of float32\n"
        "  - ARG_MIN of float32\n"
        "Write this part of the function with other operations, leave it to the caller, or leave "
        "out integers_only."
    )


def _refused(error: type[Exception], tmp_path: Path, function: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        _save(tmp_path, function, **{"integers_only": True, **options})
    return str(caught.value)


@pytest.mark.slow
def test_what_integers_are_not_for(tmp_path: Path) -> None:
    text = _refused(SavingError, tmp_path, logits, quantize="float16", representative_data=None)
    assert text == (
        "integers_only is for quantize='int8', quantize='int16x8' and quantize='as_trained', which "
        "compute with integers. Leave it out, or add one of these."
    )

    def sine(params: Any, images: Any) -> Any:
        return jnp.sin(logits(params, images))

    text = _refused(UnsupportedByTargetError, tmp_path, sine, quantize="int8")
    assert "in floats:\n  - SIN of float32\nWrite" in text
    text = _refused(
        SavingError, tmp_path, lambda params, images: jnp.sort(images), quantize="int16x8"
    )
    assert not (tmp_path / "model.tflite").exists()
    assert f"TensorFlow {tf.__version__}'s converter cannot make int16 of the model's num" in text
    assert text.endswith(
        "\nLeave this part of the function to the caller, or pass quantize='int8'."
    )


@pytest.mark.slow
def test_a_model_far_from_the_functions_values_is_refused(tmp_path: Path) -> None:
    def wide(params: Any, images: Any) -> Any:
        large = jnp.stack([images, images + 9000], -1)  # 8 bits leave nothing of the images
        return large[..., 0] * 2

    with pytest.raises(SavingError) as caught:
        _save(tmp_path, wide, quantize="int8")
    assert str(caught.value).startswith(
        "The signature serving_default computes other results in integers than in float32, for the "
        "first of its representative inputs:\n  - output_0 differs by "
    )
    saved = _save(tmp_path, wide, quantize="int8", verify=False)
    assert saved.operations.integers < saved.operations.total
