"""`save` and `litert` with signatures that change weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import export, write_function, write_weights
from tests.cli.conftest import Ok, Run
from tests.litert.running import interpreter

PARAMS = {"w": np.ones((3, 2), np.float32)}
X = np.ones((4, 3), np.float32)


def predict(params: Any, x: Any) -> Any:
    return x @ params["w"]


def double(params: Any, x: Any) -> Any:
    return predict(params, x), {"w": params["w"] * 2}


@pytest.mark.costly
def test_signatures_that_change_weights(run: Run, ok: Ok) -> None:
    for function in (predict, double):
        portable = export(function, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
        write_function(f"{function.__name__}.jaxfn", portable, vjp_order=1)
    write_weights("params.msgpack", PARAMS)
    words = ["predict=predict.jaxfn", "double=double.jaxfn", "--params", "params.msgpack"]
    names = ["--updates-params", "double", "--weight-signatures", "get_weights"]
    assert ok("save", *words, *names, "-o", "m/1").splitlines() == [
        "m/1: predict(x: float32[b,3]) -> (output_0: float32[b,2])",
        "m/1: double(x: float32[b,3]) -> (output_0: float32[b,2])",
        "m/1: get_weights() -> (w: float32[3,2])",
    ]
    model = tf.saved_model.load("m/1")
    model.double(X)
    np.testing.assert_array_equal(model.predict(X), np.full((4, 2), 6.0))
    ended = run("publish", *words, *names[:2], "-o", "served")
    assert ended.err.startswith(
        "jax2tf-bridge: note: double changes the weights of one server: other servers keep theirs, "
        "and each version starts with its published weights\n"
    )
    ok("litert", *words, *names[:2], "-o", "m.tflite")
    runner = interpreter(Path("m.tflite"))
    runner.get_signature_runner("double")(x=X)
    weights = runner.get_signature_runner("get_weights")()
    np.testing.assert_array_equal(weights["w"], 2 * PARAMS["w"])
    for command in ("save", "litert"):
        ended = run(command, *words, "--updates-params", "dubble", "-o", "n")
        assert ended.error == (
            "--updates-params: dubble is not a signature: did you mean double? The signatures: "
            "predict, double"
        )
