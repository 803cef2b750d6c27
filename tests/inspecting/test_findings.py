"""Findings say what will go wrong with a SavedModel, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, export, save
from jax2tf_bridge.inspecting import describe_saved_model, inspect, read_saved_model

# Private: sizes of a file that no disk of a test should hold.
from jax2tf_bridge.inspecting._contents import FunctionsBeside
from jax2tf_bridge.inspecting._findings import list_findings
from tests.saved_model.by_hand import (
    FLOAT32,
    INT4,
    INT32,
    Call,
    Model,
    calling,
    constant,
    differentiable,
    preventing,
)

X = np.ones((4, 3), np.float32)
OPEN = Model({})
STATIC = replace(OPEN, inputs={"x": (4, 3)}, outputs={"y": (4, 3)})


def module(function: Any = jnp.sin, **options: Any) -> bytes:
    return export(function, platforms=["cpu"], **options)(X).module.data


SOUND = Call(module())
NOTHING = FunctionsBeside({}, {}, ())


def told(folder: Path, model: Model) -> list[tuple[str, str, str]]:
    """Severity, text and remedy of each finding."""
    facts = describe_saved_model(read_saved_model(model.write(folder / "m")))
    return [(f["severity"], f["text"], f["remedy"]) for f in facts["findings"]]


def only(findings: Sequence[tuple[str, str, str]], part: str) -> tuple[str, str, str]:
    (found,) = [finding for finding in findings if part in finding[1]]
    return found


def running(*calls: Call, model: Model = STATIC) -> Model:
    return replace(model, functions={"main": [call.node() for call in calls]})


def test_the_worst_comes_first(tmp_path: Path) -> None:
    lapack = Call(module(jnp.sin), platforms=["CUDA"], results=[INT32])
    severities = [severity for severity, _, _ in told(tmp_path, running(lapack, model=OPEN))]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert set(severities) == {"error", "warning", "note"}


def test_a_sound_model_has_notes_alone(tmp_path: Path) -> None:
    assert {severity for severity, _, _ in told(tmp_path, running(SOUND))} == {"note"}


def test_newer_than_some_releases(tmp_path: Path) -> None:
    newer = Call(module(target=Target.tensorflow("2.18")))
    path = tmp_path / "m"
    assert only(told(tmp_path, running(newer)), "StableHLO") == (
        "warning",
        "The module main/XlaCallModule is for TensorFlow 2.18 and newer (StableHLO 1.7.3, calling "
        "convention 8): running fails in older ones.",
        f"jax2tf-bridge retarget {path} --tensorflow RELEASE writes for an older release.",
    )


def test_newer_than_all_releases(tmp_path: Path) -> None:
    both = [replace(SOUND, version=11, name=name) for name in ("first", "second")]
    assert only(told(tmp_path, running(*both)), "convention") == (
        "error",
        "2 modules are newer (StableHLO 0.14.24, calling convention 11) than TensorFlow 2.22, "
        "the newest known release, reads (1.20.0 and 10): running fails where an operation is "
        "newer, and in all older releases.",
        f"jax2tf-bridge retarget {tmp_path / 'm'} --tensorflow RELEASE fixes this.",
    )


def test_an_attribute_that_older_releases_lack(tmp_path: Path) -> None:
    call = replace(SOUND, flags=["use_shardy_partitioner"])
    assert "is for TensorFlow 2.20 and newer" in only(told(tmp_path, running(call)), "newer")[1]


@pytest.mark.parametrize("vouched", [False, True])
def test_linear_algebra_that_tensorflow_lacks(tmp_path: Path, vouched: bool) -> None:
    exported = jax.export.export(
        jax.jit(lambda x: jnp.linalg.qr(x)[0]),
        platforms=["cpu"],
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call(name)
            for name in ("lapack_sgeqrf_ffi", "lapack_sorgqr_ffi")
        ],
    )(X)
    checks = [f"custom_call:lapack_{name}_ffi" for name in ("sgeqrf", "sorgqr")]
    call = Call(exported.mlir_module_serialized, disabled_checks=checks if vouched else [])
    severity, text, remedy = only(told(tmp_path, running(call)), "handler")
    assert severity == "error"
    assert text == (
        "The module main/XlaCallModule fails to run: TensorFlow has no handler for the custom "
        "calls lapack_sgeqrf_ffi, lapack_sorgqr_ffi."
    )
    assert remedy.endswith("--tensorflow RELEASE writes linear algebra as StableHLO.")


def test_large_constants_once_more_in_the_gradient(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(3, 1_000_000)).astype(np.float32)
    functions = (lambda x: x @ weights, lambda x: x @ -weights)
    call, gradient = (
        Call(jax.export.export(jax.jit(f), platforms=["cpu"])(X).mlir_module_serialized)
        for f in functions
    )
    model = replace(
        STATIC,
        functions={"main": [call.node(), differentiable("d", "kind")], "vjp": [gradient.node()]},
        gradients={"kind": "vjp"},
    )
    severity, text, remedy = only(told(tmp_path, model), "constants")
    assert severity == "warning"
    assert text == (
        "Arrays of 24.0 MB are constants in the modules, 12.0 MB of them in "
        "gradients: loading and compiling take long and much memory."
    )
    assert remedy.startswith("Save the function with jax2tf_bridge.save")


def test_large_constants_in_the_graph(tmp_path: Path) -> None:
    model = replace(running(SOUND), nodes=[constant("table", (1000, 300))])
    assert only(told(tmp_path, model), "table") == (
        "warning",
        "Arrays of 1.2 MB are constants in the graph; the largest is table with 1.2 MB.",
        "Make them variables of the model.",
    )


def test_near_the_limit_of_a_file(tmp_path: Path) -> None:
    contents = read_saved_model(running(SOUND).write(tmp_path / "m"))
    large = replace(contents, graph_size=1_900_000_000)
    text = "saved_model.pb has 1.9 GB, and TensorFlow reads at most 2.1 GB."
    assert text in [finding.text for finding in list_findings(large, (), NOTHING)]
    assert text not in [finding.text for finding in list_findings(contents, (), NOTHING)]


@pytest.mark.parametrize(
    ("platforms", "checks", "expected"),
    [
        (["CUDA"], [], ("warning", "is for cuda and not for the CPU: running there fails.")),
        (["CPU"], [], ("note", "is for the CPU alone: running on a GPU or TPU fails.")),
        (["CPU"], ["platform"], ("note", "running on a GPU or TPU is not checked.")),
        (["CPU", "TPU"], [], None),
        ([], [], None),
    ],
)
def test_platforms(
    tmp_path: Path, platforms: list[str], checks: list[str], expected: tuple[str, str] | None
) -> None:
    call = replace(SOUND, platforms=platforms, disabled_checks=checks)
    found = [(s, t) for s, t, _ in told(tmp_path, running(call)) if "CPU" in t]
    if expected is None:
        assert found == []
    else:
        ((severity, text),) = found
        assert severity == expected[0]
        assert text.endswith(expected[1])


def test_sizes_that_are_compiled_one_by_one(tmp_path: Path) -> None:
    severity, text, remedy = only(told(tmp_path, running(SOUND, model=OPEN)), "compiled")
    assert severity == "warning"
    assert text == (
        "serving_default is compiled anew for each size of x, in the middle of the first request "
        "that has it."
    )
    assert "save(..., buckets={...}) pads to few sizes" in remedy


def test_requests_to_warm_up_cover_some_sizes(tmp_path: Path) -> None:
    folder = running(SOUND, model=OPEN).write(tmp_path / "m")
    (folder / "assets.extra").mkdir()
    requests = bytes(16) * 2
    (folder / "assets.extra" / "tf_serving_warmup_requests").write_bytes(requests)
    facts = describe_saved_model(read_saved_model(folder))
    texts = [f["text"] for f in facts["findings"]]
    assert any("each size of x that is not among the 2 warm-up requests" in t for t in texts)
    (folder / "assets.extra" / "tf_serving_warmup_requests").write_bytes(requests[:-1])
    facts = describe_saved_model(read_saved_model(folder))
    assert facts["findings"][0]["text"] == (
        "The warm-up requests cannot be read: it ends within a record. TensorFlow Serving does not "
        "load the model."
    )
    assert facts["findings"][0]["severity"] == "error"


@pytest.mark.parametrize(("batch", "severity"), [(1, "warning"), (4, "note")])
def test_fixed_batches(tmp_path: Path, batch: int, severity: str) -> None:
    model = replace(running(SOUND), inputs={"x": (batch, 3)})
    found, text, _ = only(told(tmp_path, model), "fixed")
    assert found == severity
    assert ("(to a batch of 1, it seems)" in text) == (batch == 1)


def vjp(last: Sequence[bytes]) -> dict[str, Sequence[bytes]]:
    return {
        "main": [SOUND.node(), differentiable("d", "kind")],
        "vjp": [replace(SOUND, name="vjp").node(), *last],
    }


@pytest.mark.parametrize(
    ("functions", "gradients", "text"),
    [
        ({"main": [SOUND.node()]}, {}, "no gradient."),
        ({"main": [SOUND.node(), preventing("ask me.")]}, {}, "no gradient: ask me."),
        (
            {"main": [SOUND.node(), preventing("They were saved up to order 0.")]},
            {},
            "no gradient: They were saved up to order 0.",
        ),
        ({"main": [SOUND.node(), differentiable("d", "k")]}, {}, "no gradient was saved."),
        (
            vjp([preventing("ask me.")]),
            {"kind": "vjp"},
            "gradients are stored to order 1, and then: ask me.",
        ),
    ],
)
def test_gradients(
    tmp_path: Path, functions: dict[str, list[bytes]], gradients: dict[str, str], text: str
) -> None:
    model = replace(STATIC, functions=functions, gradients=gradients, methods={"f": "main"})
    severity, found, remedy = only(told(tmp_path, model), "gradient")
    assert (severity, found) == ("note", f"serving_default, f: {text}")
    assert ("vjp_order=1" in remedy) == ("ask me" not in text)
    assert ("experimental_custom_gradients=True" in remedy) == (text == "no gradient was saved.")


def test_a_gradient_that_calls_the_function_again(tmp_path: Path) -> None:
    """The gradient of a function that runs in pieces calls the function too."""
    model = replace(STATIC, functions=vjp([]), gradients={"kind": "vjp"}, methods={"f": "main"})
    facts = describe_saved_model(read_saved_model(model.write(tmp_path / "m")))
    assert [module["order"] for module in facts["modules"]] == [0, 0]
    assert facts["signatures"][0]["modules"] == [
        {"module": 0, "order": 0},
        {"module": 1, "order": 1},
    ]
    assert facts["tensorflow_for_gradients"] == []


@pytest.mark.parametrize(
    "last",
    [
        [],
        [differentiable("d", "k")],
        [preventing("The gradients of f were saved up to order 1. For more, save it with ...")],
    ],
)
def test_gradients_that_end_where_they_were_saved_are_no_finding(
    tmp_path: Path, last: list[bytes]
) -> None:
    model = replace(STATIC, functions=vjp(last), gradients={"kind": "vjp"}, methods={"f": "main"})
    assert not [text for _, text, _ in told(tmp_path, model) if "gradient" in text]


def test_what_is_to_be_said_of_several_signatures_stands_once(tmp_path: Path) -> None:
    x = np.ones((2, 3), np.float32)
    signatures = {
        name: Signature(function, args=[x], polymorphic_shapes="(b, _)")
        for name, function in (("sine", jax.numpy.sin), ("cosine", jax.numpy.cos))
    }
    save(tmp_path / "1", signatures)
    (finding,) = describe_saved_model(read_saved_model(tmp_path / "1"))["findings"]
    assert finding["text"] == (
        "cosine, sine are compiled anew for each size of x, in the middle of the first request "
        "that has it."
    )
    assert len(finding["modules"]) == 2


def test_a_module_that_cannot_be_read(tmp_path: Path) -> None:
    found = told(tmp_path, running(Call(b"nothing")))
    assert only(found, "cannot be read")[0] == "error"
    assert "The module of main/XlaCallModule cannot be read: " in found[0][1]


@pytest.mark.parametrize(
    ("arguments", "results", "difference"),
    [
        (
            [FLOAT32],
            [INT32],
            "result 0: the portable function says int32[4,3], the module tensor<4x3xf32>",
        ),
        ([FLOAT32], [], "the portable function has 0 results, the module 1"),
        ([FLOAT32, FLOAT32], [FLOAT32], "the portable function has 2 arguments, the module 1"),
    ],
)
def test_types_that_tensorflow_does_not_compare(
    tmp_path: Path, arguments: list[int], results: list[int], difference: str
) -> None:
    call = replace(SOUND, arguments=arguments, results=results)
    severity, text, _ = only(told(tmp_path, running(call)), "stray memory")
    assert severity == "error"
    assert difference in text


def test_four_bits_at_the_op(tmp_path: Path) -> None:
    call = replace(SOUND, arguments=[INT4])
    severity, text, _ = only(told(tmp_path, running(call)), "int4")
    assert severity == "error"
    assert "release passes incorrectly: results are wrong" in text


def test_effects_and_shardings(tmp_path: Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    exported = jax.export.export(
        jax.jit(lambda x: jax.lax.with_sharding_constraint(x, sharding)), platforms=["cpu"]
    )(X)
    call = Call(exported.mlir_module_serialized, flags=["has_token_input_output"])
    found = told(tmp_path, running(call))
    assert only(found, "ordered effects, which TensorFlow cannot run")[0] == "warning"
    assert only(found, "holds shardings")[0] == "note"


def test_what_is_missing(tmp_path: Path) -> None:
    model = replace(
        STATIC, functions={"main": [SOUND.node(), calling("c", "gone")]}, assets=["words"]
    )
    found = told(tmp_path, model)
    for text in (
        "Files of the model are missing: assets/words. Loading it fails.",
        "The graph calls functions that are not in the file: gone.",
    ):
        assert only(found, text)[0] == "error"


def test_modules_that_nothing_runs(tmp_path: Path) -> None:
    model = replace(STATIC, functions={"main": [SOUND.node()], "alone": [SOUND.node()]})
    assert only(told(tmp_path, model), "not run by any signature") == (
        "note",
        "The module alone/XlaCallModule is not run by any signature or method that was found.",
        "",
    )


def test_long_names_are_shortened(tmp_path: Path) -> None:
    model = replace(running(replace(SOUND, version=11)), name="a" * 10_000)
    assert all(len(text) < 2000 for _, text, _ in told(tmp_path, model))


def test_control_characters_and_half_characters_of_a_file_are_escaped(tmp_path: Path) -> None:
    folder = replace(running(SOUND), name="sign\x1b[31m").write(tmp_path / "m")
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "jax2tf_bridge.json").write_text(r'{"bridge": "\ud800"}')
    text = str(inspect(folder))
    assert r"jax2tf-bridge \ud800" in text
    assert r"signature sign\x1b[31m(" in text
