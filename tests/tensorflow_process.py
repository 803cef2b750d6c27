"""One process with TensorFlow and without JAX, in which several tests run code."""

import atexit
import functools
import json
import os
import subprocess
import sys
import textwrap

from tests.fresh_process import WITHOUT_JAX

_PROCESS = """
import contextlib, io, json, os, sys, traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what C++ prints is no answer

for line in sys.stdin:
    code, *sys.argv[1:] = json.loads(line)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


def run_in_tensorflow(code: str, *args: str) -> str:
    """Runs code in the process that all tests share, with `args` as sys.argv[1:].

    Returns what it prints.

    No name is left to what runs there next, but what TensorFlow keeps is.
    """
    if _process().poll() is not None:  # an earlier test ended it
        _process.cache_clear()
    process = _process()
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps([textwrap.dedent(code), *args]) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the process ended with exit code {process.wait()}"
    printed, error = json.loads(answer)
    assert error is None, error
    return str(printed).strip()


@functools.cache
def _process() -> subprocess.Popen[str]:
    """It is started once, and ends when this process does."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_JAX + _PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},  # a test may look for warnings
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate()
