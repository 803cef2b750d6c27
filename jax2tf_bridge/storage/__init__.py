"""Reads and writes files and directories where a path says: on disk, or behind a scheme.

What is on disk has pathlib's paths; what has a scheme ("gs://", "ram://", "memory://") has a
`StoragePath` with the same methods, on top of TensorFlow's file systems or fsspec. Everything
above takes either from `as_path`. Files and directories appear complete or not at all.

Imports neither jax, tensorflow nor fsspec before a path needs one.
"""

from jax2tf_bridge.storage._claims import Claim
from jax2tf_bridge.storage._directories import check_free, on_disk, whole_directory
from jax2tf_bridge.storage._files import OpenedFile, opened_file, replaced_file
from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path, walk_files
from jax2tf_bridge.storage._staging import locked_folder, remove_at_once
from jax2tf_bridge.storage._uploads import (
    claim_number,
    clear_dead_claims,
    remove_visible,
    send,
    staged_upload,
)
from jax2tf_bridge.storage._whole_directory import (
    local_path,
    rename_to_new,
    staging,
    sync_folder,
    sync_tree,
)

__all__ = [
    "AnyPath",
    "Claim",
    "OpenedFile",
    "StoragePath",
    "as_path",
    "check_free",
    "claim_number",
    "clear_dead_claims",
    "local_path",
    "locked_folder",
    "on_disk",
    "opened_file",
    "remove_at_once",
    "remove_visible",
    "rename_to_new",
    "replaced_file",
    "send",
    "staged_upload",
    "staging",
    "sync_folder",
    "sync_tree",
    "walk_files",
    "whole_directory",
]
