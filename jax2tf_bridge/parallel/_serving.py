"""The worker's loop: one request after another, until the parent is gone."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.parallel._configuration import configured
from jax2tf_bridge.parallel._failures import Carried, Failure, carried
from jax2tf_bridge.parallel._frames import read_frame, write_frame

_PATIENCE = 5.0
"""Seconds that a process without work has to end in the usual way."""


@dataclass(frozen=True)
class Options:
    """JAX's configuration for the calls that follow; also for reading them."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Returned:
    """What a function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """What a function raised: as text, and in parts if they can be sent."""

    failure: Failure
    parts: Carried | None


def serve(requests: int, replies: int) -> None:
    """Calls what is asked for.

    The first message is the channel's token. Then come Options for the calls that follow, and
    calls as (function, args, kwargs), which are answered; the first call prepares the worker.

    Args:
      requests: the pipe to read from.
      replies: the pipe to write to.
    """
    token = read_frame(requests)
    if token is None:
        return
    channel = Channel(token, end="worker")
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def watch() -> None:
        while (message := read_frame(requests)) is not None:
            busy.set()
            calls.put(message)
        # The parent is gone: nobody wants the answer, and user code may take for ever.
        if not busy.is_set():
            calls.put(None)
            time.sleep(_PATIENCE)  # threads of user code may keep the process from ending
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    options = Options({})
    while (message := calls.get()) is not None:
        with configured(options.values):
            reply = _reply(channel, message)
        if isinstance(reply, Options):
            options = reply
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        busy.clear()
        write_frame(replies, reply)


def _reply(channel: Channel, message: bytes) -> bytes | Options:
    try:
        request = channel.unpack(message)
        if isinstance(request, Options):
            return request
        function, args, kwargs = request
        return channel.pack(Returned(function(*args, **kwargs)))
    except BaseException as e:  # sys.exit() among them
        return channel.pack(Raised(Failure.of(e), carried(e)))
