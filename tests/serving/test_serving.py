"""Models in a real TensorFlow Serving, started as `print(saved.serving)` says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.serving.cases import CASES, Case
from tests.serving.client import (
    RefusedError,
    call_from_many,
    connect,
    find_rest_problems,
    predict_by_rest,
)
from tests.serving.server import Runtime, Server, read_instructions, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

CALLERS = (1, 4, 32)


@contextlib.contextmanager
def start(case: Case, runtime: Runtime, folder: Path) -> Iterator[Server]:
    """Saves a model, and starts a server with the printed text."""
    text = case.save(folder / case.name / "1", runtime.python)
    assert case.note in text
    instructions = read_instructions(text)
    assert instructions.model == case.name
    assert ("--enable_batching=true" in instructions.options) == case.is_joined
    with serving(runtime, instructions, folder) as server:
        yield server


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_and_wrong_requests(case: Case, runtime: Runtime, tmp_path: Path) -> None:
    with start(case, runtime, tmp_path) as server:
        assert server.count_compiles() == case.compiles
        for callers in CALLERS:
            calls = 8 + 32 // callers
            assert call_from_many(server, case.call, callers=callers, calls=calls) == []
        with connect(server) as predict:
            for wrong in case.wrong:
                if wrong.grpc is not None:
                    with pytest.raises(RefusedError) as caught:
                        predict(wrong.inputs, wrong.signature)
                    assert wrong.grpc in str(caught.value)
                if wrong.rest is not None:
                    status, answer = predict_by_rest(server, wrong.inputs, wrong.signature)
                    assert status >= 400
                    assert wrong.rest in answer["error"]
        assert call_from_many(server, case.call, callers=1, calls=4) == []
        if case.has_rest:
            random = np.random.default_rng(0)
            # REST takes no request without the inputs that have defaults.
            complete = max((case.call(random) for _ in range(8)), key=lambda c: len(c.inputs))
            assert find_rest_problems(server, complete) == []
        assert server.count_compiles() == case.compiles + case.compiles_later


def test_what_the_notes_say_of_joined_requests(runtime: Runtime, tmp_path: Path) -> None:
    case, is_over = CASES[0], threading.Event()

    def call_wrongly(server: Server) -> set[str]:
        errors = set()
        with connect(server) as predict:
            while not is_over.is_set():
                with pytest.raises(RefusedError) as caught:
                    predict({"x": np.ones((3, 27), np.float32)})
                errors.add(str(caught.value).partition(":")[0])
        return errors

    with start(case, runtime, tmp_path) as server, ThreadPoolExecutor() as pool:
        wrong = [pool.submit(call_wrongly, server) for _ in range(2)]
        try:
            problems = call_from_many(server, case.call, callers=16, calls=50)
        finally:
            is_over.set()
        assert {error for each in wrong for error in each.result()} >= {"INVALID_ARGUMENT"}
        # Some calls fail, and none gets a wrong answer.
        assert problems
        assert all("from different tasks have different shapes" in p for p in problems)
        assert call_from_many(server, case.call, callers=1, calls=4) == []
        with connect(server) as predict:
            empty = pool.submit(predict, {"x": np.ones((0, 28), np.float32)})
            time.sleep(0.5)
            assert not empty.done()
            assert call_from_many(server, case.call, callers=1, calls=1) == []
            assert empty.result()["output_0"].shape == (0, 10)
