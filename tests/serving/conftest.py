"""A real TensorFlow Serving, where this machine has one."""

from __future__ import annotations

import sys

import pytest

from jax2tf_bridge.serve_checking import SERVER_VARIABLE, find_server
from tests.consumers.harness import Harness, NotAvailableError
from tests.serving.server import Runtime

RELEASE = "2.19.1"


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """Returns the server, and an environment with its TensorFlow."""
    program = find_server()
    if program is None:
        pytest.skip(
            f"there is no TensorFlow Serving: {SERVER_VARIABLE} names none, nor does the PATH"
        )
    harness = Harness(tmp_path_factory.mktemp("harness"), lambda text: print(text, file=sys.stderr))
    try:
        return Runtime(program, harness.consumer_python(RELEASE))
    except NotAvailableError as e:
        pytest.skip(str(e))
