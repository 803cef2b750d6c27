"""Exception tree as a whole."""

import copy
import errno
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from jax2tf_bridge import errors as _errors
from jax2tf_bridge.errors import (
    BridgeError,
    CallTfError,
    ExportManyError,
    FileFormatError,
    InconclusiveShapeError,
    JobError,
    MissingDependencyError,
    NotPicklableError,
    PlatformError,
    StateDictError,
    UnsoundBucketsError,
    UnsupportedByTargetError,
    WorkerDiedError,
    make_path_error,
)


def _one_of_each() -> Iterator[BridgeError]:
    yield MissingDependencyError("jax", "jax", "export")
    yield UnsupportedByTargetError("no op", operation="top_k", source="net.py:3", reason="new")
    yield PlatformError("no platform", reasons={"tpu": "no rule"})
    yield InconclusiveShapeError("b?", comparison="b >= 2", counterexample={"b": 1})
    yield UnsoundBucketsError("sum", output="y", sizes={"b": 3}, bucket={"b": 8}, difference=1.5)
    yield StateDictError("keys", path="params/kernel")
    yield FileFormatError("bytes", file="weights.msgpack")
    yield NotPicklableError("lock", culprit="model._lock")
    yield CallTfError("failed", function="f", operation="Where")
    yield JobError("job", job="predict", output="text")
    yield WorkerDiedError("died", job="predict", exit_code=-9)
    yield ExportManyError.of({}, {"predict": JobError("job", job="predict")})
    special = {MissingDependencyError, ExportManyError}
    plain = [kind for kind in vars(_errors).values() if isinstance(kind, type)]
    for kind in plain:
        if issubclass(kind, BridgeError) and "__init__" not in vars(kind) and kind not in special:
            inits = [base for base in kind.__mro__ if "__init__" in vars(base)]
            if not issubclass(inits[0], BridgeError):
                yield kind("text")


@pytest.mark.parametrize("error", [*_one_of_each()], ids=lambda error: type(error).__name__)
def test_errors_cross_to_other_processes(error: BridgeError) -> None:
    """Pickles as a pool of processes does: with text and attributes."""
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert {n: str(v) for n, v in vars(found).items()} == {
        n: str(v) for n, v in vars(error).items()
    }


def test_errors_about_paths_begin_with_the_path() -> None:
    kinds = {
        errno.EEXIST: FileExistsError,
        errno.ENOENT: FileNotFoundError,
        errno.ENOTDIR: NotADirectoryError,
        errno.EACCES: PermissionError,
        errno.ENOSPC: OSError,
    }
    for code, kind in kinds.items():
        error = make_path_error(code, "already exists", Path("models"))
        for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert str(each) == "models already exists"
            assert (each.errno, each.filename) == (code, "models")
            assert type(each).__name__ == kind.__name__
            assert isinstance(each, kind)


def test_each_kind_of_error_is_tried() -> None:
    kinds = {kind for kind in vars(_errors).values() if isinstance(kind, type)}
    bridge_errors = {kind for kind in kinds if issubclass(kind, BridgeError)}
    assert {type(error) for error in _one_of_each()} == bridge_errors
