"""Reads and writes files and directories on disk and in storage behind a scheme.

Paths on disk are pathlib's. Paths with a scheme ("gs://", "ram://", "memory://") are a
`StoragePath` with the same methods, which uses TensorFlow's file systems or fsspec. `as_path`
returns either. Files and directories appear complete or not at all.

TensorFlow and fsspec are imported when a path needs them; jax never is.
"""

from jax2tf_bridge.storage._files import (
    OpenedFile,
    check_file_path,
    check_free,
    on_disk,
    open_file,
    replace_file_at,
    whole_directory,
)
from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path, walk_files
from jax2tf_bridge.storage._staging import lock_folder, remove_at_once
from jax2tf_bridge.storage._uploads import (
    Claim,
    claim_number,
    clear_dead_claims,
    remove_visible,
    send,
    stage_upload,
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
    "check_file_path",
    "check_free",
    "claim_number",
    "clear_dead_claims",
    "local_path",
    "lock_folder",
    "on_disk",
    "open_file",
    "remove_at_once",
    "remove_visible",
    "rename_to_new",
    "replace_file_at",
    "send",
    "stage_upload",
    "staging",
    "sync_folder",
    "sync_tree",
    "walk_files",
    "whole_directory",
]
