"""Checks the names in options before an export that can take minutes."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.saving._bucket_options import BucketOptions, check_bucket_options
from jax2tf_bridge.saving.signatures import SignatureInputs, check_preprocess, checked_names


def check_option_names(
    signatures: Sequence[SignatureInputs], buckets: BucketOptions | None = None
) -> None:
    """Raises if an option names an unknown signature, input or dimension variable.

    This needs only the inputs' names and symbolic shapes, not the export, which can take minutes.

    Raises:
      SavingError, ShapeError: the text suggests what was probably meant.
    """
    checked_names({each.name: each.signature for each in signatures})
    for each in signatures:
        check_preprocess(each.name, each.signature)
        each.check_names()
    check_bucket_options(signatures, buckets or BucketOptions())
