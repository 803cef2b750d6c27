"""Inputs and outputs of signatures by name, with their types in TensorFlow."""

from __future__ import annotations

import itertools
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import KEYS, find_dtype, find_kind
from jax2tf_bridge._utils import array_type_text, did_you_mean
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.portable import Aval, variables_in
from jax2tf_bridge.signatures._signature import Signature, list_masks
from shape_poly import Dim, is_symbolic_dim


@dataclass(frozen=True)
class NamedPort:
    """Input or output of a signature.

    Attributes:
      name: its name in the SavedModel.
      path: the path to the array in the JAX function's arguments or results, in Python's notation.
      aval: its type as an operand or result of the op.
    """

    name: str
    path: str
    aval: Aval


def avals_of(ports: Iterable[NamedPort]) -> dict[str, Aval]:
    """Returns the types of inputs or outputs by name."""
    return {port.name: port.aval for port in ports}


@dataclass(frozen=True)
class SignatureInputs:
    """Inputs of a signature's function, with the options that name them.

    Attributes:
      name: the signature's name.
      signature: the user's Signature.
      ports: all arguments except the weights, with the masks.
      is_decided: whether the dimension variables are known; AUTO finds them during the export.
    """

    name: str
    signature: Signature
    ports: tuple[NamedPort, ...]
    is_decided: bool = True

    @staticmethod
    def of(
        name: str,
        signature: Signature,
        paths: Sequence[str],
        avals: Sequence[Aval],
        *,
        is_decided: bool = True,
    ) -> SignatureInputs:
        """Names the arguments of a function.

        Args:
          name: the signature's name.
          signature: the user's Signature.
          paths: the paths of the arguments' leaves without the weights, in Python's notation.
          avals: the types of these leaves.
          is_decided: whether the dimension variables are known.

        Raises:
          SavingError: names clash or do not exist, or seeds are for arguments that are not keys.
        """
        if signature.seed == "scalar":
            _check_seeds(name, avals)
            avals = tuple(Aval(a.shape, "uint32") if a.dtype in KEYS else a for a in avals)
        ports = name_ports("input", name, signature.input_names, paths, avals)
        return SignatureInputs(name, signature, ports, is_decided)

    @staticmethod
    def of_function(name: str, signature: Signature, takes_params: bool) -> SignatureInputs:
        """Names the arguments of a signature's portable function, without its weights.

        Raises:
          SavingError: as for `of`.
        """
        function = signature.function
        weights = function.in_tree.children[0].children[: int(takes_params)]
        start = sum(child.leaf_count for child in weights)
        paths, avals = function.in_paths()[start:], function.in_avals[start:]
        return SignatureInputs.of(name, signature, paths, avals)

    @cached_property
    def inputs(self) -> dict[str, Aval]:
        """Types of the inputs by name."""
        return avals_of(self.ports)

    def saved_inputs(self) -> Mapping[str, Any]:
        """Returns the inputs of the saved signature: those of its preprocess, if it has one."""
        if self.signature.processing.preprocess is not None:
            return self.signature.processing.inputs
        return {name: aval for name, aval in self.inputs.items() if name not in self.masks}

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the inputs that the buckets fill."""
        return list_masks(self.name, self.signature.padding.mask)

    @property
    def variables(self) -> frozenset[str]:
        """Dimension variables of the inputs."""
        return frozenset[str]().union(*map(variables_in, self.inputs.values()))

    def check_value_names(self) -> None:
        """Checks that `example` and `defaults` have values for known inputs only.

        Raises:
          SavingError: an input is unknown, or `example` or `defaults` is not a mapping.
          ShapeError: the mask is not a name.
        """
        if not isinstance(self.signature.defaults, Mapping):
            raise SavingError(
                f"defaults of the signature {self.name} must be a mapping of values by input. Got: "
                f"{type(self.signature.defaults).__name__}."
            )
        self._check_input_names("defaults", self.signature.defaults)
        for example in list_examples(self.name, self.signature):
            self._check_input_names("example", example)

    def _check_input_names(self, option: str, names: Iterable[str]) -> None:
        inputs = self.saved_inputs()
        for name in names:
            if name in inputs:
                continue
            place = f"{option} of the signature {self.name} names {name!r}, which"
            if self.signature.processing.preprocess is None and name in self.inputs:
                raise SavingError(f"{place} the buckets fill (mask={name!r}). Leave it out.")
            near = did_you_mean(str(name), inputs) or "."
            raise SavingError(f"{place} is not an input{near} The inputs: {', '.join(inputs)}.")


def as_op_aval(aval: Aval) -> Aval:
    """Returns the type of an op's operand or result: int8 for 4-bit integers, words for keys."""
    return Aval(aval.op_shape, aval.op_dtype)


