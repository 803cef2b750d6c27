"""Texts and values of example requests."""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge._dtypes import ALL_DTYPES
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.serving_requests import (
    ExampleInput,
    ExampleRequest,
    find_dtypes_without_rest,
    read_example_requests,
)

# Private: values of inputs that no saved model of the tests has.
from jax2tf_bridge.serving_requests._example_request import (
    SignatureInput,
    choose_inputs,
    has_values,
)

MODELS = Path(__file__).parents[2] / "saved_models"


def request(signature: str = "serving_default", **inputs: ExampleInput) -> ExampleRequest:
    return ExampleRequest("my net", signature, inputs, {"y": "float32"})


def of(array: Any, dtype: str | None = None) -> ExampleInput:
    values = np.asarray(array)
    return ExampleInput.of_array(dtype or values.dtype.name, values, is_optional=False)


def body_of(command: str) -> Any:
    """Returns what curl would send; runs the part in Python of a long request."""
    words = shlex.split(command)
    if words[0] == "curl":
        return json.loads(words[words.index("-d") + 1])
    assert words[:2] == ["python3", "-c"]
    assert words[3:5] == ["|", "curl"]
    return json.loads(subprocess.check_output([sys.executable, "-c", words[2]], text=True))


def test_a_short_request() -> None:
    command = request("embed", x=of(np.array([[0.1, 2]], np.float32)), n=of(np.int64(2**60))).curl()
    assert command == (
        "curl http://localhost:8501/v1/models/my%20net:predict -d "
        """'{"signature_name": "embed", "inputs": {"x": [[0.1, 2.0]], "n": 1152921504606846976}}'"""
    )


def test_a_request_for_a_label() -> None:
    plain = request(x=of([1.0]))
    labelled = replace(plain, label="canary")
    assert labelled.curl() == plain.curl().replace(":predict", "/labels/canary:predict")
    assert "/v1/models/my%20net/labels/canary:predict" in labelled.curl()
    lines = labelled.python().splitlines()
    lines.remove('request.model_spec.version_label = "canary"')
    assert lines == plain.python().splitlines()


def test_python_writes_a_long_body() -> None:
    made = request("embed", x=of(np.ones((2, 64), np.float32)), on=of(np.bool_(True)))
    command = made.curl()
    assert command == (
        """python3 -c 'import json; print(json.dumps({"signature_name": "embed", "inputs": """
        """{"x": [[1.0] * 64] * 2, "on": True}}))' | """
        "curl http://localhost:8501/v1/models/my%20net:predict -d @-"
    )
    assert body_of(command) == made.as_json()
    assert made.as_json()["inputs"] == {"x": [[1.0] * 64] * 2, "on": True}


def test_texts_survive_the_shell() -> None:
    texts: list[Any] = ["it's", 'a "b" $HOME `ls` \\ \n', "ä\u00a0€", "", b"\xff\x00"]
    array = np.array(texts, object)
    body = body_of(request(text=of(array, "string")).curl())
    assert body == {"inputs": {"text": [*texts[:4], {"b64": "/wA="}]}}
    many = request(text=of(np.full((300,), b"\xff'", object), "string")).curl()
    assert body_of(many)["inputs"]["text"] == [{"b64": "/yc="}] * 300


def test_texts_survive_in_python() -> None:
    text = "\U0001f469\u200d\U0001f52c \U000e0067"
    made = request(text=of(np.full((300,), text.encode(), object), "string"))
    assert body_of(made.curl())["inputs"]["text"] == [text] * 300
    tree = ast.parse(made.python())
    assert text in [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    assert made.python().replace("\n", "").isprintable()


def test_numbers_that_are_not_finite() -> None:
    body = body_of(request(x=of([math.inf, -math.inf])).curl())
    assert body["inputs"]["x"] == [math.inf, -math.inf]
    (x,) = body_of(request(x=of(np.full(200, math.inf)), y=of([math.nan])).curl())["inputs"]["y"]
    assert math.isnan(x)


def test_the_first_of_many_values_stands_for_all() -> None:
    assert of(np.arange(5, 2005, dtype=np.int32)) == ExampleInput("int32", (2000,), (5,))
    assert of(np.arange(1000, dtype=np.int32)).values == tuple(range(1000))
    assert of(np.broadcast_to(np.float32(0), (1 << 20, 1 << 20))).values == (0.0,)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            request(),
            "TensorFlow Serving takes no REST request for serving_default, because it has no "
            "inputs. Call it over gRPC.",
        ),
        (
            request("f", x=of([1.0], "bfloat16"), z=of([1j])),
            "TensorFlow Serving cannot write the dtypes of f as JSON: x: bfloat16, z: complex128. "
            "Call it over gRPC, or save a signature with other dtypes, such as float32.",
        ),
        (
            ExampleRequest("net", "f", {"x": of([1.0])}, {"y": "float16"}),
            "TensorFlow Serving cannot write the dtypes of f as JSON: y: float16. "
            "Call it over gRPC, or save a signature with other dtypes, such as float32.",
        ),
        (
            request(x=of(np.ones((0, 3)))),
            "JSON has no arrays of the shape that serving_default takes: x: float64[0,3]. Call it "
            "over gRPC.",
        ),
    ],
)
def test_signatures_that_rest_cannot_call(made: ExampleRequest, problem: str) -> None:
    assert made.rest_problem == str(made) == problem
    for call in (made.curl, made.as_json):
        with pytest.raises(BridgeError) as caught:
            call()
        assert str(caught.value) == problem


