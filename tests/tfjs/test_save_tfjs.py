"""save_tfjs(): files, names, shared weights, quantisation, and what its errors say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Padding, Signature, export, save, save_tfjs, write_function
from jax2tf_bridge.errors import SavingError, UnsupportedByTargetError
from tests.tfjs.graph_models import list_nodes, read_model, read_weights

RANDOM = np.random.default_rng(0)
WIDTH = 64
PARAMS = {"kernel": RANDOM.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)}
X = RANDOM.normal(size=(4, WIDTH)).astype(np.float32)


def classify(params: Any, x: Any) -> Any:
    return {"probabilities": jax.nn.softmax(x @ params["kernel"])}


def repeat(params: Any, x: Any, count: Any) -> Any:
    return jax.lax.fori_loop(0, count, lambda i, x: jnp.tanh(x @ params["kernel"]), x)


CLASSIFY = Signature(classify, args=[X], polymorphic_shapes="(b, ...)")
REPEAT = Signature(repeat, args=[X, np.int32(2)], polymorphic_shapes=["(b, ...)", None])


def test_signatures_share_the_weights(tmp_path: Path) -> None:
    model = save_tfjs(tmp_path / "two", {"classify": CLASSIFY, "repeat": REPEAT}, params=PARAMS)
    files = {file.name: file.stat().st_size for file in (tmp_path / "two").iterdir()}
    assert model.size == sum(files.values())
    shards = {name: size for name, size in files.items() if name.endswith(".bin")}
    assert PARAMS["kernel"].nbytes <= sum(shards.values()) < 1.1 * PARAMS["kernel"].nbytes
    assert shards["group1-shard1of1.bin"] == PARAMS["kernel"].nbytes
    assert str(model).splitlines()[:3] == [
        str(tmp_path / "two"),
        "  classify.json: classify(x: float32[b,64]) -> (probabilities: float32[b,64])",
        "  repeat.json, by executeAsync: "
        "repeat(x: float32[b,64], count: int32[]) -> (output_0: float32[b,64])",
    ]
    for name, inputs in (("classify", ["x"]), ("repeat", ["x", "count"])):
        described = read_model(tmp_path / "two" / f"{name}.json")
        assert list(described["signature"]["inputs"]) == inputs
        weights = read_weights(tmp_path / "two" / f"{name}.json").values()
        assert any(np.array_equal(array, PARAMS["kernel"]) for array in weights)
    described = read_model(tmp_path / "two" / "classify.json")
    assert described["format"] == "graph-model"
    assert described["userDefinedMetadata"] == {"structuredOutputKeys": ["probabilities"]}
    assert described["signature"]["inputs"]["x"] == {
        "name": "x:0",
        "dtype": "DT_FLOAT",
        "tensorShape": {"dim": [{"size": "-1"}, {"size": "64"}]},
    }


def test_outputs_may_have_the_names_of_inputs(tmp_path: Path) -> None:
    save_tfjs(tmp_path / "model", Signature(lambda x: {"x": x + 1}, args=[X]))
    signature = read_model(tmp_path / "model" / "model.json")["signature"]
    assert (list(signature["inputs"]), list(signature["outputs"])) == (["x"], ["x"])
    assert signature["inputs"]["x"]["name"] != signature["outputs"]["x"]["name"]


def test_files_and_saved_models_give_the_same_graph(tmp_path: Path) -> None:
    function = export(classify, polymorphic_shapes=[None, "(b, 64)"])(PARAMS, X)
    write_function(tmp_path / "classify.jaxfn", function)
    save(tmp_path / "model", function, params=PARAMS)
    save_tfjs(tmp_path / "file", tmp_path / "classify.jaxfn", params=PARAMS)
    save_tfjs(tmp_path / "saved", tmp_path / "model")
    kinds = [
        sorted(
            node["op"]
            for node in list_nodes(tmp_path / name / "model.json")
            if node["op"] not in ("Identity", "IdentityN", "StopGradient")
        )
        for name in ("file", "saved")
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    ("quantize", "share", "error"),
    [("float16", 0.55, 2e-4), ("uint16", 0.55, 1e-5), ("uint8", 0.3, 2e-3)],
)
def test_quantised(tmp_path: Path, quantize: Any, share: float, error: float) -> None:
    kernel = PARAMS["kernel"].copy()
    kernel[0, 0] = 0
    model = save_tfjs(tmp_path / "model", CLASSIFY, params={"kernel": kernel}, quantize=quantize)
    assert str(model).endswith(f"MB, quantised: {quantize}")
    shard = tmp_path / "model" / "group1-shard1of1.bin"
    assert shard.stat().st_size < share * kernel.nbytes
    weights = read_weights(tmp_path / "model" / "model.json").values()
    (found,) = (array for array in weights if array.shape == kernel.shape)
    assert found[0, 0] == 0
    assert 0 < np.abs(found - kernel).max() < error


def test_large_weights_are_in_files_of_4_mib(tmp_path: Path) -> None:
    large = {"kernel": np.ones((WIDTH, 20_000), np.float32)}
    save_tfjs(tmp_path / "model", CLASSIFY, params=large)
    paths = read_model(tmp_path / "model" / "model.json")["weightsManifest"][0]["paths"]
    assert paths == ["group1-shard1of2.bin", "group1-shard2of2.bin"]
    assert (tmp_path / "model" / paths[0]).stat().st_size == 4 << 20


def test_an_operation_is_refused_with_its_line(tmp_path: Path) -> None:
    def convolve(x: Any) -> Any:
        return jax.lax.conv(x, x, (1, 1), "SAME")

    expected = (
        r"TensorFlow.js has no:\n  - Conv2D of int32 at test_save_tfjs.py:\d+\nWrite this part of "
        "the function with other operations or dtypes, or save a SavedModel for where TensorFlow "
        r"is \(save\)\."
    )
    x = np.ones((1, 2, 4, 4), np.int32)
    with pytest.raises(UnsupportedByTargetError, match=expected):
        save_tfjs(tmp_path / "model", Signature(convolve, args=[x]))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, y: x < y, 1),
        (lambda x, y: x % y, 30),
        (lambda x, y: x // y, 60),
        (lambda x, y: jnp.clip(x, y, y + 3), 3),
        (lambda x, y: jnp.arange(20.0).at[x].set(1.0, mode="drop"), 20),
    ],
    ids=["less", "remainder", "quotient", "clip", "set"],
)
def test_functions_of_integers_are_small(tmp_path: Path, function: Any, count: int) -> None:
    x = np.arange(5, dtype=np.int32)
    save_tfjs(tmp_path / "model", Signature(function, args=[x, x]))
    nodes = list_nodes(tmp_path / "model" / "model.json")
    computed = [n["op"] for n in nodes if n["op"] not in ("Const", "Identity", "Placeholder")]
    assert len(computed) <= count, computed


def test_right_operands_in_two_shapes_are_copied(tmp_path: Path) -> None:
    """TensorFlow.js' WebAssembly would use the first of them for both products."""

    def multiply(x: Any, y: Any) -> Any:
        return x @ y, jnp.ones((3, 6)) @ y.reshape(6, 4), jnp.ones((1, 4)) @ y

    x, y = np.ones((2, 4), np.float32), np.ones((4, 6), np.float32)
    save_tfjs(tmp_path / "model", Signature(multiply, args=[x, y]))
    nodes = list_nodes(tmp_path / "model" / "model.json")
    by_name = {node["name"]: node for node in nodes}
    operands = [node["input"][1] for node in nodes if "MatMul" in node["op"]]
    assert len(operands) == 3
    makers = sorted(by_name[operand]["op"] for operand in operands)
    assert makers in (["Maximum", "Placeholder", "Placeholder"], ["Maximum", "Maximum", "Reshape"])