def list_examples(name: str, signature: Signature) -> list[Mapping[str, Any]]:
    """Lists the user's examples.

    Raises:
      SavingError: they are not mappings.
    """
    value: Any = signature.example
    if value is None or (isinstance(value, Mapping) and not value):
        return []
    examples = list(value) if isinstance(value, (list, tuple)) else [value]
    for example in examples:
        if not isinstance(example, Mapping):
            raise SavingError(
                f"example of the signature {name} must be a mapping of values by input, or a list "
                f"of such mappings. Got: {type(example).__name__}."
            )
    return examples


def make_example(
    name: str, signature: Signature, inputs: Mapping[str, ServedArray]
) -> dict[str, np.ndarray]:
    """Makes a value of each input: the user's, or else random floats, and zeros for integers.

    Args:
      name: the signature's name.
      signature: the user's Signature, with `args`, `kwargs` and `example`.
      inputs: the inputs of the saved signature, in the order of the arguments.

    Raises:
      SavingError: the examples are not mappings.
    """
    leaves = _list_argument_leaves(signature)
    values: dict[str, Any] = {}
    if signature.processing.preprocess is None and len(leaves) == len(inputs):
        values = dict(zip(inputs, leaves, strict=True))
    values |= next(iter(list_examples(name, signature)), {})
    rng = np.random.default_rng(0)
    return {key: _make_array(values.get(key), array, rng) for key, array in inputs.items()}


def _list_argument_leaves(signature: Signature) -> list[Any]:
    if "jax" not in sys.modules:  # without JAX, no function has args
        return []
    import jax

    return jax.tree_util.tree_leaves((tuple(signature.args), dict(signature.kwargs)))


_OPEN_SIZE = 2
"""Size of an open dimension without an example."""


def _make_array(value: Any, served: ServedArray, rng: np.random.Generator) -> np.ndarray:
    """Casts a value to the input's dtype if it has the input's kind and rank; else makes an array.

    The array has zeros for integers and bools, and random numbers for other kinds.
    """
    row = find_dtype(served.dtype)
    dtype = np.dtype(object if row is None else row.numpy())
    sizes, kind = served.shape or (), find_kind(served.dtype)
    if value is not None:
        try:
            array = np.asarray(value)
        except TypeError:  # a typed key of jax.random
            pass
        else:
            if find_kind(array.dtype.name) == kind and array.ndim == len(sizes):
                return array.astype(dtype, copy=False)
    shape = [size if isinstance(size, int) else _OPEN_SIZE for size in sizes]
    if kind in ("int", "uint", "bool"):
        return np.zeros(shape, dtype)
    numbers = rng.normal(size=shape)
    return (numbers + 1j * rng.normal(size=shape) if kind == "complex" else numbers).astype(dtype)


def _check_seeds(name: str, avals: Sequence[Aval]) -> None:
    keys = [aval.dtype for aval in avals if aval.element_shape]
    unknown = [dtype for dtype in keys if dtype not in KEYS]
    if unknown or not keys:
        raise SavingError(
            f"The signature {name} has seed='scalar', and "
            + (f"keys of the type {unknown[0]}" if unknown else "no input that is a key")
            + ". Seeds become typed keys of jax.random.key (threefry2x32, rbg, unsafe_rbg); those "
            "of jax.random.PRNGKey are arrays. Leave out seed, or use a typed key."
        )


@dataclass(frozen=True)
class ServedArray:
    """Type of an input or output of a saved signature.

    Attributes:
      dtype: TensorFlow's name of the dtype, as "string".
      shape: a size, a dimension variable or None for each dimension; None if TensorFlow does not
        know the rank.

    >>> str(ServedArray("string", (None,))), str(ServedArray("float32", None))
    ('string[?]', 'float32[...]')
    """

    dtype: str
    shape: tuple[Dim | None, ...] | None

    @staticmethod
    def of_aval(aval: Aval) -> ServedArray:
        """Describes the TensorFlow type of an argument or result of a JAX function."""
        return ServedArray(aval.op_dtype, aval.op_shape)

    @staticmethod
    def of_tensor(tensor: Any) -> ServedArray:
        """Describes a tensor, or a tf.TensorSpec."""
        rank = tensor.shape.rank
        return ServedArray(tensor.dtype.name, None if rank is None else tuple(tensor.shape))

    @property
    def has_open_rows(self) -> bool:
        """True if its first dimension has no fixed size."""
        rows = self.shape[0] if self.shape else 0
        return rows is None or is_symbolic_dim(rows)

    @property
    def has_open_lengths(self) -> bool:
        """True if a dimension after the first has no fixed size."""
        return any(size is None or is_symbolic_dim(size) for size in (self.shape or ())[1:])

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