def test_an_empty_last_dimension_is_an_empty_list() -> None:
    assert request(x=of(np.ones((2, 0)))).as_json() == {"inputs": {"x": [[], []]}}


def test_the_program_in_python() -> None:
    text = request(
        "embed",
        x=of(np.ones((1, 4)), "bfloat16"),
        ids=of(np.array([[1, 2]], np.int32)),
        z=of(np.complex64(1j)),
        nan=of(np.complex64(complex(math.nan, 1))),
        text=of(np.array([b"a'b", b"\xff"], object), "string"),
        none=of(np.ones((0, 3))),
        t=ExampleInput("float32", (), (math.nan,), is_optional=True),
    ).python()
    compile(text, "call.py", "exec")
    assert (
        """
request.model_spec.name = "my net"
request.model_spec.signature_name = "embed"
request.inputs["x"].CopyFrom(tf.make_tensor_proto(1.0, "bfloat16", (1, 4)))
request.inputs["ids"].CopyFrom(tf.make_tensor_proto([[1, 2]], "int32"))
request.inputs["z"].CopyFrom(tf.make_tensor_proto(1j, "complex64"))
request.inputs["nan"].CopyFrom(tf.make_tensor_proto(complex("(nan+1j)"), "complex64"))
request.inputs["text"].CopyFrom(tf.make_tensor_proto(["a'b", b'\\xff'], "string"))
request.inputs["none"].CopyFrom(tf.make_tensor_proto([], "float64", (0, 3)))
# t has a default, and may be left out.
request.inputs["t"].CopyFrom(tf.make_tensor_proto(float("nan"), "float32"))
"""
        in text
    )


def test_values_without_an_example() -> None:
    kinds = {
        "x": SignatureInput("float32", (None, 2)),
        "ids": SignatureInput("int64", None, pad_value=1),
        "mask": SignatureInput("int32", (3,)),
        "padding_mask": SignatureInput("bool", (), pad_value=1),
        "bias_mask": SignatureInput("float32", (), pad_value=-1e9),
        "z": SignatureInput("complex64", ()),
        "text": SignatureInput("string", (None,)),
        "t": SignatureInput("float32", (), default=np.asarray(np.float32(0.1))),
    }
    chosen = choose_inputs("f", kinds, None, None)
    assert {name: (each.shape, each.values) for name, each in chosen.items()} == {
        "x": ((1, 2), (1.0,)),
        "ids": ((1,), (2,)),
        "mask": ((3,), (1,)),
        "padding_mask": ((), (False,)),
        "bias_mask": ((), (0.0,)),
        "z": ((), (1 + 0j,)),
        "text": ((1,), (b"some text",)),
        "t": ((), (0.1,)),
    }
    assert [name for name, each in chosen.items() if each.is_optional] == ["t"]


def test_an_example_counts_if_it_has_all_inputs() -> None:
    kinds = {
        "x": SignatureInput("int32", (None,)),
        "t": SignatureInput("float32", (), default=np.asarray(np.float32(0.1))),
    }
    example: dict[str, Any] = {"x": np.array([4, 5], np.int32), "t": np.array(0, np.float32)}
    assert choose_inputs("f", kinds, None, example)["x"].values == (4, 5)
    # Warm-up requests hold zeros in place of defaults.
    assert choose_inputs("f", kinds, None, example)["t"].values == (0.1,)
    assert choose_inputs("f", kinds, None, {"x": example["x"]})["x"].values == (1,)
    assert has_values(example)
    assert not has_values({"x": np.zeros(3), "text": np.array([b""], object)})


@pytest.mark.parametrize("model", sorted(path.parent for path in MODELS.glob("*/saved_model.pb")))
def test_models_without_a_sidecar(model: Path) -> None:
    """Neither JAX nor TensorFlow is needed."""
    requests = read_example_requests(model)
    assert requests
    for name, made in requests.items():
        assert (made.model, made.signature) == (model.name, name)
        assert body_of(made.curl()) == made.as_json()


def test_unknown_signatures_and_inputs_are_named() -> None:
    made = request(image=of([1.0]))
    with pytest.raises(KeyError, match=r"There is no input 'imgae': did you mean 'image'\?"):
        made.inputs["imgae"]
    requests = read_example_requests(next(MODELS.rglob("saved_model.pb")).parent)
    with pytest.raises(KeyError, match=r"There is no signature 'servin_default': did you mean"):
        requests["servin_default"]


@pytest.mark.checkout
def test_the_page_lists_the_dtypes_without_rest() -> None:
    page = MODELS.with_name("docs").joinpath("clients.md").read_text(encoding="utf-8")
    listed = page.partition("### Which requests need gRPC")[2].partition("numbers, in inputs")[0]
    rows = [row for row in ALL_DTYPES if row.element_type is not None and row.is_accepted_by_op]
    names = {row.op_dtype: row.op_dtype for row in rows}
    lacking = {name.partition("_")[0] for name in find_dtypes_without_rest(names)}
    kinds = {"complex" if name.startswith("complex") else name for name in lacking}
    words = set(re.findall(r"\w+", listed.partition("- ")[2])) - {"and"}
    assert words == kinds
