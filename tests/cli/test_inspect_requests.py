"""`jax2tf-bridge inspect --request`: prints calls of a model in TensorFlow Serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Padding, Signature, inspect, promote, publish, save
from jax2tf_bridge.saved_model import read_saved_model
from jax2tf_bridge.saving import SavedModel, read_instructions
from tests.cli.conftest import FINDS_PACKAGES, Ok, Run
from tests.fresh_process import run_python

URL = "http://localhost:8501/v1/models/net:predict"


def pooled(ids: Any, scale: Any) -> Any:
    return (ids != 1).sum(1) * scale


def narrow(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """Saves a model with an example, defaults, a pad value and constraints."""
    pad = Padding(pad_values={"ids": 1})
    example = {"ids": [[5, 6, 7]]}
    arguments: dict[str, Any] = {
        "args": [np.ones((2, 4), np.int32), np.int32(1)],
        "defaults": {"scale": 7},
    }

    def sizes(name: str) -> dict[str, Any]:
        shapes = {"ids": f"(b, {name})", "scale": "()"}
        return {"polymorphic_shapes": shapes, "polymorphic_constraints": [f"{name} >= 3"]}

    return save(
        tmp_path_factory.mktemp("requests") / "net" / "1",
        {
            "serving_default": Signature(pooled, **arguments, **sizes("m"), padding=pad),
            "given": Signature(pooled, **arguments, **sizes("n"), example=example),
            "narrow": Signature(narrow, args=[np.ones(3, np.float32)]),
        },
        buckets={"m": [4, 8]},
        vjp_order=0,
    )


def test_a_request_for_each_signature(ok: Ok, saved: SavedModel) -> None:
    assert (
        ok("inspect", saved.path, "--request", "rest")
        == f"""\
# given
curl {URL} -d '{{"signature_name": "given", "inputs": {{"ids": [[5, 6, 7]], "scale": 7}}}}'

# narrow
# TensorFlow Serving cannot write the dtypes of narrow as JSON: output_0: bfloat16. Call it over \
gRPC, or save a signature with other dtypes, such as float32.

# serving_default
curl {URL} -d '{{"inputs": {{"ids": [[2, 2, 2]], "scale": 7}}}}'
"""
    )


def test_the_request_of_one_signature(ok: Ok, saved: SavedModel) -> None:
    words = ("inspect", saved.path, "--signature", "given", "--request")
    requests = inspect(saved.path).requests
    assert ok(*words, "rest") == f"{requests['given'].curl()}\n"
    assert ok(*words, "grpc") == f"{requests['given'].python()}\n"
    printed = ok(*words, "rest", "--json")
    assert json.loads(printed) == {"requests": {"given": requests["given"].curl()}}
    text = ok("inspect", saved.path, "--request", "grpc")
    assert text.startswith("# given\n# pip install")
    assert all(request.python() in text for request in requests.values())


def test_the_result_of_save_has_the_same_requests(saved: SavedModel) -> None:
    requests = inspect(saved.path).requests
    assert dict(saved.serving.requests) == dict(requests)
    text = str(saved.serving)
    assert f"Call serving_default with\n\n    {requests['serving_default'].curl()}\n" in text
    assert text.endswith("\n`requests` of these instructions has one for each signature.\n")


def test_requests_name_the_model_and_the_label(ok: Ok, tmp_path: Path) -> None:
    root = tmp_path / "net"
    narrow = Signature(lambda x: x, args=[np.ones(1, np.float32)])
    published = publish(root, narrow)
    assert published.saved is not None

    def find_url(number: int) -> str:
        return ok("inspect", root / str(number), "--request", "rest").split()[1]

    models = "http://localhost:8501/v1/models"
    assert find_url(1) == f"{models}/net:predict"
    publish(root, narrow, label="canary")
    assert find_url(1) == f"{models}/net/labels/stable:predict"
    assert find_url(2) == f"{models}/net/labels/canary:predict"
    promote(root)
    assert find_url(1) == f"{models}/net:predict"
    assert find_url(2) == f"{models}/net/labels/stable:predict"  # of stable and canary
    config = tmp_path / "models.config"
    config.write_text(config.read_text().replace('"net"', '"my net"', 1))
    assert find_url(2) == f"{models}/my%20net/labels/stable:predict"
    lines = ok("inspect", root / "2", "--request", "grpc").splitlines()
    assert lines[6:8] == [
        'request.model_spec.name = "my net"',
        'request.model_spec.version_label = "stable"',
    ]
    serving = published.saved.serving_from(root / "2")
    assert serving.requests["serving_default"] == inspect(root / "2").requests["serving_default"]
    (tmp_path / "link").symlink_to(root)
    assert serving.command == published.saved.serving_from(tmp_path / "link" / "2").command
    assert serving.command[3:6] == (
        f"--model_config_file={config}",
        "--model_config_file_poll_wait_seconds=10",
        "--allow_version_labels_for_unavailable_models=true",
    )
    assert not any(word.startswith("--model_name") for word in serving.command)
    alone = read_instructions(read_saved_model(root / "2"), with_config=False)
    assert alone.command[3:5] == ("--model_name=net", f"--model_base_path={root}")
    assert "--model_config_file lists the models with their labels" in str(serving)
    config.write_text("model_config_list {")
    assert find_url(2) == f"{models}/net:predict"


def test_it_needs_neither_jax_nor_tensorflow(saved: SavedModel) -> None:
    code = f"""
