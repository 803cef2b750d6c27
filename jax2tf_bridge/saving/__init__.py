"""SavedModels from portable functions. Never imports jax."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "tensorflow":
        raise
    raise MissingDependencyError("TensorFlow", "tensorflow-cpu", "Saving a SavedModel") from e

from jax2tf_bridge.saving._bucket_options import BucketOptions, Buckets, ExpectedSizes
from jax2tf_bridge.saving._option_names import check_option_names
from jax2tf_bridge.saving._report import Published, SavedModel, SavedSignature
from jax2tf_bridge.saving._save import save_functions
from jax2tf_bridge.saving.buckets import Oversize, choose_buckets
from jax2tf_bridge.saving.publishing import (
    NewVersion,
    as_variables,
    check_complete,
    latest_version,
    publish_version,
    publish_weights,
    published_versions,
    weights_by_name,
)
from jax2tf_bridge.saving.serving import BatchingParameters, ServingInstructions
from jax2tf_bridge.saving.signatures import ServedArray, SignatureInputs, check_vjp_order
from jax2tf_bridge.saving.weights import (
    PathWeights,
    Rename,
    WeightsReport,
    assign_weights,
    leaf_names,
    opened,
)
from jax2tf_bridge.weights import is_flat

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
