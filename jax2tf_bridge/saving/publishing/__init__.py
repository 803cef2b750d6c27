"""Publishes versions of a model in a directory, each complete or invisible."""

from jax2tf_bridge.saving.publishing._publish import (
    NewVersion,
    latest_version,
    publish_version,
    published_versions,
)
from jax2tf_bridge.saving.publishing._publish_weights import (
    as_variables,
    publish_weights,
    weights_by_name,
)
from jax2tf_bridge.saving.publishing._read_back import check_complete

__all__ = [
    "NewVersion",
    "as_variables",
    "check_complete",
    "latest_version",
    "publish_version",
    "publish_weights",
    "published_versions",
    "weights_by_name",
]
