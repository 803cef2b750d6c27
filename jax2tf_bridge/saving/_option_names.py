"""Checks that the options of save name what is there, before any function is exported."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.saving._checks import checked_names
from jax2tf_bridge.saving._processing import check_preprocess
from jax2tf_bridge.saving._signature_inputs import SignatureInputs
from jax2tf_bridge.saving.buckets._options import BucketOptions, check_bucket_options


def check_option_names(
    signatures: Sequence[SignatureInputs], buckets: BucketOptions | None = None
) -> None:
    """Raises where an option names a signature, an input or a dimension variable wrongly.

    What an export can take minutes for is not needed: the inputs' names and symbolic shapes are.

    Args:
      signatures: all of the SavedModel.
      buckets: as in `save`, for all of them.

    Raises:
      SavingError, ShapeError: the text says what was probably meant.
    """
    checked_names({each.name: each.signature for each in signatures})
    for each in signatures:
        check_preprocess(each.name, each.signature)
        each.check_names()
    check_bucket_options(signatures, buckets or BucketOptions())
