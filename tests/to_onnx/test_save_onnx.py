"""save_onnx(): names, open sizes, weights, several functions, and what its errors say."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge import (
    Padding,
    Processing,
    Signature,
    export,
    save_onnx,
    write_function,
    write_weights,
)
from jax2tf_bridge.errors import (
    DTypeError,
    MissingDependencyError,
    ModuleError,
    SavingError,
    ShapeError,
    StructureError,
)

# Private: a fault is put into the builder, and the limit of a file's size is lowered.
from jax2tf_bridge.to_onnx import _builder, _save
from tests.comparing.cancelling import IDS, cancel, take_imaginary_part
from tests.comparing.cancelling import X as CANCELLING
from tests.plugins.blocked_imports import blocked
from tests.to_onnx.running import parts, run, session

import onnx  # isort: skip  # where it is missing, the import of tests.to_onnx.running skips

PARAMS = {
    "dense": {
        "kernel": np.linspace(-1, 1, 1536, dtype=np.float32).reshape(3, 512),
        "bias": np.linspace(0, 1, 512, dtype=np.float32),
    }
}
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def classify(params: Any, x: Any) -> Any:
    dense = params["dense"]
    return {"probabilities": jax.nn.softmax(x @ dense["kernel"] + dense["bias"])}


def embed(params: Any, x: Any, scale: Any) -> Any:
    return jnp.tanh(x @ params["dense"]["kernel"]) * scale


CLASSIFY = Signature(classify, args=[X], polymorphic_shapes="(b, 3)")
EMBED = Signature(embed, args=[X, np.float32(2)], polymorphic_shapes=["(b, 3)", None])


def _checked(path: Any) -> onnx.ModelProto:
    """Reads a model that ONNX's own checker accepts, with the types that it infers."""
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(str(path), load_external_data=False)


def _types(values: Any) -> dict[str, Any]:
    """Returns the dtypes and sizes of inputs or outputs by name; open sizes are their names."""
    found = {}
    for value in values:
        tensor = value.type.tensor_type
        sizes = [size.dim_param or size.dim_value for size in tensor.shape.dim]
        found[value.name] = (onnx.TensorProto.DataType.Name(tensor.elem_type), sizes)
    return found


def test_names_and_open_sizes_are_those_of_the_function(tmp_path: Path) -> None:
    saved = save_onnx(tmp_path / "model.onnx", CLASSIFY, params=PARAMS)
    release = __import__("onnxruntime").__version__
    assert str(saved).splitlines() == [
        str(tmp_path / "model.onnx"),
        "  serving_default(x: float32[b,3]) -> (probabilities: float32[b,512])",
        f"    0.01 MB, compared with JAX in ONNX Runtime {release}",
        "  opset 18",
    ]
    (signature,) = saved.signatures.values()
    assert signature.size == (tmp_path / "model.onnx").stat().st_size
    assert (saved.external_size, saved.opset) == (0, 18)
    model = _checked(saved.path)
    assert _types(model.graph.input) == {"x": ("FLOAT", ["b", 3])}
    assert _types(model.graph.output) == {"probabilities": ("FLOAT", ["b", 512])}
    assert {each.name for each in model.graph.initializer} == {"dense/kernel", "dense/bias"}
    assert model.producer_name == "jax2tf_bridge"
    for rows in (1, 4, 7):
        x = np.resize(X, (rows, 3))
        got = run(saved.path, {"x": x})["probabilities"]
        np.testing.assert_allclose(got, classify(PARAMS, x)["probabilities"], rtol=1e-5)


def test_nodes_have_the_lines_of_the_function(tmp_path: Path) -> None:
    saved = save_onnx(tmp_path / "model.onnx", CLASSIFY, params=PARAMS, verify=False)
    _, first = inspect.getsourcelines(classify)
    line = f"at.test_save_onnx.py.{first + 2}"
    names = {node.op_type: node.name for node in _checked(saved.path).graph.node}
    for operation in ("MatMul", "Add", "Softmax"):
        assert re.fullmatch(rf"{re.escape(line)}/{operation}\w*", names[operation]), names


