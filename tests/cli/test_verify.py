"""`jax2tf-bridge verify`: a SavedModel against the JAX function that it came from."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, save
from jax2tf_bridge.verifying._samples import Sampler
from tests.cli import models
from tests.cli.conftest import Run

Ok = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "predict"
    signature = Signature(
        models.predict, args=[np.ones((4, 3), np.float32)], polymorphic_shapes="(b, 3)"
    )
    save(folder, signature, params=models.params)
    return folder


def test_equal_functions_are_within_the_tolerance(ok: Ok, model: Path) -> None:
    words = ("--against", "tests.cli.models:predict", "--samples", 3, "--rounds", 2)
    text = ok("verify", model, *map(str, words), "--batch-sizes", "1,4", "--plot", "latency.svg")
    for line in ("output y", "gradient x", "gradient params['w']", "b = 1 ", "b = 4 "):
        assert line in text
    assert "BEYOND" not in text
    drawn = ET.parse("latency.svg").getroot()
    assert len(drawn.findall(".//{*}circle")) == 4
    assert len(drawn.findall(".//{*}polyline")) == 2


def test_another_function_is_an_error_with_the_place(run: Run, model: Path) -> None:
    ended = run("verify", model, "--against", f"{__name__}:one_percent_off", "--rounds", "0")
    assert ended.code == 1
    assert "output y" in ended.out
    assert "BEYOND IT" in ended.out
    assert f"is not {__name__}:one_percent_off" in ended.error
    assert "of its largest number at b = " in ended.error
    assert "1e-04 are allowed" in ended.error
    assert ended.error.rstrip().endswith(f", and {ended.out.count('BEYOND IT') - 1} more")
    wide = ("--tolerance", "0.05", "--rounds", "0")
    assert run("verify", model, "--against", f"{__name__}:one_percent_off", *wide).code == 0


def one_percent_off(params: Any, x: Any) -> Any:
    result = models.predict(params, x)
    return {**result, "y": result["y"] * 1.01}


def another_gradient(params: Any, x: Any) -> Any:
    from jax.lax import stop_gradient

    result = models.predict(params, x)
    return {**result, "y": stop_gradient(result["y"])}


def test_another_gradient_is_seen(run: Run, model: Path) -> None:
    ended = run("verify", model, "--against", f"{__name__}:another_gradient", "--rounds", "0")
    assert ended.code == 1
    assert "the gradient " in ended.error


def test_json_has_all_of_it(ok: Ok, model: Path) -> None:
    words = ("--against", "tests.cli.models:predict", "--rounds", "1", "--batch-sizes", "2")
    facts = json.loads(ok("verify", model, *words, "--json"))
    assert facts["signature"] == "serving_default"
    assert len(facts["samples"]) == 5
    assert {d["what"] for d in facts["differences"]} == {"output", "gradient"}
    assert all(d["within"] for d in facts["differences"])
    assert [p["size"] for p in facts["latency_ms"]] == [2]


def test_integers_buckets_and_what_has_no_gradient(ok: Ok, tmp_path: Path) -> None:
    signature = Signature(lookup, args=[np.zeros((2, 3), np.int32)], polymorphic_shapes="(b, 3)")
    save(tmp_path / "m", signature, buckets={"b": [2, 8]}, vjp_order=0)
    words = ("--against", f"{__name__}:lookup", "--rounds", "0")
    text = ok("verify", tmp_path / "m", *words)
    assert "(it has no gradients)" in text
    assert "output output_0" in text


def lookup(ids: Any) -> Any:
    return jnp.arange(10)[ids] * 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--against", "tests.cli.models:predcit"], 2, "has no predcit: did you mean predict?"),
        (["--against", "tests.cli.models:params"], 2, "is no function, but of type dict"),
        (["--against", "tests.cli.models:fails"], 1, "running tests.cli.models:fails or"),
        (["--against", "tests.cli.models:cube", "--plot", "a.png"], 2, "name it a.svg"),
        (["--against", "tests.cli.models:cube", "--signature", "x"], 2, "no signature x"),
        (["--against", "tests.cli.models:cube", "--samples", "0"], 2, "0 is less than 1"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Run, model: Path, words: list[str], code: int, text: str
) -> None:
    ended = run("verify", model, *words)
    assert ended.code == code
    assert text in ended.error


def test_a_folder_that_is_no_saved_model(run: Run, tmp_path: Path) -> None:
    ended = run("verify", tmp_path, "--against", "tests.cli.models:cube")
    assert ended.code == 1
    assert "has no saved_model.pb" in ended.error


def test_sizes_satisfy_the_constraints() -> None:
    from jax2tf_bridge import export

    record = export(
        lambda x, y: x[:, : y.shape[0]],
        polymorphic_shapes=["(b, 2*n)", "(n,)"],
        polymorphic_constraints=["mod(b, 4) == 0", "n >= 3"],
    )(np.ones((4, 6), np.float32), np.ones(3, np.float32))
    sampler = Sampler(record, 0)
    found = sampler.sizes(6)
    assert len(found) == 6
    assert found[0] == {"b": 4, "n": 3}
    assert all(sizes["b"] % 4 == 0 and sizes["n"] >= 3 for sizes in found)
    assert sampler.array(record.in_avals[0], {"b": 4, "n": 3}).shape == (4, 6)
    assert Sampler(record, 0).sizes(6) == found
