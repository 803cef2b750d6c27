"""`jax2tf-bridge inspect`: what it says of a file, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge.inspecting import format_releases

# Private: it prints facts that no function of the tests has.
from jax2tf_bridge.inspecting._functions import format_function
from jax2tf_bridge.portable import Aval, LiftedConstant, StoredGradient
from jax2tf_bridge.serialization import read_function, write_function
from jax2tf_bridge.weights import write_weights
from tests.cli import models
from tests.cli.conftest import FINDS_PACKAGES, Ok, Run
from tests.cli.json_fields import assert_fits
from tests.cli.json_schema import SCHEMA
from tests.fresh_process import run_python
from tests.saved_model.by_hand import Call, Model
from tests.serialization.records import changed, constant


@pytest.fixture
def predict(ok: Ok) -> str:
    words = ("--args", "@tests.cli.models:params", "f32[b,3]", "--constraints", "b >= 2")
    ok("export", "tests.cli.models:predict", *words, "-o", "predict.jaxfn")
    return "predict.jaxfn"


def facts_of(ok: Ok, file: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(ok("inspect", file, "--json"))
    return facts


def test_json_keeps_its_schema(ok: Ok, predict: str) -> None:
    portable = read_function(predict)
    constant = LiftedConstant(Aval((2, 3), "float32"), "ab" * 32, "weights")
    full = replace(
        portable,
        lifted_constants=(constant,),
        dropped_platforms=(("rocm", "no rule"),),
        unordered_effects=("Odd",),
    )
    write_function("full.jaxfn", full)
    Path("exported").write_bytes(_exported_by_jax())
    for file in (predict, "full.jaxfn", "exported"):
        assert_fits(facts_of(ok, file), SCHEMA, file)


def _exported_by_jax() -> bytes:
    (b,) = jax.export.symbolic_shape("b", constraints=["b >= 2"])
    x = jax.ShapeDtypeStruct((b, 3), jnp.float32)
    exported = jax.export.export(jax.jit(models.predict))(models.params, x)
    return bytes(exported.serialize(vjp_order=1))


def test_json_of_a_function(ok: Ok, predict: str) -> None:
    facts = facts_of(ok, predict)
    assert facts["schema"] == 1
    assert facts["file"] == {
        "path": "predict.jaxfn",
        "format": "jaxfn",
        "version": 1,
        "bytes": Path(predict).stat().st_size,
    }
    assert facts["arguments"][2] == {
        "path": "x",
        "shape": ["b", 3],
        "dtype": "float32",
        "memory_space": "device",
        "used": True,
    }
    assert [r["path"] for r in facts["results"]] == ["['n'][0]", "['y']"]
    assert facts["sizes"] == {
        "variables": ["b"],
        "constraints": ["b >= 2"],
        "constraints_known": True,
        "requirements": [],
    }
    assert facts["tensorflow"] == ["2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21", "2.22"]
    assert facts["gradient"]["orders"] == 1
    portable = read_function(predict)
    forward, gradient = facts["modules"]
    assert forward["bytes"] == len(portable.module.data)
    assert gradient["bytes"] == len(portable.vjp().module.data)
    assert "stablehlo.dot_general" in {op["name"] for op in forward["ops"]}
    counts = [op["count"] for op in forward["ops"]]
    assert counts == sorted(counts, reverse=True)
    assert all(call["handled"] for call in forward["custom_calls"])


def test_text(ok: Ok, predict: str) -> None:
    text = ok("inspect", predict, "--ops", "1")
    size = Path(predict).stat().st_size
    portable = read_function(predict)
    head, function, gradient = text.split("\n\nthe function: ")[0], *text.split("\n\n")[-2:]
    expected = f"""predict, in predict.jaxfn

arguments:
  params['b']  float32[2]
  params['w']  float32[3,2]
  x            float32[b,3]
results:
  ['n'][0]  float32[]
  ['y']     float32[b,2]