def test_the_opsets(tmp_path: Path) -> None:
    for opset in (18, 23):
        path = tmp_path / f"{opset}.onnx"
        saved = save_onnx(path, EMBED, params=PARAMS, opset=np.int64(opset))  # type: ignore[arg-type]
        assert json.loads(json.dumps(saved.as_json()))["opset"] == opset
        model = _checked(path)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", opset)]
        got = run(path, {"x": X, "scale": np.float32(3)})["output_0"]
        np.testing.assert_allclose(got, embed(PARAMS, X, 3), rtol=1e-5)
    for wrong in (17, 24, 18.0, "18"):
        with pytest.raises(SavingError, match=rf"^opset must be 18 to 23\. Got: {wrong!r}\.$"):
            save_onnx(tmp_path / "a.onnx", EMBED, params=PARAMS, opset=wrong)  # type: ignore[arg-type]


def test_several_functions_share_one_file_of_weights(tmp_path: Path) -> None:
    saved = save_onnx(tmp_path / "both", {"classify": CLASSIFY, "embed": EMBED}, params=PARAMS)
    folder = tmp_path / "both"
    assert sorted(p.name for p in folder.iterdir()) == [
        "classify.onnx",
        "embed.onnx",
        "weights.data",
    ]
    weights = 4 * 512 * (3 + 1)
    assert weights <= saved.external_size == (folder / "weights.data").stat().st_size < 2 * weights
    assert [signature.path for signature in saved.signatures.values()] == [
        folder / "classify.onnx",
        folder / "embed.onnx",
    ]
    assert "  weights beside it: 0.01 MB" in str(saved).splitlines()
    places = []
    for path in (folder / "classify.onnx", folder / "embed.onnx"):
        assert path.stat().st_size < 2000
        kernel = next(w for w in _checked(path).graph.initializer if w.name == "dense/kernel")
        places.append({fact.key: fact.value for fact in kernel.external_data})
    assert places[0] == places[1]
    assert places[0]["location"] == "weights.data"
    got = run(folder / "classify.onnx", {"x": X})["probabilities"]
    np.testing.assert_allclose(got, classify(PARAMS, X)["probabilities"], rtol=1e-5)
    got = run(folder / "embed.onnx", {"x": X, "scale": np.float32(3)})["output_0"]
    np.testing.assert_allclose(got, embed(PARAMS, X, 3), rtol=1e-5)


def test_weights_too_large_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_save, "_MAX_BYTES", 4000)
    saved = save_onnx(tmp_path / "model.onnx", CLASSIFY, params=PARAMS)
    assert saved.external_size == (tmp_path / "model.onnx.data").stat().st_size > 8000
    assert "MB, compared with JAX in ONNX Runtime" in str(saved)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    _checked(saved.path)
    got = run(saved.path, {"x": X})["probabilities"]
    np.testing.assert_allclose(got, classify(PARAMS, X)["probabilities"], rtol=1e-5)
    wrong = {**_builder._FUNCTIONS, "nn.softmax": _builder._FUNCTIONS["sin"]}
    monkeypatch.setattr(_builder, "_FUNCTIONS", wrong)
    (tmp_path / "other").mkdir()
    with pytest.raises(SavingError, match="probabilities differs by"):
        save_onnx(tmp_path / "other" / "model.onnx", CLASSIFY, params=PARAMS)
    assert [*(tmp_path / "other").iterdir()] == []


def test_weights_that_are_moved_keep_their_names(tmp_path: Path) -> None:
    """A tied embedding is stored once, though its product has it transposed."""
    params = {"embed": np.linspace(-1, 1, 600, dtype=np.float32).reshape(200, 3)}
    tokens = np.array([3, 1], np.int32)

    def score(params: Any, tokens: Any) -> Any:
        return params["embed"][tokens] @ params["embed"].T

    saved = save_onnx(tmp_path / "m.onnx", Signature(score, args=[tokens]), params=params)
    large = [w.name for w in _checked(saved.path).graph.initializer if len(w.raw_data) > 1000]
    assert large == ["embed"]


