"""Publishes versions of a model in a directory, each complete or invisible."""

from jax2tf_bridge.saving.publishing._publish_weights import (
    map_weights_by_name as map_weights_by_name,
)
from jax2tf_bridge.saving.publishing._publish_weights import publish_weights as publish_weights
from jax2tf_bridge.saving.publishing._versions import NewVersion as NewVersion
from jax2tf_bridge.saving.publishing._versions import check_complete as check_complete
from jax2tf_bridge.saving.publishing._versions import latest_version as latest_version
from jax2tf_bridge.saving.publishing._versions import publish_version as publish_version
from jax2tf_bridge.saving.publishing._versions import published_versions as published_versions
