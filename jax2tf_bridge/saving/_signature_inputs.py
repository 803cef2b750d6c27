"""What a signature's function takes, by name: known before the function is exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import KEYS
from jax2tf_bridge.portable._plausible_inputs import variables_in
from jax2tf_bridge.saved_model._signature import Signature
from jax2tf_bridge.saving._names import renamed, valid_names
from jax2tf_bridge.saving.buckets._bucket_names import masks_of


@dataclass(frozen=True)
class SignatureInputs:
    """The inputs of a signature's function, beside the options that name them.

    Attributes:
      name: of the signature.
      signature: what the user asked for.
      inputs: by name, as they cross to TensorFlow; without weights, with masks.
      is_decided: whether the dimension variables are known; AUTO finds them in the export.
    """

    name: str
    signature: Signature
    inputs: Mapping[str, Aval]
    is_decided: bool = True

    def taken(self) -> Mapping[str, Any]:
        """What the saved signature takes, by name: what its preprocess does, if it has one."""
        if self.signature.preprocess is not None:
            return self.signature.inputs
        return {name: aval for name, aval in self.inputs.items() if name not in self.masks}

    @property
    def masks(self) -> tuple[str, ...]:
        """The inputs that the buckets fill."""
        return masks_of(self.name, self.signature.mask)

    @property
    def variables(self) -> frozenset[str]:
        """The dimension variables of the inputs."""
        return frozenset[str]().union(*map(variables_in, self.inputs.values()))

    def check_names(self) -> None:
        """Raises if `example` or `defaults` have a value for what is no input.

        Raises:
          SavingError: they have; or one is no mapping.
          ShapeError: the mask is no name.
        """
        if not isinstance(self.signature.defaults, Mapping):
            raise SavingError(
                f"defaults of the signature {self.name} must be a mapping of values by input. Got: "
                f"{type(self.signature.defaults).__name__}."
            )
        self._check("defaults", self.signature.defaults)
        for example in examples_of(self.name, self.signature):
            self._check("example", example)

    def _check(self, option: str, names: Iterable[str]) -> None:
        known = self.taken()
        for name in names:
            if name in known:
                continue
            place = f"{option} of the signature {self.name} names {name!r}, which"
            if self.signature.preprocess is None and name in self.inputs:
                raise SavingError(f"{place} the buckets fill (mask={name!r}). Leave it out.")
            near = did_you_mean(str(name), known) or "."
            raise SavingError(f"{place} is no input{near} The inputs: {', '.join(known)}.")


def named_inputs(
    name: str, signature: Signature, paths: Sequence[str], avals: Sequence[Aval]
) -> dict[str, Aval]:
    """The arguments of a function without weights by the names of inputs, as they cross.

    Args:
      name: of the signature.
      signature: what the user asked for.
      paths: of the arguments' leaves, as Python writes them.
      avals: of these leaves.

    Raises:
      SavingError: names clash, or are not there; seeds for what are no keys.
    """
    names = renamed(valid_names(paths, "input"), paths, signature.input_names, name, "input")
    if signature.seed == "scalar":
        _check_seeds(name, avals)
        avals = tuple(map(_seed_aval, avals))
    return dict(zip(names, map(crossing, avals), strict=True))


def crossing(aval: Aval) -> Aval:
    """As it crosses to TensorFlow: 4-bit integers as int8, keys as their words."""
    return Aval(aval.op_shape, aval.op_dtype)


def examples_of(name: str, signature: Signature) -> list[Mapping[str, Any]]:
    """The user's examples; of a signature without preprocess at most one.

    Raises:
      SavingError: they are no mappings.
    """
    given: Any = signature.example
    place = f"example of the signature {name} must be a mapping of values by input"
    if signature.preprocess is None and not isinstance(given, Mapping):
        raise SavingError(f"{place}: several are for a signature with a preprocess.")
    examples = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
    for example in examples:
        if not isinstance(example, Mapping):
            raise SavingError(
                f"{place}, or a list of such mappings. Got: {type(example).__name__}."
            )
    return examples


def _check_seeds(name: str, avals: Sequence[Aval]) -> None:
    keys = [aval.dtype for aval in avals if aval.element_shape]
    unknown = [dtype for dtype in keys if dtype not in KEYS]
    if unknown or not keys:
        raise SavingError(
            f"The signature {name} has seed='scalar', and "
            + (f"keys of the type {unknown[0]}" if unknown else "no input that is a key")
            + ": seeds become keys of jax.random.key (threefry2x32, rbg, unsafe_rbg), not those "
            "of jax.random.PRNGKey, which are arrays. Leave out seed, or use such a key."
        )


def _seed_aval(aval: Aval) -> Aval:
    return Aval(aval.shape, "uint32") if aval.dtype in KEYS else aval
