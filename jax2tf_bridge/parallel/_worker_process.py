"""Worker processes: WorkerProcess runs in the parent, `serve` in the worker."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.errors import JobError, WorkerDiedError
from jax2tf_bridge.parallel._configuration import read_configuration, use_configuration
from jax2tf_bridge.parallel._failures import Failure

_MAX_OUTPUT_BYTES = 1 << 16
"""Maximum number of bytes kept of a call's output; the last ones are kept."""

_MAX_OUTPUT_CHARACTERS = 4096
"""Maximum number of characters of a process's output in an error message."""

_EXIT_TIMEOUT = 5.0
"""Seconds that an idle worker gets to exit before it is killed."""

_PROGRAM = Path(__file__).with_name("_worker_main.py")
"""Main program of a worker, run as a file because the worker cannot import the bridge yet."""


@dataclass(frozen=True)
class WorkerOptions:
    """JAX's configuration for unpickling and running the calls that follow."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class ReturnedValue:
    """The value that a call returned. The answer of a call that raised is a Failure."""

    value: Any


class WorkerProcess:
    """A Python process that calls functions. Only one thread at a time may use it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts the process; `environment` is its complete environment."""
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._channel = Channel.with_new_token()
        self._connection, other_end = Pipe()
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", str(_PROGRAM)],
                stdin=other_end.fileno(),
                stdout=self._log,
                stderr=self._log,
                env=dict(environment),
            )
        self._out_of_time = False

    def prepare(
        self, name: str, initializer: Callable[[], object] | None
    ) -> ReturnedValue | Failure:
        """Sends sys.path, the token and the initializer, and waits until the worker is ready.

        Raises:
          WorkerDiedError: the process ended first; `name` is the name of its job.
          NotPicklableError: the initializer cannot be sent.
        """
        # The worker reads these two before it can import the bridge.
        settings = json.dumps({"path": [entry for entry in sys.path if isinstance(entry, str)]})
        self._send(settings.encode())
        self._send(self._channel.token)
        return self.call(name, initializer or _do_nothing, starting=True)

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        starting: bool = False,
    ) -> ReturnedValue | Failure:
        """Calls a function in the worker, with the JAX configuration of this thread.

        Raises:
          WorkerDiedError: the process ended before it answered.
          JobError: the call took longer than `timeout` seconds; the process was killed.
          NotPicklableError: the call cannot be sent; the process keeps running.
        """
        # The options come first, because unpickling the call's arrays depends on jax_enable_x64.
        self._send(self._channel.pack(WorkerOptions(read_configuration())))
        message = self._channel.pack((function, args, dict(kwargs or {})))
        with self._kill_after(timeout):
            self._send(message)
            reply = _receive(self._connection)
        if reply is None:
            self._process.kill()  # it may have closed its pipe without exiting
            exit_code = self._process.wait()
            if self._out_of_time and timeout is not None:
                raise _make_timeout_error(name, timeout, self.output())
            raise _make_worker_died_error(name, exit_code, self.output(), starting=starting)
        answer: ReturnedValue | Failure = self._channel.unpack(reply)
        return answer

    @contextlib.contextmanager
    def _kill_after(self, timeout: float | None) -> Iterator[None]:
        if timeout is None:
            yield
            return

        def end() -> None:
            self._out_of_time = True
            self._process.kill()

        timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # reading the answer detects a dead process
            self._connection.send_bytes(message)

    @property
    def is_alive(self) -> bool:
        """Returns whether the process runs."""
        return self._process.poll() is None and not self._out_of_time

    def output(self) -> str:
        """Returns the output since the last `forget_output`, at most the last 64 kB."""
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        first = max(0, size - _MAX_OUTPUT_BYTES)
        return os.pread(descriptor, size - first, first).decode(errors="replace")

    def forget_output(self) -> None:
        """Empties the log."""
        # The seek also moves the worker's position: both processes share one file description.
        self._log.seek(0)
        self._log.truncate()

    def kill(self) -> None:
        """Kills the process; this wakes the thread that waits for its answer."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """Closes the pipe, waits for the process to exit or kills it, and closes the log."""
        self._connection.close()
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _do_nothing() -> None:
    """The default initializer of a worker."""


def _receive(connection: Connection) -> bytes | None:
    """Returns the next message; None if the other process is gone."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _make_worker_died_error(
    name: str, exit_code: int, output: str, *, starting: bool
) -> WorkerDiedError:
    end = f"ended with exit code {exit_code}"
    if exit_code < 0:  # a signal
        signal_names = {int(number): number.name for number in signal.Signals}
        end = f"was ended by {signal_names.get(-exit_code, f'signal {-exit_code}')}"
        if -exit_code == signal.SIGKILL:
            end += ", as the system does if memory runs out"
    task = f"was to export {name!r}" if starting else f"exported {name!r}"
    return WorkerDiedError(
        f"The process that {task} {end}{' while it started' * starting}.{_format_output(output)}",
        job=name,
        output=output,
        exit_code=exit_code,
    )


def _make_timeout_error(name: str, timeout: float, output: str) -> JobError:
    return JobError(
        f"{name!r} took longer than {timeout:g} s, and its process was ended."
        f"{_format_output(output)}",
        job=name,
        output=output,
    )


def _format_output(output: str) -> str:
    text = output.rstrip()
    if not text:
        return " It printed nothing."
    start = "..." if len(text) > _MAX_OUTPUT_CHARACTERS else ""
    return f" It had printed:\n{start}{text[-_MAX_OUTPUT_CHARACTERS:]}"


def serve(connection: Connection) -> None:
    """Answers calls in the worker until the parent closes the connection.

    The first message is the channel's token. The other messages are calls, as (function, args,
    kwargs), and WorkerOptions for the calls that follow. Only calls are answered; the first one
    runs the initializer.
    """
    token = _receive(connection)
    if token is None:
        return
    channel = Channel(token, end="worker")
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def watch() -> None:
        while (message := _receive(connection)) is not None:
            busy.set()
            calls.put(message)
        # The parent is gone, so nobody reads the answer, and user code may run forever.
        if not busy.is_set():
            calls.put(None)
            time.sleep(_EXIT_TIMEOUT)  # threads of user code may keep the process from exiting
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    options = WorkerOptions({})
    while (message := calls.get()) is not None:
        with use_configuration(options.values):
            reply = _handle_message(channel, message)
        if isinstance(reply, WorkerOptions):
            options = reply
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        busy.clear()
        connection.send_bytes(reply)


def _handle_message(channel: Channel, message: bytes) -> bytes | WorkerOptions:
    try:
        request = channel.unpack(message)
        if isinstance(request, WorkerOptions):
            return request
        function, args, kwargs = request
        return channel.pack(ReturnedValue(function(*args, **kwargs)))
    except BaseException as e:  # includes sys.exit()
        return channel.pack(Failure.of(e))
