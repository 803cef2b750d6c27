"""Real models in TensorFlow.js, and a page in Chromium with TensorFlow.js and LiteRT.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts._env import ROOT
from tests.consumers.conftest import Recorder
from tests.consumers.environments import process_environment
from tests.consumers.exchange import read_arrays
from tests.consumers.harness import Harness
from tests.consumers.node_addon import BROWSER_PACKAGES, PROGRAM, Node, call, node_for_browsers
from tests.consumers.one_by_one import (
    RECORD_TIMES,
    note_median,
    note_size,
    take_errors,
    take_measures,
)
from tests.models.comparing import compare
from tests.models.exports import exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS
from tests.tutorials.test_tutorials import tutorial_python

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Random numbers, and loops.
_MODELS = frozenset({"actor_critic", "lstm"})
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_PAGE = ROOT / "docs" / "browser.md"


@pytest.fixture
def installed(harness: Harness) -> Node:
    """Returns Node with TensorFlow.js and LiteRT.js, installed once per machine."""
    return node_for_browsers(harness)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name in _MODELS else pytest.mark.complete)
        for model in MODELS
    ],
    ids=str,
)
def test_values_are_those_of_jax(
    harness: Harness, installed: Node, record: Recorder, model: Model, tmp_path: Path
) -> None:
    title, module = "writing real models for TensorFlow.js", "tests.models.export_tfjs"
    folder, exports = exported(harness, title, "models-tfjs", module, sampled(harness, _MODELS))
    assert not exports[model.name].failures, str(exports[model.name])
    folder = folder / model.name
    facts = json.loads((folder / "model.json").read_text())
    arrays = [read_arrays(folder / f"call-{i}.npz") for i in range(facts["calls"])]
    inputs = [dict(zip(facts["inputs"], a["inputs"], strict=True)) for a in arrays]
    file = folder / "model" / "model.json"
    repeat = 23 if RECORD_TIMES in os.environ else 1
    answer = call(installed, file, inputs, tmp_path, backends=["wasm"], repeat=repeat)
    note_size("wasm", file.parent)
    if repeat > 1:
        note_median("wasm", answer.times[0])
    failures: list[str] = []
    for i, (found, expected) in enumerate(zip(answer.results, arrays, strict=True)):
        names, wanted = facts["outputs"], expected["results"]
        # TensorFlow.js has bool as bytes, and all other integers as int32.
        results = [
            found[name] if array.dtype.kind == "f" else found[name].astype(array.dtype)
            for name, array in zip(names, wanted, strict=True)
        ]
        results = [
            each.astype(array.dtype) if array.dtype.kind == "f" else each
            for each, array in zip(results, wanted, strict=True)
        ]
        failures += compare(f"call {i}, ", names, results, wanted, facts["tolerance"], noted="wasm")
    assert failures == []
    record("TensorFlow.js", model.name, "wasm", take_errors()["wasm"], take_measures()["wasm"])
    assert answer.tensors == 0
    assert answer.versions["backend"] == "wasm"


@pytest.mark.checkout
def test_a_page_reads_a_drawn_digit(installed: Node, tmp_path: Path) -> None:
    """Draws in Chromium with the mouse, as examples/browser is used."""
    chromium = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if chromium is None:
        pytest.skip("no Chromium on the PATH: the page of examples/browser was NOT tested")
    train = ROOT / "examples" / "browser" / "train.py"
    done = subprocess.run(
        [str(tutorial_python()), str(train), str(tmp_path / "page"), "--steps", "100"],
        env=process_environment({"JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "page" / "node_modules").symlink_to(installed.modules)
    browsed = installed.run(PROGRAM.with_name("browse.js"), chromium, tmp_path / "page")
    assert browsed.returncode == 0, browsed.stderr
    shown = [json.loads(line) for line in browsed.stdout.splitlines()]
    assert [each["runtime"] for each in shown] == ["tfjs", "litert"]
    for each in shown:
        compared = re.fullmatch(
            r"(\d+) of 100 digits are right; the largest difference from JAX is (\S+)",
            each["compared"],
        )
        assert compared is not None, each
        assert int(compared[1]) > 90
        assert float(compared[2]) < 1e-5
        assert each["digit"] == "1", each


@pytest.mark.checkout
def test_the_page_names_what_is_tested() -> None:
    text = _PAGE.read_text()
    for package in BROWSER_PACKAGES:
        assert package in text


def test_integers_wrap_around_in_javascript(installed: Node, tmp_path: Path) -> None:
    """Tests the kernels where integers are JavaScript's, and WebAssembly's."""
    import jax
    import jax.numpy as jnp

    from jax2tf_bridge import Signature, save_tfjs

    def compute(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        places = (y % 40).astype(jnp.uint32)
        results = {
            "bits_and": x & y,
            "bits_or": x | y,
            "bits_xor": x ^ y,
            "inverted": ~x,
            "left": jnp.left_shift(x, places % 32),
            "right": jax.lax.shift_right_logical(x, places % 32),
            "product": x * y,
            "signed_product": (x.astype(jnp.int32) * y.astype(jnp.int32)).astype(jnp.uint32),
            "larger": jnp.maximum(x, y),
            "less": x < y,
            "float": x.astype(jnp.float32),
            "bytes": x.astype(jnp.uint8) * y.astype(jnp.uint8),
            "signed": (x.astype(jnp.int32) >> (places % 32).astype(jnp.int32)),
        }
        return {
            name: each if each.dtype == jnp.uint32 else each.astype(jnp.float32)
            for name, each in results.items()
        }

    edges = [0, 1, 2, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    random = np.random.default_rng(0).integers(0, 2**32, 55, np.uint32)
    x = np.concatenate([np.array(edges, np.uint32), random])
    y = np.roll(x, 3)
    save_tfjs(tmp_path / "model", Signature(compute, args=[x, y]))
    expected = compute(jnp.asarray(x), jnp.asarray(y))
    for backend in ("cpu", "wasm"):
        inputs = [{"x": x, "y": y}]
        file = tmp_path / "model" / "model.json"
        (results,) = call(installed, file, inputs, tmp_path, backends=[backend]).results
        for name, array in expected.items():
            found = results[name]
            # The backend "cpu" casts int32 to float32 without rounding.
            found = found.view(np.uint32) if array.dtype == jnp.uint32 else found.astype("float32")
            np.testing.assert_array_equal(found, array, f"{name} ({backend})")


def test_what_webassembly_computes_wrongly_is_replaced(installed: Node, tmp_path: Path) -> None:
    """Tests the operations that docs/browser.md lists, in both backends."""
    import jax
    import jax.numpy as jnp

    from jax2tf_bridge import Signature, save_tfjs

    def compute(x: jax.Array, y: jax.Array, z: jax.Array, image: jax.Array) -> dict[str, jax.Array]:
        kernel = jnp.arange(36.0).reshape(4, 1, 3, 3)[:, :, :2, :2]
        options: Any = {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}
        bytes_ = image.astype(jnp.int8), kernel.astype(jnp.int8)
        return {
            "backwards": x[::-1],
            "steps": x[1::3],
            "flags": (x > y)[::2],
            "chosen": jnp.where(x > y, y > 0, x > 3),
            "quotient": x // y,
            "remainder": x % y,
            "rest": jax.lax.rem(z, jnp.float32(1.5)),
            "maximum": jnp.maximum(z, z[::-1]),
            "clipped": jnp.clip(z, 0.5, 0.75),
            "signs": jnp.sign(z),
            "six": jax.nn.relu6(z),
            "integers": (z * 1e9).astype(jnp.int32),
            "sorted": jnp.sort(z),
            "spectrum": (jnp.abs(jnp.fft.rfft(jnp.ones(96).at[3].set(2.0))) + 0.1).astype(int),
            "product": jnp.ones((1, 5)) @ image.reshape(5, 16),
            "other_product": jnp.ones((1, 16)) @ image.reshape(16, 5),
            "set": x.at[y].set(7, mode="drop"),
            "groups": jax.lax.conv_general_dilated(
                image, kernel, (1, 1), "SAME", feature_group_count=2, **options
            ),
            "spread": jax.lax.conv_general_dilated(
                image[:, :1], kernel, (2, 1), "SAME", rhs_dilation=(1, 2), **options
            ),
            "bytes": jax.lax.conv_general_dilated(
                bytes_[0][:, :1], bytes_[1], (1, 1), "SAME", preferred_element_type=jnp.int32
            ),
        }

    random = np.random.default_rng(0)
    x = random.integers(-(2**31), 2**31, 40).astype(np.int32)
    y = (random.integers(-(2**31), 2**31, 40) >> random.integers(0, 31, 40)).astype(np.int32) | 1
    y[:3] = [5, -1, 100]
    z = np.array([np.nan, 1, np.inf, -np.inf, 3.5, -0.5, 0.6, -3, 7, np.nan], np.float32)
    image = random.integers(-9, 9, (2, 2, 5, 4)).astype(np.float32)
    arguments = [x, y, z, image]
    save_tfjs(tmp_path / "model", Signature(compute, args=arguments))
    expected = jax.jit(compute)(*arguments)
    inputs = [dict(zip(["x", "y", "z", "image"], arguments, strict=True))]
    file = tmp_path / "model" / "model.json"
    for backend in ("cpu", "wasm"):
        (results,) = call(installed, file, inputs, tmp_path, backends=[backend]).results
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array, f"{name} ({backend})")