def test_64_bits_are_refused(tmp_path: Path) -> None:
    expected = (
        "TensorFlow.js has no 64-bit numbers: x: float64[3] of the signature serving_default. Cast "
        "them to 32 bits in the function."
    )
    with jax.enable_x64(True), pytest.raises(UnsupportedByTargetError) as caught:
        save_tfjs(
            tmp_path / "model",
            Signature(lambda x: x.astype(jnp.float32), args=[np.ones(3, np.float64)]),
        )
    assert str(caught.value) == expected


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SavingError, match=re.escape('quantize must be "float16", "uint16",')):
        save_tfjs(tmp_path / "model", CLASSIFY, params=PARAMS, quantize="int8")  # type: ignore[arg-type]
    padded = Signature(
        classify, args=[X], polymorphic_shapes="(b, ...)", padding=Padding(buckets={"b": [1, 8]})
    )
    with pytest.raises(SavingError, match="serving_default has buckets, and TensorFlow"):
        save_tfjs(tmp_path / "model", padded, params=PARAMS)
    save_tfjs(tmp_path / "model", CLASSIFY, params=PARAMS)
    with pytest.raises(FileExistsError):
        save_tfjs(tmp_path / "model", CLASSIFY, params=PARAMS)


def test_a_model_is_replaced_by_one_with_other_signatures(tmp_path: Path) -> None:
    add, folder = Signature(lambda x: x + 1, args=[X]), tmp_path / "model"
    for signatures, files in (
        (add, ["model.json"]),
        ({"a": add, "b": add}, ["a.json", "b.json"]),
        (add, ["model.json"]),
    ):
        save_tfjs(folder, signatures, overwrite=True)
        assert sorted(file.name for file in folder.glob("*.json")) == files
    other = tmp_path / "other"
    other.mkdir()
    (other / "package.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"it has other contents, and no model\.json"):
        save_tfjs(other, "no such file", overwrite=True)
