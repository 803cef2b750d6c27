"""`jax2tf-bridge verify`: a SavedModel against the JAX function that it came from."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Padding, Signature, Target, save, verify

# Private: tests measure one call at each size, and read the flags for XLA.
from jax2tf_bridge.cli import _checks
from jax2tf_bridge.cli._console import format_for_command_line
from jax2tf_bridge.errors import BridgeError, ShapeError, StructureError
from jax2tf_bridge.inspecting import read_saved_model
from jax2tf_bridge.portable import LEAF, TreeSpec
from jax2tf_bridge.saving.signatures import Endpoint

# Private: sizes, types and gradients that no saved model of the tests has.
from jax2tf_bridge.verifying import _verify as verify_module
from jax2tf_bridge.verifying._comparison import Sampler
from jax2tf_bridge.verifying._containers import KnownTypes
from jax2tf_bridge.verifying._verification import Scale, make_difference
from tests.cli import models, nnx_model
from tests.cli.conftest import Ok, Run
from tests.cli.json_fields import PAGE, list_described_fields
from tests.saved_model import by_hand
from tests.saving import text_classifier


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


def test_latency_is_measured_where_it_is_asked_for(ok: Ok, model: Path) -> None:
    words = ("--against", "tests.cli.models:predict", "--samples", "1")
    assert "latency" in ok("verify", model, *words, "--batch-sizes", "1", "--rounds", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_checks, "_DEFAULT_ROUNDS", 1)
        patch.setattr(verify_module, "LATENCY_SIZES", (1,))
        assert "latency" in ok("verify", model, *words, "--latency")


@pytest.mark.parametrize("words", [("verify",), ("--verbose", "verify")])
def test_latency_is_measured_with_onednn(
    words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    assert run(*words, "none", "--against", "m:f", "--latency").code == 2
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ


def test_latency_is_measured_where_no_power_of_two_is_allowed(tmp_path: Path) -> None:
    signature = Signature(
        lambda x: x * 2,
        args=[np.ones(3, np.float32)],
        polymorphic_shapes="(b,)",
        polymorphic_constraints=["mod(b, 3) == 0"],
    )
    save(tmp_path / "m", signature, vjp_order=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "LATENCY_SIZES", (1, 2))
        report = verify(tmp_path / "m", lambda x: x * 2, samples=1, rounds=1)
    first, second = (point.size or 0 for point in report.latencies)
    assert first == 3
    assert second > 3
    assert second % 3 == 0


def test_another_function_is_an_error_with_the_place(run: Run, model: Path) -> None:
    ended = run("verify", model, "--against", f"{__name__}:one_percent_off", "--samples", "2")
    assert ended.code == 1
    assert "output y" in ended.out
    assert "BEYOND IT" in ended.out
    assert f"differs from {__name__}:one_percent_off" in ended.error
    assert "of its largest number at b = " in ended.error
    assert "beyond the tolerance of 1e-04" in ended.error
    assert ended.error.rstrip().endswith(f"; {ended.out.count('BEYOND IT') - 1} more differ")
    wide = ("--tolerance", "0.05", "--samples", "1", "--gradients", "0")
    assert run("verify", model, "--against", f"{__name__}:one_percent_off", *wide).code == 0


def test_the_first_line_that_differs_is_shown(run: Run, model: Path) -> None:
    against = ("--against", f"{__name__}:one_percent_off", "--samples", "1", "--locate")
    ended = run("verify", model, *against)
    assert ended.code == 1
    assert f"first line that differs: {__file__}:" in ended.out
    assert '    return {**result, "y": result["y"] * 1.01}\nmul at [' in ended.out
    assert " in JAX, " in ended.out
    location = json.loads(run("verify", model, *against, "--json").out)["location"]
    assert {*location} == {"line", "operation", "tensor", "index", "jax", "model"}
    assert location["jax"] == pytest.approx(location["model"] * 1.01)


def test_a_runtime_without_its_model_is_an_error(run: Run, model: Path) -> None:
    against = ("--against", "tests.cli.models:predict")
    ended = run("verify", model, *against, "--runtime", "litert")
    assert ended.code == 2
    assert "--runtime litert runs a .tflite file." in ended.error
    assert "--model model.tflite" in ended.error


def one_percent_off(params: Any, x: Any) -> Any:
    result = models.predict(params, x)
    return {**result, "y": result["y"] * 1.01}


FEW = ("--rounds", "0", "--samples", "2")


def another_gradient(params: Any, x: Any) -> Any:
    from jax.lax import stop_gradient

    result = models.predict(params, x)
    return {**result, "y": stop_gradient(result["y"])}


def test_another_gradient_is_seen(run: Run, model: Path) -> None:
    ended = run("verify", model, "--against", f"{__name__}:another_gradient", *FEW)
    assert ended.code == 1
    assert "the gradient " in ended.error


def test_json_has_all_of_it(ok: Ok, model: Path) -> None:
    words = ("--against", "tests.cli.models:predict", "--rounds", "1", "--batch-sizes", "2")
    facts = json.loads(ok("verify", model, *words, "--json"))
    if PAGE.exists():
        location = {"line", "operation", "tensor", "index", "model"}
        described = {*facts, *facts["differences"][0], "size", *location}
        assert list_described_fields("field of `verify`") == described
    assert facts["signature"] == "serving_default"
    assert len(facts["samples"]) == 5
    assert {d["what"] for d in facts["differences"]} == {"output", "gradient"}
    assert all(d["within"] for d in facts["differences"])
    assert [p["size"] for p in facts["latency_ms"]] == [2]


def test_nan_in_both_is_named_with_its_sizes(ok: Ok, tmp_path: Path) -> None:
    x = np.ones((2, 2), np.float32)
    signature = Signature(nan_from_four, args=[x], polymorphic_shapes="(b, 2)")
    save(tmp_path / "m", signature, vjp_order=0)
    words = ("--against", f"{__name__}:nan_from_four", "--samples", "4")
    facts = json.loads(ok("verify", tmp_path / "m", *words, "--json"))
    (y,) = facts["differences"]
    assert y["within"]
    assert y["nan_at"] == [sizes for sizes in facts["samples"] if sizes["b"] >= 4]
    assert 0 < len(y["nan_at"]) < 4
    places = "; ".join(f"b = {sizes['b']}" for sizes in y["nan_at"])
    line = "output y has NaN in JAX and in the SavedModel, which counts as equal: "
    text = ok("verify", tmp_path / "m", *words)
    assert line + places in text
    assert "latency" not in text


def nan_from_four(x: Any) -> Any:
    return {"y": jnp.where(jnp.sum(jnp.ones_like(x)) >= 8, jnp.nan, x)}


@pytest.mark.costly
def test_the_function_within_preprocess_and_postprocess_is_compared(
    ok: Ok, run: Run, tmp_path: Path
) -> None:
    buckets: dict[str, Any] = {"buckets": {"b": [4], "l": [4]}, "oversize": {"l": "as is"}}
    signature = text_classifier.signature(example={"text": ["good film"]})
    save(tmp_path / "m", signature, params=text_classifier.PARAMS, **buckets)
    assert len(read_saved_model(tmp_path / "m").modules) == 2  # the function and its gradient
    words = ("--samples", "1", "--signature", "serving_default")
    text = ok("verify", tmp_path / "m", "--against", f"{text_classifier.__name__}:classify", *words)
    assert "(compared without preprocess and postprocess, which are TensorFlow's)" in text
    for line in ("output scores", "gradient params['embedding']"):
        assert line in text
    wrong = ("--against", f"{__name__}:too_sure", "--gradients", "0", *words)
    ended = run("verify", tmp_path / "m", *wrong)
    assert ended.code == 1
    assert "the output scores is off by" in ended.error


def too_sure(params: Any, tokens: Any, mask: Any) -> Any:
    """Classifies with scores that are 1 % too large."""
    return {"scores": 1.01 * text_classifier.classify(params, tokens, mask)["scores"]}


def test_a_signature_whose_inner_function_is_not_in_the_file(run: Run, tmp_path: Path) -> None:
    signature = text_classifier.signature(example={"text": ["good film"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Endpoint, "trace_unprocessed", lambda _: None)
        options: Any = {"buckets": {"b": [1], "l": [2]}, "vjp_order": 0}
        save(tmp_path / "m", signature, params=text_classifier.PARAMS, **options)
    against = f"{text_classifier.__name__}:classify"
    ended = run("verify", tmp_path / "m", "--against", against)
    assert ended.error == (
        "The signature serving_default takes text, but the JAX function does not. The signature "
        "has a preprocess or postprocess, and an older release of the bridge saved it without the "
        "function between them. Save the model again, and verify the new one."
    )


def test_the_function_prints_what_the_command_prints(ok: Ok, model: Path) -> None:
    report = verify(model, models.predict, samples=2)
    assert report.ok, report
    assert report.problem is None
    words = ("--against", "tests.cli.models:predict", "--samples", "2")
    assert json.loads(ok("verify", model, *words, "--json")) == report.as_json()
    lost = make_difference("output", "y", "float32", None)
    distance = lost.measure(np.ones(1, np.float32), np.full(1, np.nan, np.float32), {"b": 1})
    lost.add(distance, Scale(), {"b": 1})
    facts = dataclasses.replace(report, differences=(lost,)).as_json()
    assert "Infinity" not in json.dumps(facts)  # JSON has no such number
    assert facts["differences"][0]["relative"] is None
    wrong = verify(model, one_percent_off, samples=1, gradients=0)
    assert not wrong.ok
    assert wrong.problem is not None
    assert wrong.problem.startswith(f"{model} differs from {__name__}:one_percent_off: the output ")
    assert "BEYOND IT" in str(wrong)


def double(x: Any) -> Any:
    return x * 2


def test_a_model_for_converters_has_float32_in_place_of_bfloat16(tmp_path: Path) -> None:
    signature = Signature(double, args=[jnp.ones((2, 3), jnp.bfloat16)])
    save(tmp_path / "m", signature, target=Target.converters(), vjp_order=0)
    assert verify(tmp_path / "m", double, samples=1).ok


def test_a_signature_that_is_not_there_is_told_in_the_words_of_python(model: Path) -> None:
    with pytest.raises(BridgeError) as caught:
        verify(model, models.predict, signature="serving_defualt")
    assert str(caught.value) == (
        "signature: the SavedModel has no signature 'serving_defualt': did you mean "
        "'serving_default'? There are: serving_default."
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"samples": 0}, "samples must be an integer of at least 1. Got: 0."),
        ({"gradients": -1}, "gradients must be an integer of at least 0. Got: -1."),
        ({"rounds": 2.5}, "rounds must be an integer of at least 0. Got: 2.5."),
        (
            {"batch_sizes": np.array([1, 4])},
            "batch_sizes are the sizes at which latency is measured, and rounds=0 measures none. "
            "Pass rounds=20.",
        ),
    ],
)
def test_numbers_that_compare_or_measure_nothing(
    model: Path, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BridgeError, match=f"^{re.escape(expected)}$"):
        verify(model, models.predict, **options)


def test_objects_that_cannot_be_rebuilt_are_asked_for(tmp_path: Path) -> None:
    x = np.ones((4, 3), np.float32)
    save(tmp_path / "1", Signature(models.call, args=[x]), params=models.layer)
    with pytest.raises(BridgeError, match="Pass params_like=object, an object of the same"):
        verify(tmp_path / "1", weights_of, samples=1, gradients=0)
    like = make_layer()
    assert verify(tmp_path / "1", weights_of, samples=1, gradients=0, params_like=like).ok


def test_integers_buckets_and_what_has_no_gradient(ok: Ok, tmp_path: Path) -> None:
    signature = Signature(lookup, args=[np.zeros((2, 3), np.int32)], polymorphic_shapes="(b, 3)")
    save(tmp_path / "m", signature, buckets={"b": [2, 8]}, vjp_order=0)
    words = ("--against", f"{__name__}:lookup", "--samples", "2")
    text = ok("verify", tmp_path / "m", *words)
    assert "(it has no gradients)" in text
    assert "output output_0" in text


def mean_of_words(x: Any) -> Any:
    return x.mean(1)


def test_sizes_whose_padding_was_not_checked_are_buckets(ok: Ok, tmp_path: Path) -> None:
    x = np.ones((2, 5), np.float32)
    signature = Signature(
        mean_of_words,
        args=[x],
        polymorphic_shapes="(b, n)",
        padding=Padding(unchecked_padding=["n"]),
    )
    save(tmp_path / "m", signature, buckets={"b": [4], "n": [4, 6]}, vjp_order=0)
    words = ("--against", f"{__name__}:mean_of_words", "--samples", "4")
    facts = json.loads(ok("verify", tmp_path / "m", *words, "--json"))
    assert facts["only_buckets"] == ["n"]
    assert {sizes["n"] for sizes in facts["samples"]} == {4, 6}
    assert len({sizes["b"] for sizes in facts["samples"]}) > 1
    text = ok("verify", tmp_path / "m", *words[:2], "--samples", "1")
    assert "(only buckets of n are compared, since save was told not to check " in text


def attention(params: Any, x: Any) -> Any:
    """Attends; the gradient of its key bias is zero in theory, and rounding in practice."""
    query = x @ params["query"]["kernel"] + params["query"]["bias"]
    key = x @ params["key"]["kernel"] + params["key"]["bias"]
    scores = jnp.einsum("bqd,bkd->bqk", query, key)
    return jax.nn.softmax(scores) @ (x @ params["value"]["kernel"] + params["value"]["bias"])


def one_percent(params: Any, x: Any) -> Any:
    """Attends with the gradient of one of its weights 1% too large."""
    return attention({**params, "query": _scaled_gradient(params["query"], 1.01)}, x)


def _scaled_gradient(tree: Any, factor: float) -> Any:
    def scaled(x: Any) -> Any:
        return jax.lax.stop_gradient(x) * (1 - factor) + x * factor

    return {"kernel": tree["kernel"], "bias": scaled(tree["bias"])}


@pytest.fixture(scope="module")
def attention_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention") / "1"
    rng = np.random.default_rng(0)
    params = {
        name: {
            "kernel": rng.normal(size=(8, 8)).astype(np.float32),
            "bias": rng.normal(size=8).astype(np.float32),
        }
        for name in ("query", "key", "value")
    }
    signature = Signature(
        attention, args=[np.ones((2, 4, 8), np.float32)], polymorphic_shapes="(b, n, _)"
    )
    save(folder, signature, params=params)
    return folder


def test_a_gradient_that_is_zero_in_theory_is_judged_by_the_scale_of_the_others(
    run: Run, attention_model: Path
) -> None:
    words = ("--against", f"{__name__}:attention", "--samples", "2", "--json")
    facts = json.loads(run("verify", attention_model, *words).out)
    assert facts["samples_with_gradients"] == facts["samples"][1:]
    assert all(d["within"] for d in facts["differences"])
    # Rounding, which some pairs of compilers have alike, would fail by its own largest number.
    for least_scale, within in ((0.0, False), (0.1, True)):
        bias = make_difference("gradient", "params['key']['bias']", "float32", None)
        distance = bias.measure(np.array([1e-8]), np.array([-1e-8]), {"b": 2})
        bias.add(distance, Scale(least_scale, "the others"), {"b": 2})
        assert (bias.within, bias.scale == "the others") == (within, within)


def test_programs_that_run_once_are_compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    _checks._compile_quickly()
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=1"  # JAX has read it
    for module in ("jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    _checks._compile_quickly()
    assert os.environ["XLA_FLAGS"].split() == [
        "--xla_backend_optimization_level=1",
        "--xla_llvm_disable_expensive_passes=true",
    ]


def test_a_gradient_that_is_wrong_by_a_hundredth_in_one_weight_fails(
    run: Run, attention_model: Path
) -> None:
    ended = run("verify", attention_model, "--against", f"{__name__}:one_percent", "--samples", "2")
    assert ended.code == 1
    assert ended.out.count("BEYOND IT") == 1
    assert "the gradient params['query']['bias'] is off by 0.0099 of its" in ended.error
    assert "at b = " in ended.error


@pytest.mark.costly
def test_weights_in_an_object_are_rebuilt_from_what_against_names(
    ok: Ok, run: Run, tmp_path: Path
) -> None:
    signature = Signature(
        models.call, args=[np.ones((4, 3), np.float32)], polymorphic_shapes="(b, _)"
    )
    save(tmp_path / "1", signature, params=models.layer)
    words = ("--samples", "1", "--gradients", "0")
    # Beside the function; the object itself, which is called; its method.
    for against in ("call", "layer", "layer.__call__"):
        text = ok("verify", "1", "--against", f"tests.cli.models:{against}", *words)
        assert "output output_0" in text
    without = ("--against", f"{__name__}:weights_of", *words)
    ended = run("verify", "1", *without)
    assert ended.code == 1
    assert ended.error == (
        f"{__name__}:weights_of was saved with objects of type Layer, which verify found neither "
        f"in {__name__} nor in --params-like. The function failed with dicts instead: "
        "AttributeError: 'dict' object has no attribute 'weights'. Pass --params-like "
        "module:object, an object of the same structure (its values do not matter)."
    )
    for like in ("tests.cli.models:layer", f"{__name__}:make_layer"):
        ok("verify", "1", *without, "--params-like", like)


def weights_of(layer: Any, x: Any) -> Any:
    return x @ layer.weights


def make_layer() -> models.Layer:
    return models.Layer(np.zeros((3, 2), np.float32))


def test_types_of_a_nnx_module_are_found(ok: Ok, tmp_path: Path) -> None:
    x = np.ones((4, 3), np.float32)
    signature = Signature(nnx_model.call, args=[x], polymorphic_shapes="(b, _)")
    save(tmp_path / "1", signature, params=nnx_model.net)
    text = ok("verify", "1", "--against", f"{nnx_model.__name__}:call", "--samples", "2")
    assert "gradient net.kernel" in text


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scaled:
    """A pytree with static data."""

    weights: Any
    factor: float = dataclasses.field(metadata={"static": True})


def test_objects_of_one_structure_and_other_static_data_are_not_guessed() -> None:
    namespace = {"one": Scaled(1, 1.0), "two": Scaled(2, 2.0)}
    function = eval("lambda: (one, two)", namespace)
    tree = TreeSpec("custom", "Scaled", ("weights",), (LEAF,))
    with pytest.raises(StructureError) as refused:
        KnownTypes(function, f"{__name__}:f").add_to(tree)
    text = (
        f"{__name__}:one and {__name__}:two both have the structure of the SavedModel's Scaled, "
        "but differ in their static data. Pass the one that the function was saved with: "
    )
    assert str(refused.value) == f"{text}params_like=one"
    in_command = format_for_command_line(refused.value.args[0], argparse.Namespace())
    assert in_command == f"{text}--params-like {__name__}:one"
    found = KnownTypes(function, f"{__name__}:f", namespace["two"]).add_to(
        TreeSpec("tuple", children=(tree, LEAF))
    )
    assert found.unflatten(iter([5, 6])) == (Scaled(5, 2.0), 6)


def lookup(ids: Any) -> Any:
    return jnp.arange(10)[ids] * 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--against", "tests.cli.models:predcit"], 2, "has no predcit: did you mean predict?"),
        (["--against", "tests.cli.models:params"], 2, "must be a function. Got: dict"),
        (["--against", "tests.cli.models:fails"], 1, "running tests.cli.models:fails or"),
        (["--against", "tests.cli.models:cube", "--plot", "a.png"], 2, "Name the file a.svg"),
        (
            ["--against", "tests.cli.models:cube", "--seed", "-1"],
            2,
            "--seed: expected a number of at least 0. Got: -1",
        ),
        (
            ["--against", "tests.cli.models:cube", "--signature", "x"],
            2,
            "--signature: the SavedModel has no signature 'x'. There are: serving_default.",
        ),
        (
            ["--against", "tests.cli.models:cube", "--samples", "0"],
            2,
            "expected a number of at least 1. Got: 0",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Run, model: Path, words: list[str], code: int, text: str
) -> None:
    ended = run("verify", model, *words)
    assert ended.code == code
    assert text in ended.error


def test_a_damaged_graph_is_told_before_tensorflow_meets_it(run: Run, tmp_path: Path) -> None:
    folder = by_hand.Model({"main": [by_hand.node("n", "NoOp") + b"\xff"]}).write(tmp_path / "m")
    ended = run("verify", folder, "--against", "tests.cli.models:cube")
    assert ended.code == 1
    assert "in a node of the function main, at byte" in ended.error


def test_a_folder_that_is_no_saved_model(run: Run, tmp_path: Path) -> None:
    ended = run("verify", tmp_path, "--against", "tests.cli.models:cube")
    assert ended.code == 1
    assert "has no saved_model.pb" in ended.error


def test_sizes_satisfy_the_constraints() -> None:
    from jax2tf_bridge import export

    portable = export(
        lambda x, y: x[:, : y.shape[0]],
        polymorphic_shapes=["(b, 2*n)", "(n,)"],
        polymorphic_constraints=["mod(b, 4) == 0", "n >= 3"],
    )(np.ones((4, 6), np.float32), np.ones(3, np.float32))
    sampler = Sampler(portable, 0)
    found = sampler.draw_sizes(6)
    assert len(found) == 6
    assert found[0] == {"b": 4, "n": 3}
    assert all(sizes["b"] % 4 == 0 and sizes["n"] >= 3 for sizes in found)
    assert sampler.draw_array(portable.in_avals[0], {"b": 4, "n": 3}).shape == (4, 6)
    assert Sampler(portable, 0).draw_sizes(6) == found


def test_sizes_beside_large_ones_follow_from_the_constraints() -> None:
    from jax2tf_bridge import export

    portable = export(
        lambda x, y, z: x[:, : y.shape[0]] + z.sum(),
        polymorphic_shapes=["(b, n)", "(m,)", "(k,)"],
        polymorphic_constraints=["n == 2*m", "3*k >= m"],
    )(*(np.ones(shape, np.float32) for shape in [(4, 6), (3,), (3,)]))
    only = Sampler(portable, 0, {"n": [1024, 4096]})
    assert only.complete_sizes({}) == {"b": 1, "n": 1024, "m": 512, "k": 171}
    assert {sizes["n"] for sizes in only.draw_sizes(20)} == {1024, 4096}
    assert Sampler(portable, 0).complete_sizes({"m": 700}) == {
        "b": 1,
        "n": 1400,
        "m": 700,
        "k": 234,
    }
    with pytest.raises(ShapeError, match=r"no sizes of .* with n = 7 were found"):
        Sampler(portable, 0).complete_sizes({"n": 7})