def test_an_existing_model_is_replaced_if_asked_for(tmp_path: Path) -> None:
    path, signature = tmp_path / "model.onnx", Signature(lambda x: x + 1, args=[X])
    path.write_text("older")
    save_onnx(path, signature, overwrite=True)
    np.testing.assert_array_equal(run(path, {"x": X})["output_0"], X + 1)
    folder, pair = tmp_path / "models", {"a": signature, "b": signature}
    save_onnx(folder, pair)
    (folder / "a.onnx").write_text("older")
    save_onnx(folder, pair, overwrite=True)
    np.testing.assert_array_equal(run(folder / "a.onnx", {"x": X})["output_0"], X + 1)


def _mixed(key: Any, z: Any, half: Any) -> dict[str, Any]:
    """Takes a PRNG key, complex numbers and bfloat16."""
    return {
        "spun": z * 2j,
        "size": jnp.abs(z),
        "noise": jax.random.normal(key, (3,)),
        "next_key": jax.random.split(key)[0],
        "doubled": half * 2,
    }


def test_keys_complex_numbers_and_bfloat16(tmp_path: Path) -> None:
    z = (X + 1j * X[::-1]).astype(np.complex64)
    key, half = jax.random.key(3), jnp.asarray(X, jnp.bfloat16)
    signature = Signature(_mixed, args=[key, z, half], polymorphic_shapes=[None, "(b, 3)", None])
    saved = save_onnx(tmp_path / "m.onnx", signature)
    graph = _checked(saved.path).graph
    assert _types(graph.input) == {
        "key": ("UINT32", [2]),
        "z": ("FLOAT", ["b", 3, 2]),
        "half": ("FLOAT", [4, 3]),
    }
    assert _types(graph.output) == {
        "spun": ("FLOAT", ["b", 3, 2]),
        "size": ("FLOAT", ["b", 3]),
        "noise": ("FLOAT", [3]),
        "next_key": ("UINT32", [2]),
        "doubled": ("FLOAT", [4, 3]),
    }
    feed = {
        "key": np.asarray(jax.random.key_data(key)),
        "z": parts(z[:2]),
        "half": np.asarray(half.astype(np.float32)),
    }
    got = run(saved.path, feed)
    want = jax.jit(_mixed)(key, z[:2], half)
    np.testing.assert_allclose(got["spun"], parts(np.asarray(want["spun"])), atol=1e-6)
    np.testing.assert_allclose(got["size"], want["size"], rtol=1e-6)
    np.testing.assert_allclose(got["noise"], want["noise"], rtol=2e-6)
    np.testing.assert_array_equal(got["next_key"], jax.random.key_data(want["next_key"]))
    np.testing.assert_array_equal(got["doubled"], want["doubled"].astype(np.float32))


def test_files_of_functions_and_weights(tmp_path: Path) -> None:
    file, weights = tmp_path / "embed.jaxfn", tmp_path / "weights.msgpack"
    exported = export(embed, polymorphic_shapes=[None, "(b, 3)", None])(PARAMS, X, np.float32(2))
    write_function(file, exported)
    write_weights(weights, PARAMS)
    flat = {"dense.kernel": PARAMS["dense"]["kernel"], "dense.bias": PARAMS["dense"]["bias"]}
    want = embed(PARAMS, X, 3)
    for i, params in enumerate((PARAMS, weights, flat)):
        saved = save_onnx(tmp_path / f"{i}.onnx", file, params=params)
        got = run(saved.path, {"x": X, "scale": np.float32(3)})["output_0"]
        np.testing.assert_allclose(got, want, rtol=1e-5)
    saved = save_onnx(tmp_path / "free.onnx", file)  # the weights are inputs
    assert list(_types(_checked(saved.path).graph.input)) == [
        "params_dense_bias",
        "params_dense_kernel",
        "x",
        "scale",
    ]
    with pytest.raises(ShapeError, match=r"dense.*kernel.*\(3, 512\).*\(512, 3\)|\[3,512\]"):
        save_onnx(
            tmp_path / "a.onnx",
            file,
            params={"dense": {**PARAMS["dense"], "kernel": np.ones((512, 3), np.float32)}},
        )
    with pytest.raises(StructureError, match="bias"):
        save_onnx(
            tmp_path / "a.onnx", file, params={"dense": {"kernel": PARAMS["dense"]["kernel"]}}
        )
    assert not (tmp_path / "a.onnx").exists()


