"""Main program of a worker process.

It first moves the connection away from stdin, where user code could read it. It runs as a file in
a Python that cannot import the bridge until the first message sets sys.path, so it imports only
the standard library before that.
"""

import json
import os
import signal
import sys
from multiprocessing.connection import Connection


def main() -> None:
    """Answers requests from the pipe at stdin until the parent closes it."""
    connection = Connection(os.dup(0))
    # User code gets an empty stdin; its output goes to the log.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # A terminal sends Ctrl-C to the workers as well; only the parent handles it.
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
