"""assign_weights(): puts weights from a state dict or a file into a model's variables."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, did_you_mean, name_items
from jax2tf_bridge.errors import (
    StateDictError,
    StructureError,
    format_bullets,
)
from jax2tf_bridge.portable import is_accepted_as
from jax2tf_bridge.signatures import (
    Matching,
    PathWeights,
    check_value_types,
    find_prefixes,
    format_mismatches,
    match_paths,
    name_paths,
    normalize_separators,
    open_params,
)
from jax2tf_bridge.weights import split_path

Rename: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None]
"""Maps paths of the weights to names of variables."""


@dataclass(frozen=True)
class WeightsReport:
    """Report of `assign_weights`; print it.

    Attributes:
      assigned: maps the name of each variable with a new value to the value's path.
      missing: the names of variables that keep their values because no path fits them.
      unexpected: the paths that fit no variable.
    """

    assigned: Mapping[str, str]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name_items(self, assigned="variable")

    def __str__(self) -> str:
        count = len(self.assigned)
        lines = [f"{count} variable{'' if count == 1 else 's'} assigned"]
        lines += [f"{name} keeps its value: no weight matches it" for name in self.missing]
        lines += [f"{path} matches no variable" for path in self.unexpected]
        return "\n".join(lines)


def assign_weights(
    model: Any, weights: Any, *, partial: bool = False, rename: Rename | None = None
) -> WeightsReport:
    """Puts weights into the variables of a model, by their paths: all, or none if any does not fit.

    For a model that `save` wrote and tf.saved_model.load read, the variables are `params`. In other
    models they are found by attributes, keys and indices, as "layers/0/kernel", and by their names
    in TensorFlow or Keras. If a path is the name of no variable, it is compared again with "." for
    "/", and "_" for characters that TensorFlow forbids in names; ambiguous matches are dropped.

    Arrays are assigned one by one, so only one of them is copied at a time. Variables stay on their
    devices, also those of a tf.distribute.Strategy.

    Args:
      model: a loaded SavedModel, a tf.Module, a Keras model, or a tree of variables.
      weights: the path of a msgpack or safetensors file, an open one, a state dict (any tree of
        mappings, lists and tuples), or a mapping from paths as "params/dense/kernel" to arrays.
        Values are converted if JAX would take them as another dtype (32 bits for 64), and PRNG
        keys to their words. A float32 variable of a model that `save` wrote also takes bfloat16, as
        in models for converters.
      partial: whether variables may keep their values, and paths may fit no variable.
      rename: maps the path of a weight to the name of its variable: a mapping with the paths that
        differ, or a function. A name of None leaves the path out.

    Returns:
      The variables with the paths of their values and, with `partial`, what was left over.

    Raises:
      StructureError: variables get no value, or paths fit no variable; both are listed. With
        `partial`: nothing fits at all.
      ShapeError, DTypeError, ArgumentsError: values differ from their variables in shape, in dtype,
        or in both; each difference is listed.
      FileFormatError: the file has another format, is damaged, or changes.
      OSError: it cannot be read.

    >>> layer = tf.Module()
    >>> layer.kernel = tf.Variable([[0.0, 0.0]])
    >>> print(assign_weights(layer, {"kernel": np.ones((1, 2), np.float32)}))
    1 variable assigned
    >>> layer.kernel.numpy().tolist()
    [[1.0, 1.0]]
    """
    with open_params(weights) as opened, tf.init_scope():
        source = opened if isinstance(opened, PathWeights) else PathWeights.of_state(opened)
        saved = get_saved_weights(model)
        variables = find_variables(model) if saved is None else saved
        paths_by_name = _map_names(source, rename, saved)
        targets = {name: variable.names for name, variable in variables.items()}
        matching = match_paths(targets, paths_by_name)
        if saved is not None and rename is None and matching.missing:
            matching = _match_keys_as_paths(matching, targets, paths_by_name)
        if (matching.missing or matching.unexpected) and not (partial and matching.pairs):
            raise _make_matching_error(matching, variables, source)
        pairs = {name: paths_by_name[path] for name, path in matching.pairs.items()}
        values = []
        for name, path in pairs.items():
            leaf, variable = source.leaves[path], variables[name]
            dtype = variable.dtype.name
            # A model for converters has float32 in place of bfloat16, and does not say so.
            is_accepted = is_accepted_as(leaf, dtype, accepts_bfloat16=saved is not None)
            shape = np.shape(leaf) if variable.shape is None else variable.shape
            values.append((path, leaf, shape, dtype, is_accepted))
        check_value_types(
            f"{_format_owner(source)} do not fit the variables of the model",
            values,
            "Nothing was assigned. Convert them, or leave them out with rename and partial=True.",
        )
        for name, path in pairs.items():
            variables[name].variable.assign(_to_value(source.leaves[path], variables[name].dtype))
    unexpected = tuple(paths_by_name[path] for path in matching.unexpected)
    return WeightsReport(pairs, matching.missing, unexpected)


def _map_names(
    source: PathWeights, rename: Rename | None, saved: Mapping[str, Any] | None
) -> dict[str, str]:
    """Maps the name of the variable for each path to the path."""
    paths = list(source.leaves)
    if rename is None:
        names = paths if saved is None else _name_paths_as_saved(saved, paths)
        return dict(zip(names, paths, strict=True))
    if not isinstance(rename, Mapping) and not callable(rename):
        raise StructureError(
            "rename must be a mapping from paths to names, or a function of a path. Got: "
            f"{rename!r}."
        )
    if isinstance(rename, Mapping):
        unknown = [path for path in rename if path not in source.leaves]
        if unknown:
            near = did_you_mean(unknown[0], source.leaves) or "."
            raise StructureError(
                f"rename has {unknown[0]!r}, which is not a path of the weights{near}"
            )
    paths_by_name: dict[str, str] = {}
    for path in paths:
        name: Any = rename.get(path, path) if isinstance(rename, Mapping) else rename(path)
        if name is None:
            continue
        if not isinstance(name, str):
            raise StructureError(f"rename gives {path} the name {name!r}, which is no text.")
        if name in paths_by_name:
            raise StructureError(
                f"rename gives {paths_by_name[name]} and {path} the same name, {name}."
            )
        paths_by_name[name] = path
    return paths_by_name


def _name_paths_as_saved(saved: Mapping[str, Any], paths: Sequence[str]) -> tuple[str, ...]:
    """Names paths as `save` would.

    Raises:
      StructureError: some names differ only in the number that `save` added, and the model has
        other numbers, so it is unknown which path has which number.
    """
    keys = [_split_path(path) for path in paths]
    names = name_paths(keys)
    alike: dict[str, list[int]] = {}
    for i, own_keys in enumerate(keys):
        alike.setdefault(name_paths([own_keys])[0].lower(), []).append(i)
    for plain, group in alike.items():
        if len(group) == 1:
            continue
        numbered = re.compile(rf"{re.escape(normalize_separators(plain))}(_[0-9]+)?", re.IGNORECASE)
        saved_names = {name for name in saved if numbered.fullmatch(normalize_separators(name))}
        # With "." between the keys, their order, and so the numbers, may differ.
        has_dots = any("." in paths[i] for i in group)
        if saved_names and (has_dots or saved_names != {names[i] for i in group}):
            raise StructureError(
                f"{' and '.join(repr(paths[i]) for i in group[:5])} have the same name in "
                f"TensorFlow, and the model has {', '.join(sorted(saved_names)[:5])}: it is "
                "unknown which belongs to which. Map each with rename={'path': 'name', ...}; None "
                "leaves one out."
            )
    return names


def _match_keys_as_paths(
    matching: Matching, targets: Mapping[str, Sequence[str]], paths_by_name: Mapping[str, str]
) -> Matching:
    """Matches the remaining weights again, where a key such as "layers/0/kernel" is a path."""
    by_path = {path: name for name, path in paths_by_name.items()}
    missing, unexpected = set(matching.missing), set(matching.unexpected)
    further = {
        name: by_path[path]
        for name, path in match_paths(targets, by_path).pairs.items()
        if name in missing and by_path[path] in unexpected
    }
    return Matching(
        {**matching.pairs, **further},
        tuple(name for name in matching.missing if name not in further),
        tuple(name for name in matching.unexpected if name not in further.values()),
    )


def _split_path(path: str) -> tuple[str, ...]:
    try:
        return split_path(path)
    except StateDictError:  # keys of a mapping may be any text
        return tuple(path.split("/"))


def _make_matching_error(
    matching: Matching, variables: Mapping[str, NamedVariable], source: PathWeights
) -> StructureError:
    missing_variables = {name: variables[name] for name in matching.missing}
    types = {n: array_type_text(v.dtype.name, v.shape) for n, v in missing_variables.items()}
    lines = format_mismatches(types, matching.unexpected, variables)
    hints = ["partial=True assigns what fits."] if matching.pairs else []
    if not source.leaves or "" in source.leaves:
        hints = ["These are not a tree of weights. Pass a state dict, or the path of a file."]
    # The last name of a variable is the shortest; it lacks the name of a Keras model.
    last_names = [variable.names[-1] for variable in missing_variables.values()]
    for missing in filter(None, (matching.missing, last_names)):
        path_prefix, name_prefix = find_prefixes(missing, matching.unexpected)
        if path_prefix:
            path = f"{path_prefix}/{missing[0]}"
            rename = f"lambda path: path.removeprefix('{path_prefix}/')"
        # `rename` would add a prefix to all paths, also to those that fit already.
        elif name_prefix and not matching.pairs:
            path = missing[0].removeprefix(f"{name_prefix}/")
            rename = f"lambda path: '{name_prefix}/' + path"
        else:
            continue
        hints.insert(0, f"{path} may belong to {missing[0]}. If so, pass rename={rename}.")
        break
    end = "\n" + " ".join(hints) if hints else ""
    text = f"{_format_owner(source)} do not fit the variables of the model"
    return StructureError(f"{text}:{format_bullets(lines)}{end}")


def _to_value(leaf: Any, dtype: tf.DType) -> Any:
    if isinstance(leaf, (tf.Tensor, tf.Variable)):
        return tf.cast(leaf, dtype)
    return np.asarray(leaf).astype(dtype.as_numpy_dtype, copy=False)


def _format_owner(source: PathWeights) -> str:
    return f"The weights in {source.file}" if source.file else "The weights"


# Modules are trackable objects, and so are models that tf.saved_model.load read.
_TRACKABLE: type = tf.Module.__bases__[0]
_COPIES = "_all_variables"
"""Attribute below which Keras exports a copy of each variable; nothing reads the copies."""
_BOX_SUFFIX = "/value"
"""Last key of a value in a box, such as nnx.Variable or linen.Partitioned."""


@dataclass(frozen=True)
class NamedVariable:
    """Variable of a model.

    Attributes:
      names: its possible names, the likeliest first: the attributes that lead to it, or its name
        in TensorFlow or Keras.
      variable: the variable of TensorFlow or Keras.
    """

    names: tuple[str, ...]
    variable: Any

    @property
    def dtype(self) -> tf.DType:
        """Its dtype; Keras has its name."""
        return tf.as_dtype(self.variable.dtype)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Its sizes, None for open ones; or None if values of any rank can be assigned."""
        shape = tf.TensorShape(self.variable.shape)
        return None if shape.rank is None else tuple(shape.as_list())