def test_a_weight_with_the_name_of_an_input(tmp_path: Path) -> None:
    signature = Signature(lambda params, x: x * params["x"], args=[X])
    saved = save_onnx(tmp_path / "m.onnx", signature, params={"x": np.float32(2)})
    assert [w.name for w in _checked(saved.path).graph.initializer] == ["params/x"]
    np.testing.assert_array_equal(run(saved.path, {"x": X})["output_0"], X * 2)


def test_captured_arrays_too_large_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_save, "_MAX_BYTES", 4000)
    table = jnp.asarray(PARAMS["dense"]["kernel"])
    saved = save_onnx(tmp_path / "m.onnx", Signature(lambda x: x @ table, args=[X]))
    assert saved.external_size == (tmp_path / "m.onnx.data").stat().st_size == table.nbytes
    np.testing.assert_allclose(run(saved.path, {"x": X})["output_0"], X @ table, 1e-5, 1e-5)


def test_an_input_with_the_name_of_a_captured_array(tmp_path: Path) -> None:
    table = jnp.asarray(PARAMS["dense"]["kernel"])
    signature = Signature(lambda captured_0: captured_0 @ table, args=[X])
    saved = save_onnx(tmp_path / "m.onnx", signature)
    assert [w.name for w in _checked(saved.path).graph.initializer] == ["captured_1"]


def test_captured_arrays_and_arguments_as_results(tmp_path: Path) -> None:
    table = jnp.asarray(PARAMS["dense"]["kernel"])
    signature = Signature(lambda x: {"y": x @ table, "same": x, "again": x}, args=[X])
    saved = save_onnx(tmp_path / "m.onnx", signature)
    _checked(saved.path)
    got = run(saved.path, {"x": X})
    np.testing.assert_allclose(got["y"], X @ PARAMS["dense"]["kernel"], 1e-5, 1e-5)
    np.testing.assert_array_equal(got["same"], X)
    np.testing.assert_array_equal(got["again"], X)


def test_an_argument_that_is_not_read_stays_an_input(tmp_path: Path) -> None:
    saved = save_onnx(tmp_path / "m.onnx", Signature(lambda x, y: x + 1, args=[X, X]))
    assert [each.name for each in session(saved.path).get_inputs()] == ["x", "y"]


