"""The program that a worker runs: it takes its pipes away from user code before anything else.

It is run as a file, by a Python that cannot import the bridge yet: sys.path comes in the first
message. So it imports nothing but the standard library until then.
"""

import json
import os
import signal
import sys


def main() -> None:
    """Answers requests on stdin until it is closed, on what stdout was at the start."""
    requests, replies = os.dup(0), os.dup(1)
    # What user code prints goes to the log, and what it reads is empty.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    # Ctrl-C in a terminal is sent to the workers as well; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size = int.from_bytes(_read(requests, 8), "big")
    sys.path[:] = json.loads(_read(requests, size))["path"]

    from jax2tf_bridge.parallel._serving import serve

    serve(requests, replies)


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes of a pipe; where it ends before, the parent is gone, and so is this process."""
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            sys.exit(1)
        data += more
    return data


if __name__ == "__main__":
    main()