def get_saved_weights(model: Any) -> dict[str, NamedVariable] | None:
    """Returns the weights of a loaded model that `save` wrote, by name; None for other models.

    Weights in boxes have a second name without the box, as in state dicts of flax.nnx.
    """
    if isinstance(model, tf.Module) or not isinstance(model, _TRACKABLE):
        return None
    params = getattr(model, "params", None)
    attributes = ("constants", "gradients", "trainable_variables", "variables")
    if not isinstance(params, Mapping) or not all(hasattr(model, name) for name in attributes):
        return None
    return {
        name: NamedVariable(tuple(dict.fromkeys((name, name.removesuffix(_BOX_SUFFIX)))), variable)
        for name, variable in params.items()
    }


def find_variables(model: Any) -> dict[str, NamedVariable]:
    """Returns the variables of a model by their likeliest names.

    Args:
      model: a tf.Module, a Keras model or layer, a model that tf.saved_model.load read, or a tree
        (mappings, lists, tuples) of variables and of these.

    Raises:
      StructureError: it has no variables.
    """
    variables_by_id: dict[int, NamedVariable] = {}
    for names, variable in itertools.chain(_walk(model), _iterate_listed(model)):
        # A second way to a variable is a second name.
        before = variables_by_id.get(id(variable), NamedVariable((), variable))
        all_names = tuple(dict.fromkeys([*before.names, *names]))
        variables_by_id[id(variable)] = NamedVariable(all_names, variable)
    if not variables_by_id:
        raise StructureError(
            f"The {type(model).__name__} has no variables. Expected a tf.Module, a Keras model, a "
            "loaded SavedModel or a tree of tf.Variables; a Keras model has them once it was "
            "built or called."
        )
    return _key_by_name(list(variables_by_id.values()))


