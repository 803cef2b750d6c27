"""Versions of a model below a root: writes, lists, checks and removes them. Needs no TensorFlow."""

from jax2tf_bridge.publishing._programs import CACHE_FOLDER as CACHE_FOLDER
from jax2tf_bridge.publishing._programs import list_program_names as list_program_names
from jax2tf_bridge.publishing._programs import locate_served_cache as locate_served_cache
from jax2tf_bridge.publishing._programs import share_programs as share_programs
from jax2tf_bridge.publishing._versions import NewVersion, latest_version, published_versions
from jax2tf_bridge.publishing._versions import check_complete as check_complete
from jax2tf_bridge.publishing._versions import publish_version as publish_version

__all__ = ["NewVersion", "latest_version", "published_versions"]
