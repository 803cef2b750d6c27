"""The first line that differs, for faults in graphs and for functions that changed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import Signature, save, save_litert, verify
from jax2tf_bridge.errors import BridgeError, ModuleError

# Private: a seam is what is tested.
from jax2tf_bridge.to_tensorflow._tf_compat import SEAM
from jax2tf_bridge.verifying import Location
from tests.house.seams import take_away
from tests.verifying import functions
from tests.verifying.faults import inject, list_faults
from tests.verifying.inject_faults import TARGET, shorten


def save_case(folder: Path, case: functions.Case) -> Path:
    signature = Signature(
        case.function, args=[case.example], polymorphic_shapes=case.polymorphic_shapes
    )
    save(folder / "model", signature, params=case.params, target=TARGET, vjp_order=0)
    return folder / "model"


def locate(saved_model: Path, function: Callable[..., Any], **options: Any) -> Location:
    report = verify(saved_model, function, samples=1, gradients=0, locate=True, **options)
    assert not report.ok
    assert report.location is not None
    return report.location


FAULTS = (
    (0, "Tanh -> Sigmoid"),
    (0, "Sqrt -> Rsqrt"),
    (1, "Softmax -> LogSoftmax"),
    (1, "Sum -> Max"),
    (2, "axes exchanged"),
    (3, "Greater -> LessEqual"),
)
"""The number of a function, and a fault."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The functions of FAULTS, saved."""
    folder = tmp_path_factory.mktemp("located")
    return {i: save_case(folder / str(i), functions.CASES[i]) for i in {i for i, _ in FAULTS}}


@pytest.mark.parametrize(("number", "kind"), FAULTS)
def test_the_line_of_an_exchanged_operation_is_named(
    saved: dict[int, Path], tmp_path: Path, number: int, kind: str
) -> None:
    fault = next(f for f in list_faults(saved[number], 0) if f.kind == kind)
    shutil.copytree(saved[number], tmp_path / "model")
    inject(tmp_path / "model", fault)
    location = locate(tmp_path / "model", functions.CASES[number].function)
    assert location.line is not None
    assert shorten(location.line) == fault.line


@pytest.mark.costly
def test_the_line_of_a_fault_inside_a_loop_is_named(tmp_path: Path) -> None:
    case = functions.CASES[4]
    saved_model = save_case(tmp_path, case)
    fault = next(f for f in list_faults(saved_model, 0) if f.kind == "Tanh -> Sin")
    assert fault.in_loop
    inject(saved_model, fault)
    location = locate(saved_model, case.function)
    assert location.operation == "tanh"
    assert shorten(location.line or "") == fault.line


def branching(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda y: y * 2.0, lambda y: jnp.sin(y), jnp.abs(x))


def branching_differently(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda y: y * 2.0, lambda y: jnp.cos(y), -jnp.abs(x))


def test_a_difference_before_a_branch_is_named_first(tmp_path: Path) -> None:
    signature = Signature(branching, args=[np.ones((3, 4), np.float32)])
    save(tmp_path / "model", signature, target=TARGET, vjp_order=0)
    assert locate(tmp_path / "model", branching_differently).operation == "neg"


def scaled(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    hidden = hidden + params["b"]
    return jnp.exp(hidden) - 1


def scaled_differently(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    hidden = hidden - params["b"]
    return jnp.exp(hidden) - 1


PARAMS = {"w": np.ones((3, 2), np.float32), "b": np.array([0.5, 1.5], np.float32)}
SIGNATURE = Signature(scaled, args=[np.ones((4, 3), np.float32)], polymorphic_shapes="(b, 3)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaled")
    target = replace(TARGET, names_lines=False)
    save(folder / "model", SIGNATURE, params=PARAMS, target=target, vjp_order=0)
    return folder / "model"


def test_the_changed_line_of_a_function_is_named(model: Path) -> None:
    location = locate(model, scaled_differently)
    code = scaled_differently.__code__
    assert location.line == f"{__file__}:{code.co_firstlineno + 2} (scaled_differently)"
    assert location.operation == "sub"
    assert location.tensor is not None
    assert location.tensor.endswith("Add")
    # The values differ by twice the larger bias.
    assert location.actual - location.expected == pytest.approx(3.0, abs=1e-5)
    assert location.index[1] == 1


def test_a_line_is_found_in_a_model_with_xla(tmp_path: Path) -> None:
    save(tmp_path / "model", SIGNATURE, params=PARAMS, vjp_order=0)
    location = locate(tmp_path / "model", scaled_differently)
    line = scaled_differently.__code__.co_firstlineno + 2
    assert (location.line or "").startswith(f"{__file__}:{line} ")
    assert location.operation == "sub"


def test_equal_functions_have_no_location(model: Path) -> None:
    assert verify(model, scaled, samples=1, locate=True).location is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
def test_a_litert_model_is_compared_and_its_line_is_named(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.tflite"
    save_litert(file, SIGNATURE, params=PARAMS)
    report = verify(model, scaled, samples=2, runtime="litert", model=file)
    assert report.ok, report
    assert report.samples_with_gradients == ()
    assert str(report).startswith(f"{file}: serving_default in TensorFlow Lite ")
    location = locate(model, scaled_differently, runtime="litert", model=file)
    assert location.line is not None
    assert location.line.endswith("(scaled_differently)")
    # LiteRT adds the bias within the product.
    assert location.operation in ("dot_general", "sub")


def test_a_tensorflow_that_cannot_inline_is_an_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, SEAM, "convert_variables_to_constants_v2")
    with pytest.raises(ModuleError, match="cannot replace variables by constants and inline"):
        verify(model, scaled_differently, samples=1, gradients=0, locate=True)


WRONG = (
    (
        {"runtime": "litert"},
        "runtime='litert' runs a .tflite file. Pass the one that was converted from the "
        "SavedModel: model='model.tflite'.",
    ),
    (
        {"model": "model.tflite"},
        "TensorFlow runs the SavedModel itself, so it takes no model. Remove it, or name another "
        "runtime: litert, onnx, openvino, tfjs.",
    ),
    (
        {"runtime": "openvino", "rounds": 3},
        "Latency is measured in TensorFlow only. Remove rounds or runtime.",
    ),
)


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_arguments_that_contradict_each_other(
    model: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(BridgeError) as e:
        verify(model, scaled, **options)
    assert str(e.value) == text


def test_an_unknown_runtime_is_an_error(model: Path) -> None:
    with pytest.raises(BridgeError, match=r"runtime: verify has no runtime 'lite'"):
        verify(model, scaled, runtime="lite")


@pytest.mark.parametrize(
    ("runtime", "package"), [("onnx", "onnxruntime"), ("openvino", "openvino")]
)
def test_a_runtime_that_is_not_installed_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"Install it with: pip install {package}$"):
        verify(model, scaled, runtime=runtime, model=model)


@pytest.mark.slow
def test_a_model_of_other_names_is_an_error(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.tflite"
    other = replace(SIGNATURE, output_names=["result"])
    save_litert(file, other, params=PARAMS)
    with pytest.raises(BridgeError) as e:
        verify(model, scaled, runtime="litert", model=file)
    assert str(e.value) == (
        f"model: {file} has no output output_0, which the SavedModel has; its outputs are result. "
        "Pass the model that was converted from this SavedModel."
    )
