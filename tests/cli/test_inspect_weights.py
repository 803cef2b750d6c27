"""`jax2tf-bridge inspect` of files of weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jax2tf_bridge import write_weights
from jax2tf_bridge.inspecting import natural_sort_key
from tests.cli.conftest import Ok, Run

BLOCK = {"kernel": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float16)}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "w.msgpack"
    write_weights(file, {"params": {f"block_{i}": BLOCK for i in (1, 2, 10)}, "step": 3})
    return file


def test_leaves_are_listed_in_natural_order(ok: Ok, weights: Path) -> None:
    size = weights.stat().st_size
    assert ok("inspect", "w.msgpack") == (
        f"w.msgpack, weights in msgpack, {size} bytes\n"
        "\n"
        "  params/block_1/bias     float16[4]    8 bytes\n"
        "  params/block_1/kernel   float32[3,4]  48 bytes\n"
        "  params/block_2/bias     float16[4]    8 bytes\n"
        "  params/block_2/kernel   float32[3,4]  48 bytes\n"
        "  params/block_10/bias    float16[4]    8 bytes\n"
        "  params/block_10/kernel  float32[3,4]  48 bytes\n"
        "  step                    no array\n"
        "\n"
        "7 leaves, 168 bytes\n"
    )


def test_json_has_all_leaves(ok: Ok, weights: Path) -> None:
    facts = json.loads(ok("inspect", "w.msgpack", "--json"))
    assert facts["file"] == {
        "path": "w.msgpack",
        "format": "msgpack",
        "bytes": weights.stat().st_size,
    }
    found = facts["weights"]
    assert (facts["schema"], facts["metadata"], found["count"], found["bytes"]) == (1, {}, 7, 168)
    kernel = {"path": "params/block_1/kernel", "dtype": "float32", "shape": [3, 4], "bytes": 48}
    assert found["list"][1] == kernel
    assert found["list"][-1] == {"path": "step", "dtype": None, "shape": None, "bytes": 0}


def test_safetensors_say_what_they_are(ok: Ok, tmp_path: Path) -> None:
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "w", metadata={"format": "np"})
    text = ok("inspect", "w")
    assert text.startswith("w, weights in safetensors, ")
    assert text.endswith("\n\n  a  float32[2]  8 bytes\n\n1 leaf, 8 bytes\nformat: np\n")


@pytest.mark.usefixtures("weights")
def test_a_page_draws_which_are_large(ok: Ok) -> None:
    assert ok("inspect", "w.msgpack", "--html", "w.html") == "w.html: a page about w.msgpack\n"
    page = Path("w.html").read_text()
    assert page.index("<td>params/block_2/bias</td>") < page.index("<td>params/block_10/bias</td>")
    assert "Weights, in bytes" in page


def test_other_formats_are_named(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.ones(3))
    ended = run("inspect", "w.npz")
    assert ended.code == 1
    assert ended.error == (
        "w.npz holds no function, and no weights in msgpack or safetensors. It seems to be a "
        "zip file, as numpy.savez, Keras and PyTorch write: load it with the library that wrote "
        "it, and pass the arrays by their paths."
    )


def test_numbers_in_paths_are_ordered_as_numbers() -> None:
    ordered = ["a", "a1", "a2/b", "a02/c", "a10", "b" + 5000 * "9", "b1" + 5000 * "0"]
    assert sorted(reversed(ordered), key=natural_sort_key)[-2:] == ordered[-2:]
    assert sorted(["a10", "a2/b", "a1", "a"], key=natural_sort_key) == ["a", "a1", "a2/b", "a10"]
