"""Reads and writes the sidecar of a SavedModel: facts from save() that saved_model.pb lacks.

The sidecar is assets.extra/jax2tf_bridge.json. The portable functions lie beside it, without their
arrays, which are variables of the SavedModel.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from jax2tf_bridge._dtypes import NEED_X64, dtype_holds
from jax2tf_bridge._utils import JsonProblem, JsonValue, read_number
from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.portable import PortableFunction, is_digest
from jax2tf_bridge.serialization import collect_vjps, read_function, write_function
from jax2tf_bridge.storage import AnyPath

FORMAT = 5
"""Version of the JSON; increased for every change, including new fields."""

SIDECAR = Path("assets.extra", "jax2tf_bridge.json")
RECORDS = Path("assets.extra", "jax2tf_bridge")
MANIFEST = Path("assets.extra", "jax2tf_bridge.manifest.json")
"""Path of the manifest of a published version, see `publishing`."""

_MAX_SIDECAR_BYTES = 1 << 26
MAX_GRADIENT_ORDERS = 200
"""Maximum number of orders of gradients of a signature."""

FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\.jaxfn")
"""Pattern of the file names below RECORDS."""


class NewerFormatError(JsonProblem):
    """The file has a format that this bridge does not know."""


def read_json(file: AnyPath, max_bytes: int) -> JsonValue:
    """Reads a JSON file.

    Raises:
      JsonProblem: it is not a regular file, is too large, or is not JSON in UTF-8.
      OSError: it cannot be read.
    """
    if not file.is_file():
        raise JsonProblem("it is not a regular file")
    size = file.stat().st_size
    if size > max_bytes:
        raise JsonProblem(f"it has {size} bytes, and at most {max_bytes} are read")
    try:
        return JsonValue.of(file.read_bytes().decode())
    except UnicodeDecodeError as e:
        raise JsonProblem(f"byte {e.start} is not UTF-8") from e


def read_format(root: JsonValue, newest: int) -> int:
    """Returns the format number of a file.

    Raises:
      NewerFormatError: it is larger than `newest`; the text follows the path of the file.
      JsonProblem: there is no number.
    """
    version = root.get("format").integer(1)
    if version > newest:
        raise NewerFormatError(
            f"is written by format {version}, this bridge reads up to {newest}: upgrade "
            "jax2tf-bridge."
        )
    return version


@dataclass(frozen=True)
class ArrayEntry:
    """Input or output of a signature.

    Attributes:
      path: the path of the leaf in the function's arguments or result, in Python's syntax; "" if it
        is not a leaf.
      dtype: JAX's name of the dtype, or TensorFlow's if JAX has none.
      shape: the shape as text, with dimension variables: "(b, 28)".
    """

    path: str
    dtype: str
    shape: str


@dataclass(frozen=True)
class SignatureEntry:
    """Signature.

    Attributes:
      inputs: the inputs by name.
      outputs: the outputs by name.
      takes_params: whether the function's first argument is the weights.
      vjp_order: the number of saved orders of gradients.
      buckets: the buckets of each variable, in ascending order; None for any sizes.
      masks: the names of the arguments that padding fills in, which are not inputs.
      unchecked_padding: the variables whose padding the user vouched for, so it was not checked.
      pad_values: the pad values other than 0, by input, in Python's syntax, because JSON has no
        "-inf".
      any_padding: whether sequences may be padded with any values, not only with their pad values.
      batching: the settings with which it joins concurrent requests, by name; None if it does not.
      updates: maps the path of each new weight in the function's result to the path of the weight
        that a call assigns it to, "params['w']".
    """

    inputs: Mapping[str, ArrayEntry]
    outputs: Mapping[str, ArrayEntry]
    takes_params: bool
    vjp_order: int
    buckets: Mapping[str, tuple[int, ...]] | None = None
    masks: Mapping[str, ArrayEntry] = field(default_factory=dict)
    unchecked_padding: tuple[str, ...] = ()
    pad_values: Mapping[str, str] = field(default_factory=dict)
    any_padding: bool = False
    batching: Mapping[str, int] | None = None
    updates: Mapping[str, str] = field(default_factory=dict)

    def pad_numbers(self) -> dict[str, complex]:
        """Returns the pad values as numbers."""
        return {name: read_number(text) for name, text in self.pad_values.items()}

    def only_buckets(self) -> dict[str, tuple[int, ...]]:
        """Returns the buckets of unchecked variables, the only sizes whose results are promised."""
        buckets = self.buckets or {}
        return {v: buckets[v] for v in self.unchecked_padding if v in buckets}


@dataclass(frozen=True)
class VariableEntry:
    """Weight.

    Attributes:
      path: the path in Python's syntax, "params['dense']['kernel']".
      name: the name, "params/dense/kernel".
      key: the key of the variable in the checkpoint.
      dtype: the name of the dtype.
      shape: the sizes in elements.
      trainable: whether it is one of the trainable variables of the SavedModel.
    """

    path: str
    name: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class ConstantEntry:
    """Lifted constant of one or more portable functions.

    Attributes:
      digest: the digest in the portable functions.
      dtype: JAX's name of the dtype.
      shape: the sizes in elements.
      key: the key of the variable in the checkpoint.
    """

    digest: str
    dtype: str
    shape: tuple[int, ...]
    key: str


@dataclass(frozen=True)
class Sidecar:
    """Contents of the sidecar of a SavedModel.

    Attributes:
      bridge: the release of jax2tf-bridge that wrote it.
      tensorflow: the release of TensorFlow that wrote it.
      signatures: the signatures by name.
      variables: the weights, with unique names and keys.
      constants: all lifted constants of the portable functions and their VJPs.
    """

    bridge: str
    tensorflow: str
    signatures: Mapping[str, SignatureEntry]
    variables: tuple[VariableEntry, ...] = ()
    constants: tuple[ConstantEntry, ...] = ()

    def list_updated_variables(self) -> list[VariableEntry]:
        """Lists the weights that calls of signatures change."""
        paths = {path for entry in self.signatures.values() for path in entry.updates.values()}
        return [variable for variable in self.variables if variable.path in paths]


def write_sidecar(
    folder: Path, sidecar: Sidecar, portables: Mapping[str, PortableFunction]
) -> None:
    """Writes the sidecar of a SavedModel, and the portable functions without their arrays.

    Args:
      folder: the folder of saved_model.pb.
      sidecar: the contents of the JSON.
      portables: the function of each signature, with at least as many VJPs as the signature.

    Raises:
      SavingError: the sidecar does not agree with the functions, or cannot be read back.
      SerializationError: a function cannot be written, or has too few VJPs.
      OSError: a file cannot be written.
    """
    files = _choose_file_names(sidecar.signatures)
    try:
        text = _encode(sidecar, files)
        decoded, _ = _decode(JsonValue.of(text))
        if decoded != sidecar:
            raise JsonProblem("it changes when it is read back")
        if sidecar.signatures.keys() != portables.keys():
            raise JsonProblem(
                f"it has the signatures {sorted(sidecar.signatures)}, and the portable functions "
                f"are those of {sorted(portables)}"
            )
        for name, entry in sidecar.signatures.items():
            collect_vjps(portables[name], entry.vjp_order, MAX_GRADIENT_ORDERS)  # exports them
        _check_functions(sidecar, portables)
    except JsonProblem as e:
        raise SavingError(f"{SIDECAR} cannot be written: {e}.") from e
    (folder / RECORDS).mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        order = sidecar.signatures[name].vjp_order
        write_function(folder / RECORDS / file, portables[name], vjp_order=order, arrays=False)
    (folder / SIDECAR).write_text(text, encoding="utf-8")


def read_sidecar(folder: AnyPath) -> tuple[Sidecar, Mapping[str, PortableFunction]] | None:
    """Reads the sidecar of a SavedModel and the function of each signature; None without a sidecar.

    The functions do not contain their arrays (`data` is None); see `Sidecar.constants`.

    Raises:
      FileFormatError: it is damaged, of a newer format, or does not agree with its functions.
      OSError: a file cannot be read.
    """
    file = folder / SIDECAR
    if not file.exists():
        return None
    try:
        sidecar, files = _decode(read_json(file, _MAX_SIDECAR_BYTES))
        portables = {
            name: read_function(_find_record(folder, record)) for name, record in files.items()
        }
        _check_functions(sidecar, portables)
    except NewerFormatError as e:
        raise FileFormatError(f"{file} {e}", file=str(file)) from e
    except JsonProblem as e:
        raise FileFormatError(
            f"{file} is damaged: {e}. Copy the SavedModel anew, or save it again.", file=str(file)
        ) from e
    return sidecar, portables


def needs_x64(portables: Mapping[str, PortableFunction]) -> bool:
    """Returns whether an argument or a result has a dtype that needs jax_enable_x64."""
    return any(
        aval.dtype in NEED_X64
        for portable in portables.values()
        for aval in (*portable.in_avals, *portable.out_avals)
    )


def read_sidecar_facts(folder: AnyPath) -> tuple[Mapping[str, object], str | None]:
    """Reads the JSON of a sidecar without checking its fields.

    Returns:
      The facts, which are empty if the sidecar is missing or cannot be read; and the reason why it
      cannot be read, or None.
    """
    file = folder / SIDECAR
    if not file.exists():
        return {}, None
    try:
        root = read_json(file, _MAX_SIDECAR_BYTES)
        return {name: place.value for name, place in root.items()}, None
    except JsonProblem as e:
        return {}, str(e)


def _choose_file_names(signatures: Iterable[str]) -> dict[str, str]:
    """Chooses a file name for each signature, close to the signature's name."""
    names: dict[str, str] = {}
    used_names: set[str] = set()
    for signature in sorted(signatures):
        plain = unique = re.sub(r"[^A-Za-z0-9_-]+", "_", signature)[:64] or "_"
        number = 1
        while unique.lower() in used_names:  # some file systems ignore case
            number += 1
            unique = f"{plain}_{number}"
        used_names.add(unique.lower())
        names[signature] = f"{unique}.jaxfn"
    return names


