"""Program that a worker process runs: it takes its pipe away from user code before anything else.

It is run as a file, by a Python that cannot import the bridge yet: sys.path comes in the first
message. So it imports nothing but the standard library until then.
"""

import json
import os
import signal
import sys
from multiprocessing.connection import Connection


def main() -> None:
    """Answers the requests that come through stdin until the parent closes it."""
    connection = Connection(os.dup(0))
    # User code finds an empty stdin; what it prints goes to the log.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Ctrl-C in a terminal is sent to the workers as well; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        sys.exit(1)  # the parent is gone
    sys.path[:] = settings["path"]

    from jax2tf_bridge.parallel._worker_process import serve

    serve(connection)


if __name__ == "__main__":
    main()
