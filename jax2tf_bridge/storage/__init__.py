"""Reads and writes files and directories where a path says: on disk, or behind a scheme.

What is on disk has pathlib's paths; what has a scheme ("gs://", "ram://", "memory://") has a
`StoragePath` with the same methods, on top of TensorFlow's file systems or fsspec. Everything
above takes either from `as_path`. Files and directories appear complete or not at all.

Imports neither jax, tensorflow nor fsspec before a path needs one.
"""

from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path

__all__ = ["AnyPath", "StoragePath", "as_path"]
