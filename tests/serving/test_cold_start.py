"""A second TensorFlow Serving, which neither compiles nor prepares anything for a first request."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Target, export, save, write_function
from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.serving.client import post
from tests.serving.server import Instructions, Runtime, read_instructions, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def tanh(x: Any) -> Any:
    return jnp.tanh(x)


def test_a_server_compiles_nothing_again(runtime: Runtime, tmp_path: Path) -> None:
    portable = export(tanh, polymorphic_shapes="(b, 3)", target=Target.tensorflow("2.19"))(X)
    write_function(tmp_path / "tanh.jaxfn", portable, vjp_order=0)
    root = tmp_path / "tanh"
    options = "--buckets b=4 --oversize as-is --precompile"
    words = f"save {tmp_path}/tanh.jaxfn {options} -o {root}/1"
    # Programs are for one release of TensorFlow, so the server's compiles them.
    subprocess.run(
        [str(runtime.python), "-m", "jax2tf_bridge", *words.split()],
        cwd=ROOT,
        env=process_environment(),
        check=True,
    )
    cache = root / "xla_cache"
    files = {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert len(files) == 2
    ports_and_name = ("--port=8500", "--rest_api_port=8501", "--model_name=tanh")
    model = (f"--model_base_path={root}", "--xla_cpu_compilation_enabled=true")
    # Without read_only, the server would write what it compiles.
    environment = {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={cache}"}
    instructions = Instructions(environment, (*ports_and_name, *model), {})
    with serving(runtime, instructions, tmp_path) as server:
        for rows in (1, 4, 5):
            x = np.resize(X, (rows, 3))
            assert {file.name: file.stat().st_mtime_ns for file in cache.iterdir()} == files
            status, answer = post(server, {"instances": x.tolist()})
            assert status == 200
            np.testing.assert_allclose(answer["predictions"], np.tanh(x), rtol=1e-5)
    # Five rows exceed the bucket, so they are compiled.
    assert len(list(cache.iterdir())) == 3


def test_open_sizes_without_xla_are_warmed_up(runtime: Runtime, tmp_path: Path) -> None:
    target = Target.tensorflow("2.19", xla=False)
    saved = save(
        tmp_path / "tanh" / "1", export(tanh, polymorphic_shapes="(b, 3)", target=target)(X)
    )
    instructions = read_instructions(str(saved.serving))
    instructions = dataclasses.replace(instructions, environment={"TF_CPP_MIN_LOG_LEVEL": "0"})
    with serving(runtime, instructions, tmp_path) as server:
        status, answer = post(server, {"instances": X.tolist()})
        assert status == 200
        np.testing.assert_allclose(answer["predictions"], np.tanh(X), rtol=1e-5)
    assert "Number of warmup records read: 2." in (tmp_path / "server.log").read_text()
