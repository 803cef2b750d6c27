"""SavedModels from portable functions. Never imports jax."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("Saving a SavedModel"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.saving._assign_weights import Rename, WeightsReport, assign_weights
from jax2tf_bridge.saving._bucket_options import BucketOptions as BucketOptions
from jax2tf_bridge.saving._bucket_options import Buckets, ExpectedSizes
from jax2tf_bridge.saving._options import SaveOptions as SaveOptions
from jax2tf_bridge.saving._publish_weights import map_weights_by_name as map_weights_by_name
from jax2tf_bridge.saving._publish_weights import publish_weights as publish_weights
from jax2tf_bridge.saving._report import Published, SavedModel, SavedSignature
from jax2tf_bridge.saving._save import save_functions as save_functions
from jax2tf_bridge.saving._variables import LITERT_VARIABLES as LITERT_VARIABLES
from jax2tf_bridge.saving._variables import check_prefixes as check_prefixes
from jax2tf_bridge.saving._variables import has_prefix as has_prefix
from jax2tf_bridge.saving._variables import is_trainable as is_trainable
from jax2tf_bridge.saving._variables import read_prefixes as read_prefixes
from jax2tf_bridge.saving._weight_signatures import WEIGHT_SIGNATURES as WEIGHT_SIGNATURES
from jax2tf_bridge.saving._weight_signatures import WeightSignature as WeightSignature
from jax2tf_bridge.saving._weight_signatures import (
    format_served_signature as format_served_signature,
)
from jax2tf_bridge.saving._weight_signatures import has_unused_input as has_unused_input
from jax2tf_bridge.saving.buckets import Oversize, choose_buckets
from jax2tf_bridge.saving.serving import Batching, BatchingParameters, ServingInstructions
from jax2tf_bridge.saving.serving import encode_predict_request as encode_predict_request
from jax2tf_bridge.saving.serving import encode_tensor as encode_tensor
from jax2tf_bridge.saving.serving import read_instructions as read_instructions

__all__ = [
    "Batching",
    "BatchingParameters",
    "Buckets",
    "ExpectedSizes",
    "Oversize",
    "Published",
    "Rename",
    "SavedModel",
    "SavedSignature",
    "ServingInstructions",
    "WeightsReport",
    "assign_weights",
    "choose_buckets",
]
