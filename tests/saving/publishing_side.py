"""A process whose children write models, and are killed while they do: for tests of publishing.

    python -m tests.saving.publishing_side

reads jobs from stdin, a line of JSON each, and answers with a line each. TensorFlow is imported
once; each job runs in forks of this process. A job has `kind`, one of the functions below, `path`,
where it writes, and may have `processes` (how many at once), `times` (how often each writes),
`keep`, `kill_at` (the file operation before which it kills itself), `kill_after_s` (it is killed
after so long), `largest_file` (in bytes), and `without_exchange`. The answer has for each process
its `status` (negative: the signal), and what it `told`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.publishing import publish_version, published_versions, rollback
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from jax2tf_bridge.saving import SaveOptions, publish_weights, save_functions
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.signatures import Signature

# Private: a system that cannot exchange two directories, and steps that stop.
from jax2tf_bridge.storage import _disk, whole_directory
from tests.saving.published_models import KERNEL, write_files, write_model

# Python's audit hooks see these operations; fsync and calls by ctypes are added below.
_OPERATIONS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")


class _Killer:
    """Counts the operations on files below a folder, and kills this process before one of them."""

    def __init__(self, folder: str, kill_at: int | None) -> None:
        self.folder, self.kill_at, self.count = folder, kill_at, 0

    def start(self) -> None:
        sys.addaudithook(self._heard)
        for module, name in ((os, "fsync"), (_disk, "_try_rename")):
            setattr(module, name, self._counted(getattr(module, name)))

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event.startswith("fcntl.") or (
            event.startswith(_OPERATIONS) and any(self.folder in str(arg) for arg in args)
        ):
            self._next()

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self._next()
            result = function(*args)
            self._next()
            return result

        return counted

    def _next(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _publish(path: Path, keep: int | None) -> int:
    return publish_version(path, write_model, keep=keep).version


def _publish_files(path: Path, keep: int | None) -> int:
    return publish_version(path, write_files, keep=keep).version


def _publish_weights(path: Path, keep: int | None) -> int:
    return publish_weights(path, {"kernel": KERNEL + np.float32(1)}, keep=keep).version


def _roll_back(path: Path, keep: int | None) -> int:
    return rollback(path, min(published_versions(path)), keep=keep).version


def _save(path: Path, keep: int | None) -> int:
    with whole_directory(path, overwrite=True, has="saved_model.pb") as folder:
        write_model(folder)
    return 0


def _save_function(path: Path, keep: int | None) -> int:
    portable = read_function(path.parent / "record.jaxfn")
    save_functions(
        path, {SERVING_DEFAULT: Signature(portable)}, options=SaveOptions(overwrite=True)
    )
    return 0


_KINDS = {
    "publish": _publish,
    "publish_files": _publish_files,
    "publish_weights": _publish_weights,
    "rollback": _roll_back,
    "save": _save,
    "save_record": _save_function,
}


def _work(job: dict[str, Any], say: Callable[[Any], None]) -> None:
    if "largest_file" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file"],) * 2)
    if job.get("without_exchange"):
        setattr(_disk, "_renameat2", lambda: None)  # noqa: B010
    killer = _Killer(str(Path(job["path"]).parent), job.get("kill_at"))
    killer.start()
    try:
        made = [
            _KINDS[job["kind"]](Path(job["path"]), job.get("keep"))
            for _ in range(job.get("times", 1))
        ]
        say({"versions": made, "operations": killer.count})
    except (OSError, tf.errors.OpError) as e:
        say({"error": type(e).__name__, "errno": getattr(e, "errno", None), "text": str(e)})


def _fork(job: dict[str, Any], begin: float) -> tuple[int, int]:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    status = 1
    try:
        time.sleep(max(0.0, begin - time.monotonic()))
        _work(job, lambda text: print(json.dumps(text), file=os.fdopen(theirs, "w"), flush=True))
        status = 0
    finally:
        os._exit(status)


def _run(job: dict[str, Any]) -> list[dict[str, Any]]:
    begin = time.monotonic() + (0.1 if job.get("processes", 1) > 1 else 0)
    children = [_fork(job, begin) for _ in range(job.get("processes", 1))]
    if "kill_after_s" in job:
        time.sleep(job["kill_after_s"])
        os.kill(children[0][0], signal.SIGKILL)
    answers = []
    for pid, pipe in children:
        with os.fdopen(pipe) as file:
            told = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answers.append({"status": status, "told": json.loads(told) if told else None})
    return answers


def main() -> None:
    """Answers jobs until there are no more."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
