"""SaveOptions: the options of `save`, and their check against the signatures."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.saving._bucket_options import BucketOptions, check_bucket_options
from jax2tf_bridge.saving._weight_signatures import WeightSignature, check_weight_signatures
from jax2tf_bridge.saving.serving import Batching, check_batching, make_no_buckets_error
from jax2tf_bridge.saving.signatures import check_processing
from jax2tf_bridge.signatures import Signature, SignatureInputs


@dataclass(frozen=True)
class SaveOptions:
    """Options of `save` that do not concern an export; `save` explains them.

    Attributes:
      trainable: whether floating-point weights are trainable; or prefixes of the trainable weights'
        names, as "dense".
      vjp_order: the number of orders of gradients to save; by default those that a function holds,
        and at least one.
      buckets: the sizes that the functions run at.
      warm_up: whether to write requests that TensorFlow Serving replays when it loads the model.
      precompile: whether to store the programs that XLA compiles for these requests.
      batching: how the signatures join concurrent requests; None keeps them apart.
      overwrite: whether to replace an existing SavedModel, on disk; nothing else is replaced.
      weight_signatures: further signatures for the weights that signatures change.
      for_litert: whether LiteRT runs the signatures that change weights. It has no locks, and
        variables of few dtypes.
      needs_inputs: whether further signatures without inputs get one, as LiteRT's calibrator needs.
      shares_names: whether outputs may have the names of inputs in a graph for converters, as in
        TensorFlow.js.
    """

    trainable: bool | str | Sequence[str] = True
    vjp_order: int | None = None
    buckets: BucketOptions = field(default_factory=BucketOptions)
    warm_up: bool = True
    precompile: bool = False
    batching: Batching | None = None
    overwrite: bool = False
    weight_signatures: Sequence[WeightSignature] = ()
    for_litert: bool = False
    needs_inputs: bool = False
    shares_names: bool = False

    def check(self, signatures: Sequence[SignatureInputs]) -> None:
        """Checks the options against the signatures' inputs, before exports that take minutes.

        Raises:
          SavingError, ShapeError, DTypeError: an option has a wrong value, names an unknown
            signature, input or dimension variable, or contradicts another.
        """
        _check_vjp_order(self.vjp_order)
        check_batching(self.batching)
        check_signatures({each.name: each.signature for each in signatures})
        check_weight_signatures(self.weight_signatures, [each.name for each in signatures])
        for each in signatures:
            check_processing(each.name, each.signature)
            each.check_value_names()
        check_bucket_options(signatures, self.buckets)
        if self.batching is None or self.buckets.chosen:
            return
        for each in signatures:
            if not each.signature.padding.buckets:
                raise make_no_buckets_error(each.name)


_RESERVED_NAMES = frozenset(
    {"params", "constants", "gradients", "signatures", "resources"}
    | {"unprocessed", "without_batching", "variables", "trainable_variables"}
    | {name for name in dir(tf.Module) if not name.startswith("_")}
)


def check_signatures(signatures: Mapping[str, Signature]) -> None:
    """Checks the names of signatures, and their seeds.

    Raises:
      SavingError: there are none, a loaded model cannot have a method of a name, or a seed is of an
        unknown form.
    """
    if not isinstance(signatures, Mapping) or not signatures:
        raise SavingError(
            f"signatures must be a mapping with at least one signature. Got: {signatures!r}"
        )
    for name in signatures:
        if isinstance(name, str) and keyword.iskeyword(name):
            raise SavingError(
                f"A signature cannot be named {name!r}, a keyword of Python: the loaded model has "
                "a method of that name."
            )
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise SavingError(
                f"A signature cannot be named {name!r}: the loaded model has a method of that "
                "name, so it must be a name of Python that begins with a letter."
            )
        if name in _RESERVED_NAMES:
            raise SavingError(
                f"A signature cannot be named {name!r}: a loaded model has another attribute of "
                "that name."
            )
        if signatures[name].seed not in ("key", "scalar"):
            raise SavingError(
                f"seed of the signature {name} must be 'key' or 'scalar'. "
                f"Got: {signatures[name].seed!r}"
            )


def _check_vjp_order(vjp_order: int | None) -> None:
    if vjp_order is not None and ((number := as_integer(vjp_order)) is None or number < 0):
        raise SavingError(
            Message(Argument("vjp_order"), f" must be an integer, 0 or more. Got: {vjp_order!r}")
        )
