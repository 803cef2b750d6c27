"""Models with buckets in a real TensorFlow Serving, called as many clients would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, save
from tests.consumers.harness import Harness, NotAvailableError
from tests.serving.server import PROGRAM, find_server, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

RELEASE = "2.19.1"
RNG = np.random.default_rng(0)
W = RNG.normal(size=(28, 10)).astype(np.float32)
TABLE = RNG.normal(size=(50, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> str:
    """Returns the path of the server."""
    path = find_server()
    if path is None:
        pytest.skip(f"there is no TensorFlow Serving: {PROGRAM} names none, nor does the PATH")
    return path


@pytest.fixture(scope="module")
def python(program: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an environment for the clients, whose TensorFlow the server may use as well."""
    harness = Harness(tmp_path_factory.mktemp("harness"), lambda text: print(text, file=sys.stderr))
    try:
        return harness.consumer_python(RELEASE)
    except NotAvailableError as e:
        pytest.skip(str(e))


def dense(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def test_many_callers_of_a_dense_model(program: str, python: Path, tmp_path: Path) -> None:
    saved = save(
        tmp_path / "dense" / "1",
        Signature(dense, args=[np.ones((2, 28), np.float32)], polymorphic_shapes="(b, 28)"),
        params=W,
        buckets={"b": [1, 8, 32]},
        target=Target.tensorflow("2.19"),
    )
    assert saved.serving.batching is not None
    with serving(program, python, saved.serving, tmp_path) as server:
        x = RNG.normal(size=(3, 28)).astype(np.float32)
        status, answer = server.predict_by_rest({"instances": x.tolist()})
        assert status == 200
        np.testing.assert_allclose(answer["predictions"], np.tanh(x @ W), rtol=1e-4, atol=1e-5)
        for shape in ((3, 27), (3, 1), (3,)):
            status, answer = server.predict_by_rest({"instances": np.ones(shape).tolist()})
            assert status == 400
            assert "serving_default_x" in answer["error"]
            assert "is not compatible with expected shape [?,28]" in answer["error"]
        requests = [{"x": np.ones((rows, 28), np.float32)} for rows in range(1, 33)] * 3
        assert server.call_by_grpc(requests, 32, tmp_path) == {"OK": 32 * len(requests)}


def test_requests_of_different_lengths(program: str, python: Path, tmp_path: Path) -> None:
    def pooled(table: Any, ids: Any) -> Any:
        scores = jnp.where(ids > 0, table[ids].sum(-1), -1e9)
        return jnp.einsum("bn,bnd->bd", jax.nn.softmax(scores), table[ids])

    def masked(table: Any, ids: Any, lengths: Any) -> Any:
        is_real = jnp.arange(ids.shape[1]) < lengths[:, None]
        return (table[ids] * is_real[..., None]).sum(1)

    ids, lengths = np.ones((2, 5), np.int32), np.array([5, 4], np.int32)
    signatures = {
        "apart": Signature(pooled, args=[ids], polymorphic_shapes="(b, n)"),
        "padded": Signature(masked, args=[ids, lengths], polymorphic_shapes=["(b, n)", "(b,)"]),
    }
    for name, signature in signatures.items():
        folder = tmp_path / name
        saved = save(
            folder / "text" / "1",
            signature,
            params=TABLE,
            buckets={"b": [1, 8], "n": [16, 64]},
            target=Target.tensorflow("2.19"),
        )
        batching = saved.serving.batching
        assert (batching is not None and batching.pad_variable_length_inputs) == (name == "padded")
        requests: list[dict[str, Any]] = []
        for length in range(1, 33):
            rows = 1 + length % 2
            requests.append({"ids": np.ones((rows, length), np.int32)})
            if name == "padded":
                requests[-1]["lengths"] = np.full(rows, length, np.int32)
        requests *= 4
        with serving(program, python, saved.serving, folder) as server:
            assert server.call_by_grpc(requests, 4, folder) == {"OK": 4 * len(requests)}