def _key_by_name(variables: Sequence[NamedVariable]) -> dict[str, NamedVariable]:
    own_names = {n for v in variables if not _is_unread_copy(v) for n in _own_names(v.variable)}
    by_name: dict[str, NamedVariable] = {}
    for variable in variables:
        if _is_unread_copy(variable) and not own_names.isdisjoint(_own_names(variable.variable)):
            continue
        plain = variable.names[0]
        candidates = itertools.chain([plain], (f"{plain}_{i}" for i in itertools.count(1)))
        by_name[next(name for name in candidates if name not in by_name)] = variable
    return by_name


def _is_unread_copy(variable: NamedVariable) -> bool:
    return _COPIES in variable.names[0].split("/")


def _walk(root: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields every reachable variable with its names, those behind fewer attributes first."""
    count = itertools.count()
    # Private attributes come last: trackers list the objects of public attributes there again.
    queue: list[tuple[int, int, int, str, Any]] = [(0, 0, next(count), "", root)]
    visited = set()
    while queue:
        private, depth, _, path, value = heapq.heappop(queue)
        if _is_variable(value):
            yield [*([path] if path else []), *_own_names(value)], value
            continue
        if id(value) in visited:
            continue
        visited.add(id(value))
        if _is_keras(value) and _keras_weights(value) is not None:
            for names, variable in _keras_variables(value):
                yield [f"{path}/{name}" if path else name for name in names], variable
            continue
        for key, child in _children(value):
            below = f"{path}/{key}" if path else key
            hidden = private + key.startswith("_")
            heapq.heappush(queue, (hidden, depth + 1, next(count), below, child))


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return list(zip(fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return [(str(index), child) for index, child in enumerate(value)]
    if isinstance(value, _TRACKABLE):
        return [(k, v) for k, v in vars(value).items() if not k.startswith("_self_")]
    return []


def _iterate_listed(model: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields the variables that a model lists, by their own names."""
    listed = () if _is_keras(model) else getattr(model, "variables", ())
    if isinstance(listed, (list, tuple)):
        for variable in filter(_is_variable, listed):
            yield _own_names(variable), variable


def _keras_variables(model: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields the weights of a Keras model or layer, also without the prefix of the model's name."""
    prefix = f"{model.name}/"
    for variable in _keras_weights(model) or ():
        names = _own_names(variable)
        yield [*names, *(n.removeprefix(prefix) for n in names if n.startswith(prefix))], variable


def _keras_weights(value: Any) -> Sequence[Any] | None:
    """Returns the variables of a Keras object; None if it does not list them."""
    # Optimizers and metrics have no weights; some that TensorFlow loads list nothing.
    name = "weights" if hasattr(type(value), "weights") else "variables"
    try:
        variables = getattr(value, name, None)
    except ValueError:  # Keras 2 raises it for a model that is not built
        return ()
    return variables if isinstance(variables, (list, tuple)) else None


def _own_names(variable: Any) -> list[str]:
    """Returns Keras 3's path, or TensorFlow's name without the suffix ":0"."""
    path = getattr(variable, "path", None)
    return [path if isinstance(path, str) else variable.name.partition(":")[0]]


def _is_variable(value: Any) -> bool:
    """Returns whether a value is a variable of TensorFlow or of Keras."""
    # Keras's optimizers have `assign` as well, but no shape.
    is_keras = _is_keras(value) and hasattr(value, "assign") and hasattr(value, "shape")
    return isinstance(value, tf.Variable) or is_keras


def _is_keras(value: Any) -> bool:
    # The comparison by name avoids importing Keras.
    modules = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return bool(modules & {"keras", "tf_keras"}) and hasattr(value, "name")
