"""Publishes versions of a model in a directory, each complete or invisible."""

from jax2tf_bridge.saving.publishing._publish_weights import (
    map_weights_by_name,
    publish_weights,
)
from jax2tf_bridge.saving.publishing._versions import (
    NewVersion,
    check_complete,
    latest_version,
    publish_version,
    published_versions,
)

__all__ = [
    "NewVersion",
    "check_complete",
    "latest_version",
    "map_weights_by_name",
    "publish_version",
    "publish_weights",
    "published_versions",
]