import sys
sys.modules["jax"] = sys.modules["tensorflow"] = None
from jax2tf_bridge.cli import main
assert main(["inspect", {str(saved.path)!r}, "--request", "rest"]) == 0
"""
    assert "curl http://localhost:8501" in run_python(code, env=FINDS_PACKAGES)


def test_wrong_words(run: Run, saved: SavedModel) -> None:
    Path("model.jaxfn").write_bytes(b"")
    ended = run("inspect", "model.jaxfn", "--request", "rest")
    assert (ended.code, ended.error) == (
        2,
        "--request: model.jaxfn is a file; name the folder of a SavedModel",
    )
    ended = run("inspect", saved.path, "--request", "rest", "--signature", "givn")
    assert ended.code == 2
    names = "There are: given, narrow, serving_default."
    assert ended.error == (
        f"--signature: {saved.path} has no signature 'givn': did you mean 'given'? {names}"
    )
    ended = run("inspect", saved.path, "--request", "rest", "--signature", "x")
    assert ended.error == f"--signature: {saved.path} has no signature 'x'. {names}"
    ended = run("inspect", saved.path, "--signature", "given")
    assert (ended.code, ended.error) == (
        2,
        "--signature: without --request it does nothing; add --request rest",
    )
    ended = run("inspect", saved.path, "--request", "rest", "--signature", "narrow")
    assert ended.code == 1
    assert ended.error.startswith("TensorFlow Serving cannot write the dtypes of narrow as JSON: ")


def test_inputs_are_in_the_order_of_the_arguments(ok: Ok, tmp_path: Path) -> None:
    def reversed_names(z: Any, a: Any, features: Any) -> Any:
        return {"total": z + a, "parts": [features["n"] * i for i in range(11)]}

    x = np.ones(3, np.float32)
    signature = Signature(reversed_names, args=[x, x, {"n": x, "b": x}])
    saved = save(tmp_path / "net" / "1", signature, vjp_order=0)
    inputs = ["z", "a", "features_b", "features_n"]  # JAX sorts the keys of a dict
    outputs = [*(f"parts_{i}" for i in range(11)), "total"]
    line = str(saved.signatures["serving_default"])
    inspection = inspect(saved.path)
    assert f"signature serving_default{line};" in inspection.text()
    assert line in str(saved)
    (facts,) = inspection.as_json()["signatures"]
    assert [port["name"] for port in facts["inputs"]] == inputs
    assert [port["name"] for port in facts["outputs"]] == outputs
    assert [*inspection.requests["serving_default"].inputs] == inputs
    curl = ok("inspect", saved.path, "--request", "rest")
    assert [curl.index(f'"{name}"') for name in inputs] == sorted(
        curl.index(f'"{name}"') for name in inputs
    )
