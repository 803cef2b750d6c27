"""Real models in TensorFlow.js, and a page in Chromium with TensorFlow.js and LiteRT.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

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
    answer = call(installed, file, inputs, tmp_path, backend="wasm", repeat=repeat)
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
        (results,) = call(installed, file, inputs, tmp_path, backend=backend).results
        for name, array in expected.items():
            found = results[name]
            # The backend "cpu" casts int32 to float32 without rounding.
            found = found.view(np.uint32) if array.dtype == jnp.uint32 else found.astype("float32")
            np.testing.assert_array_equal(found, array, f"{name} ({backend})")
