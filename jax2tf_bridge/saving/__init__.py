"""SavedModels from portable functions. Never imports jax."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "tensorflow":
        raise
    raise MissingDependencyError("TensorFlow", "tensorflow-cpu", "Saving a SavedModel") from e

from jax2tf_bridge.saving._report import Published, SavedModel, SavedSignature
from jax2tf_bridge.saving._save import save_functions
from jax2tf_bridge.saving.buckets._buckets import Oversize
from jax2tf_bridge.saving.buckets._choice import choose_buckets
from jax2tf_bridge.saving.buckets._options import BucketOptions, Buckets, ExpectedSizes
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
from jax2tf_bridge.saving.serving._instructions import BatchingParameters, ServingInstructions
from jax2tf_bridge.saving.signatures._checks import check_option_names, check_vjp_order
from jax2tf_bridge.saving.signatures._inputs import SignatureInputs
from jax2tf_bridge.saving.signatures._served_arrays import ServedArray
from jax2tf_bridge.saving.weights._assign import Rename, WeightsReport, assign_weights
from jax2tf_bridge.saving.weights._params import PathWeights, opened
from jax2tf_bridge.saving.weights._variables import leaf_names
from jax2tf_bridge.weights._paths import is_flat

__all__ = [
    "BatchingParameters",
    "BucketOptions",
    "Buckets",
    "ExpectedSizes",
    "NewVersion",
    "Oversize",
    "PathWeights",
    "Published",
    "Rename",
    "SavedModel",
    "SavedSignature",
    "ServedArray",
    "ServingInstructions",
    "SignatureInputs",
    "WeightsReport",
    "as_variables",
    "assign_weights",
    "check_complete",
    "check_option_names",
    "check_vjp_order",
    "choose_buckets",
    "is_flat",
    "latest_version",
    "leaf_names",
    "opened",
    "publish_version",
    "publish_weights",
    "published_versions",
    "save_functions",
    "weights_by_name",
]
