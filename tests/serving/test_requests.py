"""Requests that the bridge prints, sent to a real TensorFlow Serving as a user would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Processing, Signature, Target, inspect, promote, save
from jax2tf_bridge.serving_requests import ExampleRequest
from tests.consumers.environments import process_environment
from tests.serving.client import post
from tests.serving.conftest import RELEASE
from tests.serving.server import Runtime, Server, read_instructions, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

MODEL = "my model"
CLIENT = f"tensorflow-serving-api=={RELEASE}"
OVER_REST = ("serving_default", "constrained", "images", "scalars", "texts", "unseen_texts")


def dense(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def pooled(w: Any, ids: Any, lengths: Any) -> Any:
    is_real = jnp.arange(ids.shape[1]) < lengths[:, None]
    return (w[ids % 28] * is_real[..., None]).sum(1)


def mean(w: Any, image: Any) -> Any:
    return image.mean((1, 2)) @ w[:3]


def scalars(w: Any, flag: Any, count: Any, *, temperature: Any) -> Any:
    return {"count": jnp.where(flag, count, 0), "scaled": w[0] / temperature}


def own_dtypes(w: Any, x: Any, z: Any) -> Any:
    return x * 2, z * 2j


def count_words(text: Any) -> Any:
    return tf.cast(tf.strings.split(text).row_lengths(), tf.int32)


def times(w: Any, count: Any) -> Any:
    return count[:, None] * w[0]


def total(w: Any) -> Any:
    return w.sum()


def signatures() -> dict[str, Signature]:
    words = Processing(preprocess=count_words, inputs={"text": tf.TensorSpec([None], tf.string)})
    counts = np.ones(2, np.int32)
    return {
        "serving_default": Signature(
            dense, args=[np.ones((2, 28), np.float32)], polymorphic_shapes="(b, 28)"
        ),
        "constrained": Signature(
            pooled,
            args=[np.ones((2, 6), np.int64), np.ones(2, np.int32)],
            polymorphic_shapes=["(b, 2*n)", "(b,)"],
            polymorphic_constraints=["b >= 2", "n >= 3"],
        ),
        "images": Signature(
            mean, args=[np.ones((1, 64, 64, 3), np.float32)], polymorphic_shapes="(b, _, _, _)"
        ),
        "scalars": Signature(
            scalars,
            args=[np.bool_(True), np.int64(3)],
            kwargs={"temperature": np.float32(1)},
            defaults={"temperature": 0.5},
        ),
        "texts": Signature(
            times,
            args=[counts],
            polymorphic_shapes="(b,)",
            processing=words,
            example={"text": ['it\'s "so" good', b"\xff \xfe"]},
        ),
        "unseen_texts": Signature(
            times, args=[counts], polymorphic_shapes="(b,)", processing=words
        ),
        "own_dtypes": Signature(
            own_dtypes,
            args=[np.ones(3, jnp.bfloat16), np.ones(3, np.complex64)],
            polymorphic_shapes="(b,)",
        ),
        "no_inputs": Signature(total),
    }


@pytest.fixture(scope="module")
def server(
    runtime: Runtime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Path]]:
    """Serves a model with all signatures; also returns its folder."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl: the requests that `inspect --request` prints were NOT sent")
    folder = tmp_path_factory.mktemp("requests")
    w = np.linspace(-1, 1, 280, dtype=np.float32).reshape(28, 10)
    target = Target.tensorflow("2.19")
    with jax.enable_x64(True):
        saved = save(folder / "model" / "1", signatures(), params=w, target=target)
    # The file of models gives the model another name than its folder, and the version a label.
    promote(folder / "model", 1)
    config = folder / "models.config"
    config.write_text(config.read_text().replace('name: "model"', f'name: "{MODEL}"'))
    assert dict(saved.serving.requests) == dict(inspect(saved.path).requests)
    instructions = read_instructions(str(saved.serving))
    with serving(runtime, instructions, folder, model=MODEL) as running:
        yield running, Path(saved.path)


def send(request: ExampleRequest, server: Server) -> tuple[int, Any]:
    """Runs the curl command in a shell, and returns the status and the answer."""
    command = request.curl()
    assert command.count("localhost:8501/v1/models/my%20model/labels/stable:predict ") == 1
    command = command.replace("localhost:8501", f"localhost:{server.rest_port}")
    text = subprocess.check_output(["sh", "-c", rf"{command} -s -w '\n%{{http_code}}'"], text=True)
    answer, _, status = text.rpartition("\n")
    return int(status), json.loads(answer)


def test_each_curl_command_is_answered(server: tuple[Server, Path]) -> None:
    running, model = server
    requests = inspect(model).requests
    answers: dict[str, Any] = {}
    for name in OVER_REST:
        status, answer = send(requests[name], running)
        assert status == 200, (requests[name].curl(), answer)
        answers[name] = answer["outputs"]
    assert "python3 -c" in requests["images"].curl()
    assert requests["constrained"].as_json()["inputs"] == {"ids": [[1] * 6] * 2, "lengths": [1, 1]}
    assert answers["scalars"] == {"count": 1, "scaled": pytest.approx(_row() / 0.5, abs=1e-6)}
    assert np.shape(answers["images"]) == (1, 10)
    np.testing.assert_allclose(answers["texts"], np.outer([3, 2], _row()), rtol=1e-5)


def test_what_the_bridge_refuses_to_write_the_server_refuses(server: tuple[Server, Path]) -> None:
    running, model = server
    requests = inspect(model).requests
    assert ": x: bfloat16, z: complex64" in requests["own_dtypes"].rest_problem
    body: Mapping[str, Any] = {
        "signature_name": "own_dtypes",
        "inputs": {"x": [1.0], "z": [1.0]},
    }
    status, answer = post(running, body)
    assert (status, "Conversion of JSON Value: 1.0 to type: " in answer["error"]) == (501, True)
    assert "it has no inputs" in requests["no_inputs"].rest_problem
    status, answer = post(running, {"signature_name": "no_inputs", "inputs": {}})
    assert (status, "Failed to get input map" in answer["error"]) == (400, True), answer


def test_the_programs_in_python_are_answered(
    server: tuple[Server, Path], runtime: Runtime, tmp_path: Path
) -> None:
    """Runs the programs of all signatures in one process, which imports TensorFlow once."""
    running, model = server
    # It asks for the package tensorflow, beside tensorflow-cpu that is there.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "client"), CLIENT], check=True)
    programs = [request.python() for request in inspect(model).requests.values()]
    assert all('request.model_spec.version_label = "stable"' in text for text in programs)
    text = "\n".join(programs).replace("localhost:8500", f"localhost:{running.grpc_port}")
    (tmp_path / "call.py").write_text(text)
    done = subprocess.run(
        [str(runtime.python), str(tmp_path / "call.py")],
        env=process_environment({"PYTHONPATH": str(tmp_path / "client")}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("output_0 ") == len(programs) - 1  # scalars names its outputs
    assert "output_0 [2]\noutput_1 [0.+2.j]\n" in done.stdout


def _row() -> Any:
    return np.linspace(-1, 1, 280, dtype=np.float32)[:10]
