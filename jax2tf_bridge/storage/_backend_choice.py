"""Chooses the backend for paths of a scheme."""

from __future__ import annotations

import errno
import importlib.util
import sys

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._backend import Backend

_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
    "ssh": "paramiko",
}
"""Packages that fsspec needs for each scheme."""

_TENSORFLOW_ONLY = frozenset({"ram"})


def choose_backend(scheme: str, path: str) -> Backend:
    """Chooses the backend for paths of a scheme.

    The first of these that supports the scheme is chosen: TensorFlow if it is already imported;
    fsspec with the packages for the scheme; TensorFlow if it is installed.

    Raises:
      OSError: no installed package supports the scheme; the text names the package to install.
    """
    tensorflow = "tensorflow" in sys.modules and hasattr(sys.modules["tensorflow"], "io")
    for choice in (
        _gfile_for if tensorflow else None,
        _fsspec_for,
        None if tensorflow else _gfile_for,
    ):
        backend = choice and choice(scheme, path)
        if backend:
            return backend
    raise make_path_error(OSError, errno.EPROTONOSUPPORT, _missing_text(scheme), path)


def _gfile_for(scheme: str, path: str) -> Backend | None:
    if "tensorflow" not in sys.modules and not _is_installed("tensorflow"):
        return None
    from jax2tf_bridge.storage._gfile import gfile_backend

    return gfile_backend(scheme)


def _fsspec_for(scheme: str, path: str) -> Backend | None:
    if scheme in _TENSORFLOW_ONLY or not _is_installed("fsspec"):
        return None
    from jax2tf_bridge.storage._fsspec import FsspecBackend, file_system

    files = file_system(scheme, path)
    return None if files is None else FsspecBackend(files)


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # a parent module cannot be imported
        return False


def _missing_text(scheme: str) -> str:
    if scheme in _TENSORFLOW_ONLY:
        return f"needs TensorFlow, which alone has {scheme}://: pip install tensorflow"
    more = _PACKAGES.get(scheme)
    if not _is_installed("fsspec"):
        packages = " ".join(["'jax2tf-bridge[storage]'", *([more] if more else [])])
        return f"needs fsspec for {scheme}://: pip install {packages}"
    if more:
        return f"needs a package for {scheme}://: pip install {more}"
    from fsspec.registry import known_implementations

    if said := known_implementations.get(scheme, {}).get("err"):
        return f"needs a package for {scheme}://. fsspec says: {said}"
    return (
        f"has the scheme {scheme}://, which neither TensorFlow nor fsspec knows here: import the "
        "package that registers it, or name a local path"
    )
