"""One worker process, seen from the parent: started, asked, and reported if it dies."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.parallel import _worker
from jax2tf_bridge.parallel._configuration import configuration
from jax2tf_bridge.parallel._failures import out_of_time, worker_died
from jax2tf_bridge.parallel._frames import read_frame, write_frame
from jax2tf_bridge.parallel._serving import Options, Raised, Returned

_MOST_KEPT = 1 << 16
"""Bytes of what a call printed that are kept, the last ones."""

_PATIENCE = 5.0
"""Seconds that a worker without work has to end by itself."""


class WorkerProcess:
    """A Python process that calls functions. One thread at a time uses it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts it, with all of its environment variables."""
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._channel = Channel.with_new_token()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", str(Path(_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env=dict(environment),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._replies = self._process.stdout.fileno()
        self._out_of_time = False

    def prepare(self, name: str, initializer: Callable[[], object] | None) -> Returned | Raised:
        """Says what it needs to know, and waits until it is ready.

        Raises:
          WorkerDiedError: it is not; `name` is what it was to do.
          NotPicklableError: the initializer cannot be sent.
        """
        # These two it reads before it can import the bridge.
        settings = json.dumps({"path": [entry for entry in sys.path if isinstance(entry, str)]})
        self._send(settings.encode())
        self._send(self._channel.token)
        return self._call(name, initializer or _nothing, (), {}, None, starting=True)

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None,
    ) -> Returned | Raised:
        """What came of a call, with the configuration that JAX has in this thread.

        Raises:
          WorkerDiedError: the process ended before it answered.
          JobError: it took longer than `timeout` seconds; the process was ended.
          NotPicklableError: the call cannot be sent; the process goes on.
        """
        return self._call(name, function, args, kwargs, timeout, starting=False)

    def _call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        *,
        starting: bool,
    ) -> Returned | Raised:
        # By itself: arrays in the call are read as it says, those of 64 bits for instance.
        self._send(self._channel.pack(Options(configuration())))
        message = self._channel.pack((function, args, dict(kwargs)))
        with self._ended_after(timeout):
            self._send(message)
            reply = read_frame(self._replies)
        if reply is None:
            self._process.kill()  # it may have closed its pipes and live
            exit_code = self._process.wait()
            if self._out_of_time and timeout is not None:
                raise out_of_time(name, timeout, self.output())
            raise worker_died(name, exit_code, self.output(), starting=starting)
        answer: Returned | Raised = self._channel.unpack(reply)
        return answer

    @contextlib.contextmanager
    def _ended_after(self, timeout: float | None) -> Iterator[None]:
        """Ends the process if what is done meanwhile takes longer."""
        if timeout is None:
            yield
            return

        def end() -> None:
            self._out_of_time = True
            self._process.kill()

        timer = threading.Timer(timeout, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it is dead then, which is seen when it is to answer
            write_frame(self._requests, message)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None and not self._out_of_time

    def output(self) -> str:
        """What it has printed since the last `forget_output`, at most the last 64 kB."""
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        first = max(0, size - _MOST_KEPT)
        return os.pread(descriptor, size - first, first).decode(errors="replace")

    def forget_output(self) -> None:
        """Empties what was printed."""
        # It writes where this file stands, since both have it from one opening.
        self._log.seek(0)
        self._log.truncate()

    def kill(self) -> None:
        """Ends it at once, whatever it does; the thread that waits for it sees it dead."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """Lets it end, or ends it, and frees what it had."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def _nothing() -> None:
    """The initializer of workers that have none."""
