"""The demo checks what it shows; scripts/demo runs the whole of it, with digits of scikit-learn."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from examples.digits import demo, main, model, serve, train

pytestmark = pytest.mark.checkout


Answered = tuple[model.Params, train.Digits, dict[str, Any]]


def _gradients(params: model.Params, digits: train.Digits) -> dict[str, Any]:
    gradients = jax.jit(jax.grad(model.loss, argnums=(0, 1)))
    by_weight, by_image = gradients(params, digits.images, digits.labels)
    named = {f"d {k}/{n}": g for k, layer in by_weight.items() for n, g in layer.items()}
    return {**named, "d images": by_image}


@pytest.fixture(scope="module")
def answered() -> Answered:
    """Weights, made-up digits that they are right about, and what a right server answers."""
    params = model.init(jax.random.key(0))
    images = np.random.default_rng(0).uniform(0, 16, (20, 8, 8)).astype(np.float32)
    answers = {k: np.asarray(v) for k, v in jax.jit(model.predict)(params, images).items()}
    digits = train.Digits(images, answers["digit"].astype(np.int32))
    report = {"tensorflow": "2", "modules": 1, "blocked": ["jax"], "loaded_of_blocked": []}
    answers["report"] = np.array(json.dumps(report))
    return params, digits, {**answers, **_gradients(params, digits)}


@pytest.mark.costly
def test_right_answers_are_compared_and_drawn(
    answered: Answered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params, digits, answers = answered
    demo.compare(params, digits, answers, tmp_path)
    printed = capsys.readouterr().out
    assert "held-out digits: JAX 100.00%, SavedModel 100.00%" in printed
    assert "by the 8 weights " in printed
    with Image.open(tmp_path / "digits.png") as picture:
        assert min(picture.size) > 800
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24)
        assert colors is not None
        assert len(colors) > 100


@pytest.mark.parametrize(
    ("changed", "by", "problem"),
    [
        ("logits", 1e-3, "The two differ by more than"),
        ("d images", 1e-3, "The two differ by more than"),
        ("d conv1/kernel", 1e-3, "The two differ by more than"),
        ("labels", 1, "Less than 85% of the held-out digits are right"),
    ],
)
def test_wrong_answers_end_the_demo(
    answered: Answered, changed: str, by: float, problem: str, tmp_path: Path
) -> None:
    params, digits, answers = answered
    if changed == "labels":
        digits = train.Digits(digits.images, (digits.labels + 1) % 10)
        answers = {**answers, **_gradients(params, digits)}
    else:
        answers = {**answers, changed: answers[changed] + by}
    with pytest.raises(SystemExit, match=problem):
        demo.compare(params, digits, answers, tmp_path)


def test_jax_in_the_server_ends_the_demo(answered: Answered, tmp_path: Path) -> None:
    params, digits, answers = answered
    report = {**json.loads(str(answers["report"])), "loaded_of_blocked": ["jax"]}
    answers = {**answers, "report": np.array(json.dumps(report))}
    with pytest.raises(SystemExit, match=r"The fresh process loaded \['jax'\]"):
        demo.compare(params, digits, answers, tmp_path)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "jaxlib", "jax2tf_bridge", "jax2tf_bridge.converting._convert"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [serve._Blocker(), *sys.meta_path])


@pytest.mark.usefixtures("blocked")
@pytest.mark.parametrize("name", ["jax", "jaxlib", "jax2tf_bridge.converting._convert"])
def test_blocker_stops_jax(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="blocked"):
        importlib.import_module(name)
    serve._check_that_jax_is_blocked()
    importlib.import_module("json.tool")


def test_check_fails_where_nothing_blocks_jax() -> None:
    """The proof that JAX is blocked is one: without the blocker it fails."""
    with pytest.raises(AssertionError, match="jax could be imported"):
        serve._check_that_jax_is_blocked()
    assert {"jax", "jax2tf_bridge"} <= {*serve._list_loaded_blocked()}


@pytest.mark.parametrize("steps", ["0", "many"])
def test_bad_steps_are_refused(
    steps: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--steps", steps])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    assert "--steps" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_leaves_what_it_says_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(1).uniform(0, 16, (80, 8, 8)).astype(np.float32)
    digits = train.Digits(images, np.arange(80, dtype=np.int32) % 10)
    monkeypatch.setattr(train, "digits", lambda: (digits, digits))
    monkeypatch.setattr(demo, "_MIN_ACCURACY", 0.0)
    demo.run(tmp_path, steps=5)
    printed = capsys.readouterr().out
    assert f"--model_base_path={tmp_path / 'digits'}" in printed
    assert (tmp_path / "digits" / "1" / "saved_model.pb").exists()
    request = json.loads((tmp_path / "request.json").read_text())
    assert np.shape(request["instances"]) == (3, 8, 8)
    with np.load(tmp_path / "answers.npz") as answers:
        report = json.loads(str(answers["report"]))
        assert {"jax", "jaxlib", "jax2tf_bridge"} <= set(report["blocked"])
        assert report["loaded_of_blocked"] == []
        assert answers["probabilities"].shape == (80, 10)
        assert np.abs(answers["d conv1/kernel"]).max() > 0
