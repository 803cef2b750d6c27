"""Real models as Core ML packages, whose programs run on Linux by coremltools' value inference."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, export, save, write_function, write_weights
from tests.consumers.conftest import Recorder
from tests.consumers.environments import process_environment
from tests.consumers.harness import Harness
from tests.models.consumers import CORE_ML
from tests.models.exports import consumed, exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Those that other converters take as well, so that they are exported once.
_MODELS = frozenset({"actor_critic", "recommender"})
_DYNAMIC = ("dynamic shape not yet supported", "coremltools says: dynamic shape not yet supported.")
_RANGE = ("differ", "A number within the function is beyond the range of float16: 6e-8 to 65,504.")
_FAILURES: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "fixed": {},
        "bounded": dict.fromkeys(
            [
                *("vision_transformer", "lstm", "graph_net", "diffusion_unet", "language_model"),
                "keras_text",
            ],
            _DYNAMIC,
        ),
        "float16": dict.fromkeys(
            [
                *("vae", "encoder_decoder", "diffusion_unet", "actor_critic", "quantised_dense"),
                "dual_encoder",
            ],
            _RANGE,
        ),
    }
)
"""Models that fail, by the way in which they are converted: a part of the failure, and why."""


@pytest.mark.parametrize(
    ("way", "model"),
    [
        pytest.param(
            way,
            model,
            marks=() if model.name in _MODELS and way == "fixed" else pytest.mark.complete,
        )
        for way, model in itertools.product(CORE_ML, MODELS)
    ],
    ids=str,
)
def test_values_are_those_of_jax(
    harness: Harness, record: Recorder, way: str, model: Model
) -> None:
    title, folder = "writing real models for converters", "converters-real-models"
    module = "tests.models.export_for_converters"
    exports = exported(harness, title, folder, module, sampled(harness, _MODELS))
    command = [harness.converter_python("coreml"), "-m", "tests.models.consume_coreml", way]
    title = f"Core ML programs, {way}"
    outcome = consumed(harness, title, f"coreml-{way}", command, exports, model)
    if (expected := _FAILURES[way].get(model.name)) is not None:
        part, reason = expected
        assert any(part in failure for failure in outcome.failures), str(outcome)
        record(CORE_ML[way], model.name, way, reason)
        return
    assert not outcome.failures, str(outcome)
    record(CORE_ML[way], model.name, way, outcome.errors[way], outcome.measures[way])


_RUN_COMMANDS = """
import json, sys
from pathlib import Path
import numpy as np
from jax2tf_bridge.cli import main
from tests.models.ml_programs import run_package
for words in json.loads(sys.argv[1]):
    if main(["coreml", *words, "-o", "model.mlpackage", "--overwrite"]):
        sys.exit(1)
    results = run_package(Path("model.mlpackage"), {"x": np.ones((2, 3), np.float32)})
    print(results["y"].dtype.name, json.dumps(results["y"].tolist()))
"""
"""Prints the values of the packages that commands write."""


def test_the_command_takes_a_file_or_a_model(harness: Harness, tmp_path: Path) -> None:
    params = {"w": np.linspace(0, 2, 6, dtype=np.float32).reshape(3, 2)}
    x = np.ones((2, 3), np.float32)
    shapes = [None, "(b, 3)"]

    def predict(params: Any, x: Any) -> Any:
        return {"y": jnp.tanh(x @ params["w"])}

    write_function(
        tmp_path / "predict.jaxfn", export(predict, polymorphic_shapes=shapes)(params, x)
    )
    write_weights(tmp_path / "weights.msgpack", params)
    signature = Signature(predict, args=[x], polymorphic_shapes="(b, 3)")
    save(tmp_path / "model", signature, params=params)
    commands = [
        ["predict.jaxfn", "--params", "weights.msgpack", "--sizes", "b=1..4"],
        ["model", "--sizes", "b=2", "--precision", "float16"],
    ]
    ended = subprocess.run(
        [harness.converter_python("coreml"), "-c", _RUN_COMMANDS, json.dumps(commands)],
        cwd=tmp_path,
        env=process_environment({"PYTHONPATH": str(harness.stage())}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "passes/s" not in ended.stderr
    lines = ended.stdout.splitlines()
    expected = np.asarray(predict(params, x)["y"])
    for (head, text, size, values), shape, precision, tolerance in (
        (lines[:4], "b,", "float32", 1e-5),
        (lines[4:], "2,", "float16", 1e-2),
    ):
        assert head == "model.mlpackage"
        assert text == f"  main(x: float32[{shape}3]) -> (y: float32[{shape}2])"
        assert size.endswith(f" MB, computes in {precision}")
        dtype, _, numbers = values.partition(" ")
        assert dtype == "float32"  # the dtype of outputs, whatever Core ML computes in
        np.testing.assert_allclose(json.loads(numbers), expected, rtol=tolerance)
