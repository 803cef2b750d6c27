"""Real models in Node by @tensorflow/tfjs-node, compiled by XLA and as TensorFlow's operations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, save
from scripts._env import ROOT
from tests.consumers.conftest import Recorder
from tests.consumers.exchange import OPERATIONS, Array, read_arrays
from tests.consumers.harness import NEWEST_TENSORFLOW, Harness, NotAvailableError
from tests.consumers.node_addon import BUILD, PACKAGE, Node, call, install, node
from tests.consumers.one_by_one import take_errors
from tests.house.snippets import python_program, snippets
from tests.models.comparing import compare
from tests.models.exports import exported_part, exported_with_seeds, part_of
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# The models of the sample that other tests export anyway, without those that take a key.
_SAMPLE = {"lstm", "recommender", "keras_text"}
# They take keys of random numbers, whose uint32 TensorFlow.js lacks.
_SEEDED = ("actor_critic", "diffusion_unet", "resnet18_training", "vae")
_WAYS = {"xla": "model", "operations": f"{OPERATIONS}model"}


@pytest.fixture
def installed(harness: Harness) -> Node:
    """Returns Node with tfjs-node, made once per machine."""
    return node(harness)


def _exported(harness: Harness, model: Model) -> Path:
    if model.name in _SEEDED:
        folder, exports = exported_with_seeds(harness, _SEEDED)
    else:
        folder, exports = exported_part(harness, part_of(harness, model))
    assert not exports[model.name].failures, str(exports[model.name])
    return folder / model.name


def _in_order(
    found: Mapping[str, Array], names: Sequence[str], expected: Sequence[Array]
) -> list[Array]:
    """Returns results in the order of their names, bools as such."""
    results = [found[name] for name in names]
    return [
        result.view(np.bool_) if wanted.dtype == np.bool_ else result
        for result, wanted in zip(results, expected, strict=True)
    ]


@pytest.mark.parametrize(
    ("way", "model"),
    [
        pytest.param(way, model, marks=() if model.name in _SAMPLE else pytest.mark.complete)
        for model in MODELS
        for way in _WAYS
    ],
    ids=str,
)
def test_values_are_those_of_jax(
    harness: Harness,
    installed: Node,
    record: Recorder,
    way: str,
    model: Model,
    tmp_path: Path,
) -> None:
    folder = _exported(harness, model)
    facts = json.loads((folder / "model.json").read_text())
    arrays = [read_arrays(folder / f"call-{i}.npz") for i in range(facts["calls"])]
    inputs = [dict(zip(facts["inputs"], a["inputs"], strict=True)) for a in arrays]
    # All sizes go to one loaded model.
    assert len({tuple(a.shape for a in given.values()) for given in inputs}) > 1
    answer = call(installed, folder / _WAYS[way], inputs, tmp_path)
    failures: list[str] = []
    for i, (found, expected) in enumerate(zip(answer.results, arrays, strict=True)):
        names, wanted = facts["outputs"], expected["results"]
        results = _in_order(found, names, wanted)
        where = f"call {i}, "
        failures += compare(where, names, results, wanted, facts["tolerance"], noted=way)
    assert failures == []
    record("Node", model.name, way, take_errors()[way])
    assert answer.tensors == 0
    assert answer.versions["tensorflow"] == NEWEST_TENSORFLOW


def _double(x: Any) -> Any:
    return x + x


def _saved(path: Path, *dtypes: str) -> Path:
    """Saves a function as it is of each dtype, and with casts as "served"."""

    def served(x: Any) -> Any:
        for dtype in dtypes:
            x = _double(x.astype(dtype))
        return x.astype(jnp.float32)

    def signature(function: Any, dtype: str) -> Signature:
        return Signature(function, args=[np.ones((2, 3), dtype)], polymorphic_shapes="(b, 3)")

    with jax.enable_x64(True):
        signatures = {dtype: signature(_double, dtype) for dtype in dtypes}
        signatures["served"] = signature(served, "int32")
        save(path, signatures, target=Target.widest(xla=False))
    return path


NUMBERS = np.array([[1, 2, -3]], np.int32)


def test_64_bit_integers_come_back_and_negative_ones_do_not_get_there(
    installed: Node, tmp_path: Path
) -> None:
    """Tests the statement and the advice in docs/node.md."""
    model = _saved(tmp_path / "model", "int64")
    asked = [{"x": NUMBERS}]
    answer = call(installed, model, asked, tmp_path, signature="int64")
    (found,) = answer.results[0].values()
    assert found.dtype == np.int64
    # The sign is lost on the way there.
    assert found.tolist() == [[2, 4, 2 * (2**32 - 3)]]
    answer = call(installed, model, asked, tmp_path, signature="served")
    (found,) = answer.results[0].values()
    assert found.tolist() == [[2, 4, -6]]


def test_one_signature_with_a_foreign_dtype_keeps_the_model_from_loading(
    installed: Node, tmp_path: Path
) -> None:
    asked = [{"x": NUMBERS}]
    for dtype in ("float16", "bfloat16"):
        model = _saved(tmp_path / dtype, dtype)
        with pytest.raises(RuntimeError, match="Unsupported tensor DataType"):
            call(installed, model, asked, tmp_path, signature="served")


def test_a_batch_of_none_is_an_error_that_names_the_size(installed: Node, tmp_path: Path) -> None:
    model = _saved(tmp_path / "model", "int32")
    asked = [{"x": np.ones((0, 3), np.int32)}]
    with pytest.raises(RuntimeError, match="Expected value >= 1 for dimension variable b"):
        call(installed, model, asked, tmp_path, signature="served")


@pytest.mark.checkout
def test_the_page(installed: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds as the tests do, and the program in JavaScript prints what it says."""
    page = (ROOT / "docs" / "node.md").read_text()
    assert BUILD.read_text() in page
    monkeypatch.chdir(tmp_path)
    exec(compile(python_program(page), "node.md", "exec"), {"__name__": "page"})
    found = list(snippets(page))
    (number,) = (i for i, snippet in enumerate(found) if snippet.language == "js")
    program = tmp_path / "serve.js"
    program.write_text(found[number].text)
    done = installed.run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == found[number + 1].text


def test_a_registry_out_of_reach_is_named(
    installed: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    with pytest.raises(NotAvailableError, match=r"cannot be reached \(ECONNREFUSED\)"):
        install(installed, tmp_path / "packages", PACKAGE)
    monkeypatch.setenv("npm_config_offline", "true")
    with pytest.raises(RuntimeError, match="npm cannot install") as caught:
        install(installed, tmp_path / "offline", PACKAGE)
    assert not isinstance(caught.value, NotAvailableError)
