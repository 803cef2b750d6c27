"""Reads and writes files and directories on disk and in storage behind a scheme.

Paths on disk are pathlib's. Paths with a scheme ("gs://", "ram://", "memory://") are a
`StoragePath` with the same methods, which uses TensorFlow's file systems or fsspec. `as_path`
returns either. Files and directories appear complete or not at all.

TensorFlow and fsspec are imported when a path needs them; jax never is.
"""

from jax2tf_bridge.storage._disk import local_path as local_path
from jax2tf_bridge.storage._disk import rename_to_new as rename_to_new
from jax2tf_bridge.storage._disk import sync_folder as sync_folder
from jax2tf_bridge.storage._disk import sync_tree as sync_tree
from jax2tf_bridge.storage._files import OpenedFile as OpenedFile
from jax2tf_bridge.storage._files import check_file_path as check_file_path
from jax2tf_bridge.storage._files import check_free as check_free
from jax2tf_bridge.storage._files import on_disk as on_disk
from jax2tf_bridge.storage._files import open_file as open_file
from jax2tf_bridge.storage._files import replace_file_at as replace_file_at
from jax2tf_bridge.storage._files import whole_directory as whole_directory
from jax2tf_bridge.storage._paths import AnyPath as AnyPath
from jax2tf_bridge.storage._paths import StoragePath as StoragePath
from jax2tf_bridge.storage._paths import as_path as as_path
from jax2tf_bridge.storage._paths import wait_until as wait_until
from jax2tf_bridge.storage._paths import walk_files as walk_files
from jax2tf_bridge.storage._staging import lock_folder as lock_folder
from jax2tf_bridge.storage._staging import remove_at_once as remove_at_once
from jax2tf_bridge.storage._staging import stage_directory as stage_directory
from jax2tf_bridge.storage._uploads import Claim as Claim
from jax2tf_bridge.storage._uploads import claim_number as claim_number
from jax2tf_bridge.storage._uploads import clear_dead_claims as clear_dead_claims
from jax2tf_bridge.storage._uploads import remove_visible as remove_visible
from jax2tf_bridge.storage._uploads import stage_upload as stage_upload
from jax2tf_bridge.storage._uploads import upload as upload
from jax2tf_bridge.storage._uploads import write_marker as write_marker