REFUSED: Mapping[str, Mapping[str, Any]] = {
    "buckets": {"padding": Padding(buckets={"b": [1, 2]})},
    "defaults": {"defaults": {"scale": 1.0}},
    "updates_params": {"updates_params": True},
    "preprocess": {"processing": Processing(preprocess=lambda x: x)},
    "seed='scalar'": {"seed": "scalar"},
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_that_a_model_has_no_place_for(tmp_path: Path, option: str) -> None:
    signature = Signature(
        embed, args=[X, np.float32(2)], polymorphic_shapes=["(b, 3)", None], **REFUSED[option]
    )
    text = (
        f"The signature serving_default has {option}, and an ONNX model is one function of arrays "
        "that changes nothing: it has no padding, defaults, TensorFlow code or variables. Leave "
        "them out."
    )
    with pytest.raises(SavingError, match=f"^{re.escape(text)}$"):
        save_onnx(tmp_path / "a.onnx", signature, params=PARAMS)


def test_outputs_that_a_model_cannot_have(tmp_path: Path) -> None:
    text = (
        "The signature serving_default has outputs with names of inputs: x. In an ONNX model each "
        "name has one value. Rename them with input_names or output_names of its Signature, as "
        "output_names={'x': 'x_out'}."
    )
    same = Signature(lambda x: {"x": x + 1}, args=[X])
    with pytest.raises(SavingError, match=f"^{re.escape(text)}$"):
        save_onnx(tmp_path / "a.onnx", same)
    same = Signature(lambda x: {"x": x + 1}, args=[X], output_names={"x": "x_out"})
    saved = save_onnx(tmp_path / "a.onnx", same)
    np.testing.assert_array_equal(run(saved.path, {"x": X})["x_out"], X + 1)

    def nothing(x: Any) -> tuple[()]:
        return ()

    text = (
        "nothing of the signature serving_default returns nothing, and ONNX Runtime loads no "
        "model without outputs. Return an array."
    )
    with pytest.raises(SavingError, match=f"^{re.escape(text)}$"):
        save_onnx(tmp_path / "b.onnx", Signature(nothing, args=[X]))


def test_dtypes_and_operations_that_onnx_lacks(tmp_path: Path) -> None:
    def widen(x: Any) -> Any:
        return x.astype(jnp.float32)

    def narrow(x: Any) -> Any:
        return x.astype(jnp.float8_e4m3fn)

    advice = (
        "which ONNX Runtime does not compute with. Convert it to float32 or float16 outside of the "
        "function, and back within it."
    )
    eighths = X.astype(ml_dtypes.float8_e4m3fn)
    for function, x, what in ((widen, eighths, "x"), (narrow, X, "the result")):
        text = f"{what} of {function.__name__} has dtype float8_e4m3fn, {advice}"
        with pytest.raises(DTypeError, match=f"^{re.escape(text)}$"):
            save_onnx(tmp_path / "a.onnx", Signature(function, args=[x]))

    def within(x: Any) -> Any:
        return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    _, first = inspect.getsourcelines(within)
    with pytest.raises(ModuleError) as caught:
        save_onnx(tmp_path / "a.onnx", Signature(within, args=[X]))
    assert f"test_save_onnx.py:{first + 1}" in str(caught.value)
    assert str(caught.value).startswith("within cannot be made of ONNX's operations: ")
    assert "ONNX has no operations for tensor<4x3xf8E4M3FN>" in str(caught.value)
    assert not (tmp_path / "a.onnx").exists()


def test_results_that_differ_from_jax_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**_builder._FUNCTIONS, "tanh": _builder._FUNCTIONS["sin"]}
    monkeypatch.setattr(_builder, "_FUNCTIONS", wrong)
    text = (
        r"^In ONNX Runtime the signature serving_default does not compute what it does in JAX, for "
        r"the example of its inputs:\n.*output_0 differs by 0\.\d+ of its largest number\n"
        r"No file was written\. Save parts of the function to find the operation\. To write the "
        r"file anyway, pass verify=False\.$"
    )
    path = tmp_path / "a.onnx"
    with pytest.raises(SavingError, match=text):
        save_onnx(path, EMBED, params=PARAMS)
    assert not path.exists()
    both = {"embed": EMBED, "classify": CLASSIFY}
    with pytest.raises(SavingError, match="the signature embed does not compute"):
        save_onnx(tmp_path / "both", both, params=PARAMS)
    assert [*tmp_path.iterdir()] == []
    saved = save_onnx(path, EMBED, params=PARAMS, verify=False)
    assert "not run" in str(saved)
    assert path.exists()


