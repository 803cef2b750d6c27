"""Nets for integers: quantize="as_trained", and the table of docs/quantisation.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.digits import model
from jax2tf_bridge import Signature, save, save_litert
from jax2tf_bridge.errors import BridgeError
from tests.litert.digits_nets import rounded_logits
from tests.litert.quantised_digits import (
    BEGIN,
    END,
    PAGE,
    RECORDED,
    VARIANTS,
    Variant,
    convert,
    make_params,
    updated,
)
from tests.litert.running import interpreter

pytestmark = pytest.mark.checkout

IMAGES = np.random.default_rng(0).integers(0, 17, (100, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    net = model.init(jax.random.key(0))
    # Biases of 0 would be left out. TensorFlow's converter gives all elements of equal biases the
    # scale of the first channel.
    rng = np.random.default_rng(1)
    biases = {
        k: {**layer, "bias": rng.normal(0, 0.1, layer["bias"].shape)} for k, layer in net.items()
    }
    return make_params(jax.tree_util.tree_map(np.float32, biases), IMAGES)


@pytest.mark.costly
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, id=v.title, marks=[] if v.params == "rounded" else pytest.mark.slow)
        for v in VARIANTS
    ],
)
def test_the_table_has_the_shares_of_any_weights(
    variant: Variant, params: dict[str, Any], tmp_path: Path
) -> None:
    recorded = json.loads(RECORDED.read_text())[variant.title]
    found = convert(variant, params, IMAGES, tmp_path)
    assert found.keys() == recorded.keys()
    for runtime, measured in found.items():
        facts = measured.as_json(None)
        for name in ("integers", "operations", "products"):
            assert facts[name] == recorded[runtime][name], (runtime, name)
        assert facts["bytes"] == pytest.approx(recorded[runtime]["bytes"], rel=0.03)


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert END in text
    assert updated(text) == text, "run python -m tests.litert.quantised_digits"


def test_accuracy_is_that_of_the_net() -> None:
    recorded = json.loads(RECORDED.read_text())
    (best,) = {facts["accuracy"] for facts in recorded["float32"].values()}
    for by_runtime in recorded.values():
        assert all(facts["accuracy"] > best - 0.01 for facts in by_runtime.values())


@pytest.mark.slow
def test_results_are_steps_away(params: dict[str, Any], tmp_path: Path) -> None:
    rounded = params["rounded"]
    signature = Signature(rounded_logits, args=[IMAGES], polymorphic_shapes="(b, 8, 8)")
    save(tmp_path / "saved", signature, params=rounded, vjp_order=0)
    expected = jax.jit(rounded_logits)(rounded, IMAGES)
    for source in (signature, tmp_path / "saved"):
        weights = rounded if source is signature else None
        # The results are compared below; one of the models is verified as well.
        options: Any = {
            "quantize": "as_trained",
            "overwrite": True,
            "verify": source is signature,
        }
        saved = save_litert(tmp_path / "a.tflite", source, params=weights, **options)
        (found,) = interpreter(saved.path).get_signature_runner()(images=IMAGES).values()
        steps = np.abs(found - expected) / rounded["scales"]["dense2"]
        assert steps.max() < 2.01
        assert steps.mean() < 0.5
        assert str(saved).endswith("0.16 MB, quantised: as_trained, 7 of 10 operations in integers")


@pytest.mark.costly
def test_what_is_refused(params: dict[str, Any], tmp_path: Path) -> None:
    def refused(function: Any, weights: Any, **options: Any) -> str:
        signature = Signature(function, args=[IMAGES], polymorphic_shapes="(b, 8, 8)")
        with pytest.raises(BridgeError) as caught:
            save_litert(
                tmp_path / "a.tflite",
                signature,
                params=weights,
                verify=False,
                **{"quantize": "as_trained", **options},
            )
        return str(caught.value)

    assert refused(lambda images: images * 2, None) == (
        "quantize='as_trained' needs a function that rounds the numbers between its products "
        "to 255 or 256 steps of a constant scale, as clip(round(x / scale), -127, 127) * "
        "scale, and this one has no such rounding. Pass quantize='int8' and representative_data."
    )
    text = refused(rounded_logits, params["rounded"], representative_data=[IMAGES])
    assert text.startswith("representative_data is for quantize='int8' and quantize='int16x8',")
    text = refused(rounded_logits, params["rounded"], integers_only=True)
    assert "in floats:\n  - MUL of float32 at digits_nets.py:" in text


@pytest.mark.costly
def test_scales_of_the_inputs_stay_floats(tmp_path: Path) -> None:
    """The converter needs constants; a measured range is computed as in JAX."""

    def measured(x: Any) -> Any:
        scale = jnp.max(jnp.abs(x)) / 127
        known = jnp.clip(jnp.round(x / 0.5), -128, 127) * 0.5
        return known, jnp.clip(jnp.round(x / scale), -127, 127) * scale

    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    saved = save_litert(tmp_path / "a.tflite", Signature(measured, args=[x]), quantize="as_trained")
    found = interpreter(saved.path).get_signature_runner()(x=x)
    for got, want in zip((found[k] for k in sorted(found)), measured(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert any(text.startswith("ROUND of float32") for text in saved.operations.floats)
