"""Versions of a model below a root: writes, lists, checks and removes them. Needs no TensorFlow."""

from jax2tf_bridge.publishing._history import (
    Version,
    list_versions,
    promote,
    remove_label,
    rollback,
)
from jax2tf_bridge.publishing._labels import CANARY as CANARY
from jax2tf_bridge.publishing._labels import STABLE as STABLE
from jax2tf_bridge.publishing._labels import describe_labels as describe_labels
from jax2tf_bridge.publishing._labels import list_label_options as list_label_options
from jax2tf_bridge.publishing._labels import read_configured_model as read_configured_model
from jax2tf_bridge.publishing._manifest import Change
from jax2tf_bridge.publishing._manifest import Origin as Origin
from jax2tf_bridge.publishing._manifest import check_complete as check_complete
from jax2tf_bridge.publishing._manifest import check_published as check_published
from jax2tf_bridge.publishing._programs import CACHE_FOLDER as CACHE_FOLDER
from jax2tf_bridge.publishing._programs import list_program_names as list_program_names
from jax2tf_bridge.publishing._programs import locate_served_cache as locate_served_cache
from jax2tf_bridge.publishing._programs import remove_unused_programs as remove_unused_programs
from jax2tf_bridge.publishing._programs import share_programs as share_programs
from jax2tf_bridge.publishing._versions import NewVersion, latest_version, published_versions
from jax2tf_bridge.publishing._versions import link_files as link_files
from jax2tf_bridge.publishing._versions import publish_version as publish_version

__all__ = [
    "Change",
    "NewVersion",
    "Version",
    "latest_version",
    "list_versions",
    "promote",
    "published_versions",
    "remove_label",
    "rollback",
]