def _encode(sidecar: Sidecar, files: Mapping[str, str]) -> str:
    """Encodes the JSON; `files` maps signatures to file names."""
    signatures = {
        name: {"record": files[name], **vars(entry)} for name, entry in sidecar.signatures.items()
    }
    value = {"format": FORMAT, **vars(sidecar), "signatures": signatures}
    try:
        text = json.dumps(_sort(value), indent=2) + "\n"
    except TypeError as e:
        raise JsonProblem(f"JSON cannot hold one of its values: {e}") from e
    if len(text) > _MAX_SIDECAR_BYTES:
        raise JsonProblem(f"it has {len(text)} bytes, and at most {_MAX_SIDECAR_BYTES} are read")
    return text


def _sort(value: Any, *, by_name: bool = True) -> Any:
    """Sorts by name, except for inputs and outputs, which keep the order of the function."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, (list, tuple)):
        return [_sort(element) for element in value]
    if not isinstance(value, Mapping):
        return value
    has_sides = "record" in value
    items = [
        (name, _sort(child, by_name=not (has_sides and name in ("inputs", "outputs"))))
        for name, child in value.items()
    ]
    return dict(sorted(items) if by_name else items)


def _find_record(folder: AnyPath, name: str) -> AnyPath:
    file = folder / RECORDS / name
    if not file.is_file():
        raise JsonProblem(f"it names {RECORDS / name}, which does not exist")
    return file


def _check_functions(sidecar: Sidecar, portables: Mapping[str, PortableFunction]) -> None:
    constants = {(c.digest, c.dtype, c.shape) for c in sidecar.constants}
    for name, portable in portables.items():
        order = sidecar.signatures[name].vjp_order
        functions = collect_vjps(portable, None, MAX_GRADIENT_ORDERS)[: order + 1]
        if len(functions) <= order:
            raise JsonProblem(
                f"the signature {name!r:.80} has gradients to order {order}, and its function "
                f"to order {len(functions) - 1}"
            )
        for constant in chain.from_iterable(f.lifted_constants for f in functions):
            aval = constant.aval
            if (constant.digest, aval.dtype, aval.shape) not in constants:
                raise JsonProblem(
                    f"the function of the signature {name!r:.80} has the lifted constant "
                    f"{constant.name!r:.80}, {aval!s:.80}, with the digest {constant.digest}, "
                    "which is not among the constants"
                )


def _decode(root: JsonValue) -> tuple[Sidecar, dict[str, str]]:
    """Decodes the JSON: the sidecar, and the file name of each signature."""
    version = read_format(root, FORMAT)
    _, bridge, tensorflow, signatures, variables, constants = root.fields(
        "format", "bridge", "tensorflow", "signatures", "variables", "constants"
    )
    entries, files = {}, {}
    for name, place in signatures.items():
        entries[name], files[name] = _decode_signature(place, version)
    _check_unique("signatures: the portable function", files.values())
    sidecar = Sidecar(
        bridge=bridge.text(),
        tensorflow=tensorflow.text(),
        signatures=entries,
        variables=tuple(map(_decode_variable, variables.elements())),
        constants=tuple(map(_decode_constant, constants.elements())),
    )
    _check_unique("variables: the name", [v.name for v in sidecar.variables])
    weight_paths = {v.path for v in sidecar.variables}
    for name, entry in entries.items():
        _check_unique(f"signatures.{name:.80}.updates: the weight", entry.updates.values())
        if unknown := set(entry.updates.values()) - weight_paths:
            raise JsonProblem(
                f"the signature {name!r:.80} updates {min(unknown)!r:.80}, which is not a weight"
            )
    keys = [v.key for v in sidecar.variables] + [c.key for c in sidecar.constants]
    _check_unique("variables and constants: the key", keys)
    return sidecar, files


_SIGNATURE_FIELDS = ("record", "inputs", "outputs", "takes_params", "vjp_order", "buckets")
# Maps fields to the format that added them, and their value for older formats.
_ADDED_FIELDS: Mapping[str, tuple[int, Any]] = {
    "masks": (2, {}),
    "unchecked_padding": (2, []),
    "pad_values": (3, {}),
    "any_padding": (4, False),
    "batching": (4, None),
    "updates": (5, {}),
}


def _decode_signature(place: JsonValue, version: int) -> tuple[SignatureEntry, str]:
    names = [
        *_SIGNATURE_FIELDS,
        *(n for n, (since, _) in _ADDED_FIELDS.items() if version >= since),
    ]
    fields = {name: JsonValue(default, "") for name, (_, default) in _ADDED_FIELDS.items()}
    fields |= dict(zip(names, place.fields(*names), strict=True))
    file, buckets, batching = fields["record"].text(), fields["buckets"], fields["batching"]
    if not FILE_NAME.fullmatch(file):
        raise fields["record"].problem("the name of a .jaxfn file, without a folder")
    entry = SignatureEntry(
        inputs=_decode_arrays(fields["inputs"]),
        outputs=_decode_arrays(fields["outputs"]),
        takes_params=fields["takes_params"].flag(),
        vjp_order=fields["vjp_order"].integer(0, MAX_GRADIENT_ORDERS),
        buckets=None
        if buckets.value is None
        else {name: _decode_sizes(sizes) for name, sizes in buckets.items()},
        masks=_decode_arrays(fields["masks"]),
        unchecked_padding=tuple(name.text() for name in fields["unchecked_padding"].elements()),
        pad_values={name: value.number_text() for name, value in fields["pad_values"].items()},
        any_padding=fields["any_padding"].flag(),
        batching=None
        if batching.value is None
        else {name: value.integer(0) for name, value in batching.items()},
        updates={path: weight.text() for path, weight in fields["updates"].items()},
    )
    for name, value in fields["pad_values"].items():
        if name not in entry.inputs:
            inputs = ", ".join(entry.inputs)
            raise JsonProblem(
                f"{value.path:.200}: expected the name of an input ({inputs:.80}), got {name!r:.80}"
            )
        if not dtype_holds(entry.inputs[name].dtype, read_number(value.text())):
            raise value.problem(f"a number that {entry.inputs[name].dtype:.80} holds")
    return entry, file


def _decode_arrays(place: JsonValue) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(*(value.text() for value in array.fields("path", "dtype", "shape")))
        for name, array in place.items()
    }


def _decode_sizes(place: JsonValue) -> tuple[int, ...]:
    sizes = tuple(size.integer(1) for size in place.elements())
    if not sizes or any(size >= larger for size, larger in pairwise(sizes)):
        raise place.problem("sizes in ascending order")
    return sizes


def _decode_variable(place: JsonValue) -> VariableEntry:
    path, name, key, dtype, shape, trainable = place.fields(
        "path", "name", "key", "dtype", "shape", "trainable"
    )
    return VariableEntry(
        path.text(), name.text(), key.text(), dtype.text(), shape.shape(), trainable.flag()
    )


def _decode_constant(place: JsonValue) -> ConstantEntry:
    digest, dtype, shape, key = place.fields("digest", "dtype", "shape", "key")
    if not is_digest(digest.text()):
        raise digest.problem("a SHA-256 in hexadecimal")
    return ConstantEntry(digest.text(), dtype.text(), shape.shape(), key.text())


def _check_unique(subject: str, texts: Iterable[str]) -> None:
    for text, count in Counter(texts).items():
        if count > 1:
            raise JsonProblem(f"{subject} {text!r:.80} occurs twice")


def format_buckets(buckets: Mapping[str, Iterable[int]]) -> list[str]:
    """Describes the buckets of a signature.

    >>> format_buckets({"b": (1, 8), "n": (128,)})
    ['buckets b 1, 8; n 128']
    """
    texts = (f"{name} {', '.join(map(str, sizes))}" for name, sizes in buckets.items())
    return [f"buckets {'; '.join(texts)}"] if buckets else []


def format_padding(
    pad_values: Mapping[str, str],
    masks: Iterable[str],
    unchecked: Iterable[str],
    *,
    joins_requests: bool = False,
) -> list[str]:
    """Describes options of the padding.

    Args:
      pad_values: the pad values by input, as text.
      masks: the arguments that padding fills in.
      unchecked: the variables whose padding was not checked.
      joins_requests: whether the rows of several requests are padded together.

    >>> format_padding({"ids": "1"}, ["mask"], ["n"])
    ['ids padded with 1', 'mask filled by the buckets', 'not checked: padding of n']
    """
    texts = [f"{name} padded with {value}" for name, value in pad_values.items()]
    mask_names, variables = ", ".join(masks), ", ".join(unchecked)
    texts += [f"{mask_names} filled by the buckets"] if mask_names else []
    texts += [f"not checked: padding of {variables}"] if variables else []
    return texts + (["joins concurrent requests"] if joins_requests else [])
