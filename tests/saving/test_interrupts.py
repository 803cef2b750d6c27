"""Ctrl-C ends save() and publish(), also where Python drops what it raises."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Processing, Signature, publish, save
from jax2tf_bridge._utils import reraise_interrupts
from tests.fresh_process import complete_python
from tests.saving.saved_functions import contents


class Interrupting:
    """Presses Ctrl-C in its finalizer, out of which no exception comes."""

    def __del__(self) -> None:
        """Has the handler called while this runs."""
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _quiet_finalizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silences finalizers that raise, pytest would fail the test by it; and listens to Ctrl-C."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    # A shell starts what runs in the background without a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def interrupted(x: Any) -> Any:
    Interrupting()
    return x


X = np.ones((1, 2), np.float32)
WHILE_EXPORTED = Signature(interrupted, args=[X])
WHILE_WRITTEN = Signature(
    lambda x: x,
    args=[X],
    processing=Processing(inputs={"x": tf.TensorSpec([1, 2])}, preprocess=interrupted),
)


@pytest.mark.parametrize("signature", [WHILE_EXPORTED, WHILE_WRITTEN])
def test_an_interrupt_in_a_finalizer_ends_saving(signature: Signature, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "model", signature)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "model", signature)
    assert contents(tmp_path) == []


def test_what_an_interrupt_was_turned_into_is_the_cause() -> None:
    def failing() -> None:
        with reraise_interrupts():
            Interrupting()
            raise RuntimeError("of an extension module")

    with pytest.raises(KeyboardInterrupt) as caught:
        failing()
    assert str(caught.value.__cause__) == "of an extension module"


def test_the_handler_of_the_program_decides() -> None:
    calls = []

    class EndedError(Exception):
        pass

    def noting(*_: object) -> None:
        calls.append("noted")

    def raising(*_: object) -> None:
        raise EndedError

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, noting)
        with reraise_interrupts() as check:
            Interrupting()
            check()
        assert calls == ["noted"]
        signal.signal(signal.SIGINT, raising)
        with pytest.raises(EndedError), reraise_interrupts():
            Interrupting()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with reraise_interrupts():
            Interrupting()
    finally:
        signal.signal(signal.SIGINT, before)


INTERRUPTED = """
import sys
from pathlib import Path

from tests.saving.test_interrupts import interrupt_at_any_moment

interrupt_at_any_moment(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_an_interrupt_at_any_moment_ends_saving(tmp_path: Path) -> None:
    """TensorFlow may stay in a graph that an interrupt came out of: in a process of its own."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = complete_python(INTERRUPTED, str(folder), env={"PYTHONFAULTHANDLER": "1"})
        if done.returncode != -signal.SIGSEGV:
            break
        # TensorFlow's conversion of arrays crashes if an interrupt comes within it: about one
        # interrupt in two thousand.
        assert "convert_to_eager_tensor" in done.stderr
    assert done.returncode == 0, done.stderr


def interrupt_at_any_moment(tmp_path: Path) -> None:
    """With garbage collected all the time, in which many of the interrupts come."""

    def signature(factor: float) -> Signature:
        return Signature(lambda x: x * factor, args=[X], polymorphic_shapes="(b, 2)")

    save(tmp_path / "first", signature(0.0), buckets={"b": [1, 2]})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background there is none
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    thresholds = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        started = time.monotonic()
        save(tmp_path / "second", signature(1.0), buckets={"b": [1, 2]})
        seconds = time.monotonic() - started
        for i in range(2, 42):
            signal.setitimer(signal.ITIMER_REAL, seconds * 0.9 * (i - 1) / 41)
            ended = True
            try:
                save(tmp_path / f"model{i}", signature(float(i)), buckets={"b": [1, 2]})
                ended = signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0  # it was quicker
            except KeyboardInterrupt:
                # The last of them come when it is complete.
                found = contents(tmp_path / f"model{i}")
                assert not found or "saved_model.pb" in found
                assert not list(tmp_path.glob(".model*"))
            assert ended
            if not tf.executing_eagerly():
                break  # it came while TensorFlow left a graph: it stays in it for good
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.set_threshold(*thresholds)