def test_results_where_terms_cancel_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = Signature(cancel, args=[CANCELLING, IDS])
    assert "compared with JAX" in str(save_onnx(tmp_path / "a.onnx", signature))
    spectrum = Signature(take_imaginary_part, args=[CANCELLING])
    assert "compared with JAX" in str(save_onnx(tmp_path / "b.onnx", spectrum))
    wrong = {**_builder._FUNCTIONS, "subtract": _builder._FUNCTIONS["add"]}
    monkeypatch.setattr(_builder, "_FUNCTIONS", wrong)
    with pytest.raises(SavingError) as caught:
        save_onnx(tmp_path / "c.onnx", signature)
    lines = [line.split()[1] for line in str(caught.value).splitlines() if "differs by" in line]
    assert lines == ["centred", "from_ids", "loop", "norm", "residual"]
    assert "loop differs by 8" in str(caught.value)
    assert ", and should be 0" in str(caught.value)


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def untraceable(x: Any) -> Any:
        raise AssertionError("it was traced")

    signature = Signature(untraceable, args=[X])
    with pytest.raises(FileExistsError, match="is a folder"):
        save_onnx(tmp_path, signature)
    (tmp_path / "older.onnx").touch()
    for path, signatures in (
        (tmp_path / "older.onnx", signature),
        (tmp_path, {"a": signature, "b": signature}),
    ):
        text = f"{path} already exists; overwrite=True replaces it"
        with pytest.raises(FileExistsError, match=f"^{re.escape(text)}$"):
            save_onnx(path, signatures)
    text = f"{tmp_path} is not replaced: it has other contents, and no weights.data"
    with pytest.raises(FileExistsError, match=f"^{re.escape(text)}$"):
        save_onnx(tmp_path, {"a": signature, "b": signature}, overwrite=True)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        save_onnx(tmp_path / "older.onnx", {"a": signature, "b": signature})


@pytest.mark.parametrize("name", ["a/b", "", "a/", 1])
def test_names_of_files(tmp_path: Path, name: Any) -> None:
    signature = Signature(lambda x: x + 1, args=[X])
    text = (
        f"The signature {name!r} needs a name for the file of its model, NAME.onnx: write a name "
        "without slashes, such as 'predict'."
    )
    with pytest.raises(SavingError, match=f"^{re.escape(text)}$"):
        save_onnx(tmp_path / "models", {name: signature, "other": signature})
    with pytest.raises(SavingError, match=r"^signatures must have at least one function\."):
        save_onnx(tmp_path / "models", {})
    assert [*tmp_path.iterdir()] == []


def test_without_onnx(tmp_path: Path) -> None:
    with (
        blocked("onnx"),
        pytest.raises(MissingDependencyError) as caught,
    ):
        save_onnx(tmp_path / "a.onnx", EMBED, params=PARAMS)
    assert str(caught.value).startswith("Writing an ONNX model needs onnx")
    assert "pip install 'jax2tf-bridge[onnx]'" in str(caught.value)


def test_without_onnxruntime(tmp_path: Path) -> None:
    exported = export(embed, polymorphic_shapes=[None, "(b, 3)", None])(PARAMS, X, np.float32(2))
    with blocked("onnxruntime"):
        saved = save_onnx(tmp_path / "a.onnx", exported, params=PARAMS)
    assert "MB, not run: onnxruntime is not installed" in str(saved)


def test_every_output_with_the_name_of_an_input_is_renamed(tmp_path: Path) -> None:
    def step(state: Any, n: Any) -> dict[str, Any]:
        return {"state": {"k": state["k"] + n, "v": state["v"] * n}, "y": n}

    args = [{"k": X, "v": X}, np.float32(2)]
    with pytest.raises(SavingError) as caught:
        save_onnx(tmp_path / "a.onnx", Signature(step, args=args))
    advice = re.search(r"output_names=(\{.*\})", str(caught.value))
    assert advice is not None
    names = ast.literal_eval(advice[1])
    assert names == {"state_k": "state_k_out", "state_v": "state_v_out"}
    save_onnx(tmp_path / "a.onnx", Signature(step, args=args, output_names=names))


def test_wide_results_of_narrow_floats_are_as_exact_as_these(tmp_path: Path) -> None:
    kernel = np.random.default_rng(1).normal(size=(3, 64)).astype(jnp.bfloat16)

    def f(x: Any) -> Any:
        return jax.nn.gelu(x.astype(jnp.bfloat16) @ kernel).astype(jnp.float32) @ jnp.ones((64, 2))

    x = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    saved = save_onnx(tmp_path / "a.onnx", Signature(f, args=[x]))
    (output,) = run(saved.path, {"x": x}).values()
    assert np.max(np.abs(output - f(x))) > 1e-3 * np.max(np.abs(output))  # else it tests nothing