sizes:     b open; under b >= 2
runs on:   TensorFlow 2.15 to 2.22
platforms: cpu, cuda, rocm, tpu
gradient:  to order 1
made by:   JAX {jax.__version__}
made for:  every TensorFlow from 2.15 on
format:    jaxfn version 1, {size:,} bytes"""
    assert head == expected
    assert function.startswith(f"the function: {len(portable.module.data):,} bytes (")
    assert (
        " in constants), StableHLO 0.14.24, calling convention 8, TensorFlow 2.15 to 2.22\n"
    ) in function
    assert " ops: " in function
    assert " more" in function
    assert "\n  custom calls: " in function
    assert gradient.startswith(
        f"its gradient of order 1: {len(portable.vjp().module.data):,} bytes"
    )


def test_all_ops_are_shown_if_asked(ok: Ok, predict: str) -> None:
    text = ok("inspect", predict, "--ops", "1000")
    for op in facts_of(ok, predict)["modules"][0]["ops"]:
        assert f"{op['count']} {op['name']}" in text
    assert " more" not in text


def test_a_file_of_jax(ok: Ok) -> None:
    Path("exported").write_bytes(_exported_by_jax())
    text = ok("inspect", "exported")
    assert "x0['b']" in text
    assert "other constraints are not known: the file's format does not store them" in text
    assert "format:    jax.export version " in text
    assert "made for:" not in text
    facts = facts_of(ok, "exported")
    assert facts["file"]["format"] == "jax.export"
    assert facts["sizes"]["constraints_known"] is False
    assert facts["gradient"]["orders"] == 1


def test_custom_calls_that_tensorflow_lacks(ok: Ok) -> None:
    a = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    exported = jax.export.export(jax.jit(models.solve), platforms=["cpu"])(a, a)
    Path("solve").write_bytes(exported.serialize())
    text = ok("inspect", "solve")
    facts = facts_of(ok, "solve")
    assert facts["tensorflow"] == []
    names = [c["name"] for c in facts["modules"][0]["custom_calls"] if not c["handled"]]
    assert names
    assert (
        f"runs on:   no TensorFlow: TensorFlow has no handler for the custom calls "
        f"{', '.join(names)}; jax2tf-bridge retarget writes it without them, if plain "
        "StableHLO suffices\n"
    ) in text
    assert "_ffi (no handler in TensorFlow)" in text
    assert "solve has no gradient: " in text


def test_many_arguments_are_cut_short(ok: Ok) -> None:
    ok("export", "tests.cli.models:net.apply", "--args", "f32", "-o", "f.jaxfn")
    facts = facts_of(ok, "f.jaxfn")
    facts["arguments"] *= 1000
    text = "\n".join(format_function(facts, 10))
    assert "\n  and 960 more (--json has all)\n" in text


def test_what_only_some_files_have(ok: Ok, predict: str) -> None:
    facts = facts_of(ok, predict)
    facts |= {
        "dropped_platforms": [{"platform": "rocm", "reason": "no rule"}],
        "effects": {"ordered": ["A"], "unordered": ["B"]},
        "disabled_checks": ["platform"],
        "devices": 8,
        "tensorflow": [],
        "constants": [
            {"name": "w", "shape": [2], "dtype": "float32", "memory_space": "host", "sha256": ""}
        ],
    }
    facts["arguments"][0]["used"] = False
    facts["modules"][0] |= {"unreadable": "it is odd", "ops": [], "tensorflow": []}
    text = "\n".join(format_function(facts, 10))
    for expected in (
        "  params['b']  float32[2]  (not used)\n",
        "constants:\n  w  float32[2]  in host memory\n",
        "runs on:    no known TensorFlow release; jax2tf-bridge retarget writes it for a known "
        "one\n",
        "not rocm:   no rule\n",
        "devices:    8\n",
        "effects:    A, B\n",
        "checks off: platform\n",
        "\n  its operations cannot be read: it is odd\n",
    ):
        assert expected in text, text


def test_captured_arrays(ok: Ok, predict: str) -> None:
    portable = read_function(predict)
    large = constant(Aval((30, 40), "float32"), bytes(4800), "table")
    small = constant(Aval((3,), "bool"), bytes(3), "mask")
    vjp = replace(portable.vjp(), lifted_constants=(small, large))
    both = replace(portable, lifted_constants=(large,), gradient=StoredGradient(vjp))
    write_function("with.jaxfn", both)
    write_function("without.jaxfn", both, arrays=False)
    elsewhere = replace(vjp, lifted_constants=(replace(small, data=None), large))
    write_function("some.jaxfn", replace(both, gradient=StoredGradient(elsewhere)))
    for file, where, count in (
        ("with", "in the file", 2),
        ("without", "not in the file", 0),
        ("some", "1 of them in the file", 1),
    ):
        text = ok("inspect", f"{file}.jaxfn")
        assert "constants:\n  table  float32[30,40]\n" in text
        assert f"constants: 2 arrays, 4,803 bytes, {where}; the largest (table) has 4,800\n" in text
        facts = facts_of(ok, f"{file}.jaxfn")
        (found,) = facts["constants"]
        assert (found["bytes"], found["in_file"]) == (4800, count > 0)
        assert facts["arrays"] == {
            "count": 2,
            "bytes": 4803,
            "in_file": count,
            "largest": {"name": "table", "bytes": 4800},
        }
    write_function("one.jaxfn", replace(portable, lifted_constants=(small,)), vjp_order=0)
    assert "constants: 1 array, 3 bytes, in the file\n" in ok("inspect", "one.jaxfn")


def test_releases() -> None:
    assert format_releases(["2.21"]) == "TensorFlow 2.21"
    assert format_releases([]) == "no known TensorFlow release"


def test_a_module_that_cannot_be_read(ok: Ok, predict: str) -> None:
    portable = read_function(predict)
    write_function("odd.jaxfn", changed(portable, module=b"no module"))
    facts = facts_of(ok, "odd.jaxfn")
    assert facts["modules"][0]["ops"] == []
    assert facts["modules"][0]["unreadable"].startswith("The StableHLO module ")


def test_starting_and_inspecting_need_neither_jax_nor_tensorflow(
    tmp_path: Path, exported_cube: bytes
) -> None:
    (tmp_path / "f.jaxfn").write_bytes(exported_cube)
    module = read_function(tmp_path / "f.jaxfn").module.data
    write_weights(tmp_path / "w.msgpack", {"w": np.ones(3, np.float32)})
    Model({"main": [Call(module, platforms=["CPU"]).node()]}).write(tmp_path / "m")
    code = """
    import importlib.util, os, sys
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "jax" else find(name, *rest)
    from jax2tf_bridge.cli import main
    os.chdir(sys.argv[1])
    for words in (
        "--version",
        "export --help",
        "completion bash",
        "inspect f.jaxfn",
        "inspect f.jaxfn --json",
        "inspect m --html m.html",
        "inspect w.msgpack --html w.html",
    ):
        assert main(words.split()) == 0, words
    loaded = {"jax", "jaxlib", "tensorflow", "keras", "z3"} & set(sys.modules)
    assert not loaded, loaded
    """
    assert "cube, in f.jaxfn" in run_python(code, str(tmp_path), env=FINDS_PACKAGES)
    page = (tmp_path / "m.html").read_text()
    assert "Only JAX can print the modules as text" in page
    assert "Weights, in bytes" in (tmp_path / "w.html").read_text()


def test_errors(run: Run, predict: str) -> None:
    Path("folder").mkdir()
    Path("text").write_text("a text, and no function")
    Path("empty").touch()
    for file, error in (
        ("no", "no: No such file or directory"),
        ("folder", "folder is not a SavedModel: it has no saved_model.pb"),
        ("text", "text is not a .jaxfn file: "),
        ("empty", "empty has 0 bytes and is not a function"),
    ):
        for options in ((), ("--json",)):
            ended = run("inspect", file, *options)
            assert (ended.code, ended.out) == (2 if file == "no" else 1, "")
            assert ended.error.startswith(error)
