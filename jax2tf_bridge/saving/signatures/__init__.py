"""Signatures: named inputs and outputs around a portable function."""

from jax2tf_bridge.saving.signatures._endpoint import (
    Endpoint,
    PaddedCall,
    WeightedFunction,
    choose_order,
    optional_subsets,
    to_plain_containers,
)
from jax2tf_bridge.saving.signatures._inputs import (
    NamedPort,
    ServedArray,
    Sides,
    SignatureInputs,
    avals_of,
    examples_of,
    served_text,
)
from jax2tf_bridge.saving.signatures._processing import (
    arguments,
    check_preprocess,
    describe_arrays,
    resources,
    with_processing,
)
from jax2tf_bridge.saving.signatures._signature import (
    Padding,
    Processing,
    Signature,
    check_names,
    check_size,
    check_takes_params,
    check_vjp_order,
)

__all__ = [
    "Endpoint",
    "NamedPort",
    "PaddedCall",
    "Padding",
    "Processing",
    "ServedArray",
    "Sides",
    "Signature",
    "SignatureInputs",
    "WeightedFunction",
    "arguments",
    "avals_of",
    "check_names",
    "check_preprocess",
    "check_size",
    "check_takes_params",
    "check_vjp_order",
    "choose_order",
    "describe_arrays",
    "examples_of",
    "optional_subsets",
    "resources",
    "served_text",
    "to_plain_containers",
    "with_processing",
]