Sides: TypeAlias = tuple[dict[str, ServedArray], dict[str, ServedArray]]
"""The inputs and outputs of a signature, by name."""


def format_arrays(arrays: Mapping[str, Any]) -> str:
    """Formats arrays by name: "x: float32[b,3], y: string[?]"."""
    return ", ".join(f"{name}: {array}" for name, array in arrays.items())


def make_valid_names(paths: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Makes a unique name that TensorFlow accepts for each path.

    Args:
      paths: the paths, in Python's notation.
      prefix: the prefix of names that would be empty, begin with a digit or be a keyword.

    >>> make_valid_names(["x", "p['w']", "p['w'][0].mean", "p_w"], "input")
    ('x', 'p_w', 'p_w_0_mean', 'p_w_1')
    >>> make_valid_names([""], "output"), make_valid_names(["[0]", "[1]['a b']"], "output")
    (('output_0',), ('output_0', 'output_1_a_b'))
    """
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        plain = re.sub(r"\W+", "_", path, flags=re.ASCII).strip("_") or "0"
        name = unique = plain if _can_be_keyword(plain) else f"{prefix}_{plain}"
        for number in itertools.count(1):
            # TensorFlow compares the names of operations without regard to case.
            if unique.lower() not in taken:
                break
            unique = f"{name}_{number}"
        taken.add(unique.lower())
        names.append(unique)
    return tuple(names)


def name_ports(
    kind: Literal["input", "output"],
    signature: str,
    renames: Mapping[str, str] | Sequence[str],
    paths: Sequence[str],
    avals: Iterable[Aval],
) -> tuple[NamedPort, ...]:
    """Names inputs or outputs by their paths, or as the user named them.

    Args:
      kind: "input" or "output".
      signature: the signature's name, for messages.
      renames: the user's names, by the name that follows from a path, or by path; or one name for
        each path, in order.
      paths: the paths, in Python's notation.
      avals: the types.

    Raises:
      SavingError: names do not exist, clash, or are forbidden by TensorFlow.
    """
    names = make_valid_names(paths, kind)
    argument, where = f"{kind}_names", f"of the signature {signature}"
    if isinstance(renames, str) or not isinstance(renames, (Mapping, Sequence)):
        raise SavingError(
            f"{argument} {where} must be a mapping, or a sequence of one name each. Got: "
            f"{renames!r}"
        )
    if not isinstance(renames, Mapping):
        if len(renames) != len(names):
            raise SavingError(
                f"{argument} {where} must name each of {len(names)} {kind}s "
                f"({', '.join(names)}). Got {len(renames)}: {list(renames)}"
            )
        renames = dict(zip(names, renames, strict=True))
    for old, new in renames.items():
        if old not in names and old not in paths:
            near = did_you_mean(str(old), [*names, *paths]) or "."
            raise SavingError(
                f"{argument} {where} renames {old!r}, which is not an {kind}{near} The {kind}s: "
                f"{', '.join(names)}."
            )
        is_identifier = isinstance(new, str) and new.isascii() and new.isidentifier()
        if not is_identifier or not _can_be_keyword(new):
            raise SavingError(
                f"{argument} {where} has the name {new!r}, which cannot be used: a name begins "
                "with a letter, has only letters, digits and underscores, and is no keyword of "
                "Python."
            )
    final = [
        renames.get(name, renames.get(path, name)) for name, path in zip(names, paths, strict=True)
    ]
    lowered = [name.lower() for name in final]
    for i, name in enumerate(final):
        first = lowered.index(name.lower())
        if first != i:
            raise SavingError(
                f"Two {kind}s {where} are named {name!r}, for {paths[first] or names[first]} and "
                f"{paths[i] or names[i]}: rename one with {argument} (TensorFlow ignores "
                "case)."
            )
    return tuple(map(NamedPort, final, paths, map(as_op_aval, avals)))


def _can_be_keyword(name: str) -> bool:
    return name[0].isalpha() and not keyword.iskeyword(name) and name != "self"
