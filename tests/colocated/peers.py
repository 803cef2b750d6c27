"""A process and its worker, for tests: this file's text is put before what the parent runs."""

import subprocess
import sys
from types import TracebackType
from typing import Any

from jax2tf_bridge.colocated import Channel

# The worker calls what it gets and answers with what that gives, on the devices that it has.
# After a message of size 0 comes the token of another channel.
WORKER = """
import sys
from jax2tf_bridge.colocated import TOKEN_SIZE, Channel

pipe, answers = sys.stdin.buffer, sys.stdout.buffer
while token := pipe.read(TOKEN_SIZE):
    channel = Channel(token, end="worker")
    while size := int.from_bytes(pipe.read(8)):
        message = pipe.read(size)
        try:
            function, args = channel.unpack(message)
            answer = ("value", function(*args))
        except Exception as e:
            answer = ("error", f"{type(e).__name__}: {e}")
        data = channel.pack(answer)
        answers.write(len(data).to_bytes(8) + data)
        answers.flush()
"""


class Worker:
    """A fresh interpreter with its own devices, which is called through a channel."""

    def __init__(self, devices: int) -> None:
        import os

        # XLA uses the last of two such flags.
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        self.channel = Channel.with_new_token()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
        assert self.process.stdin
        assert self.process.stdout
        self.pipe, self.answers = self.process.stdin, self.process.stdout
        self.pipe.write(self.channel.token)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.pipe.close()
        self.answers.close()
        assert self.process.wait(60) == 0

    def begin_channel(self, *, token: bytes | None = None) -> None:
        """Takes a new channel; with a token, the worker gets that one instead of the right one."""
        self.channel = Channel.with_new_token()
        self.pipe.write((0).to_bytes(8) + (token or self.channel.token))

    def send(self, message: bytes) -> bytes:
        """Returns the answer to a message, as it came."""
        self.pipe.write(len(message).to_bytes(8) + message)
        self.pipe.flush()
        return self.answers.read(int.from_bytes(self.answers.read(8)))

    def answer(self, function: Any, *args: Any) -> tuple[str, Any]:
        """Calls a function there; returns ("value", it) or ("error", its text)."""
        answer: tuple[str, Any] = self.channel.unpack(
            self.send(self.channel.pack((function, args)))
        )
        return answer

    def call(self, function: Any, *args: Any) -> Any:
        """Calls a function there and returns its value; an error fails the test."""
        kind, value = self.answer(function, *args)
        assert kind == "value", value
        return value
