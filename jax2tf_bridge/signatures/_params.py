"""Reads the weights that save, publish and assign_weights take, and matches them by path."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import StateDictError, StructureError, format_bullets
from jax2tf_bridge.portable import TreeSpec
from jax2tf_bridge.storage import as_path
from jax2tf_bridge.weights import (
    LeafInfo,
    WeightsFile,
    flatten_state,
    is_flat,
    join_path,
    open_weights,
    read_weights,
    to_state_dict,
    unflatten_state,
)
from jax2tf_bridge.weights.msgpack import is_jax_array


class ArrayInFile:
    """Array of an open file; NumPy reads it when needed.

    Attributes:
      shape, dtype: the shape and dtype in the file.
    """

    def __init__(self, file: WeightsFile, path: str, info: LeafInfo) -> None:
        """Represents the array at a path of a file."""
        self._file, self._path = file, path
        self.shape, self.dtype = info.shape, info.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self._file[self._path], dtype)
        return array.copy() if copy else array


class PathWeights:
    """Weights by their paths in a file or a state dict.

    Attributes:
      leaves: the value at each path; an array of a file is read when it is used.
      file: the file's name; "" for a state dict.
    """

    def __init__(self, leaves: Mapping[str, Any], file: str = "", tree: Any = None) -> None:
        """Drops leaves that are None or empty containers.

        Args:
          leaves: the values by path.
          file: the file's name.
          tree: the stored weights, if they are not a state dict.
        """
        self.leaves = {
            path: leaf
            for path, leaf in leaves.items()
            if leaf is not None and not (isinstance(leaf, (dict, list, tuple)) and not leaf)
        }
        self.file, self._tree = file, tree

    def tree(self) -> Any:
        """Returns the weights as stored, or in nested dicts.

        In dicts that represent long lists, "10" comes after "9".

        Raises:
          StateDictError: a path leads through a leaf.
        """
        if self._tree is not None:
            return self._tree
        return _sort_numbered(
            unflatten_state(
                {
                    path: np.asarray(leaf) if isinstance(leaf, ArrayInFile) else leaf
                    for path, leaf in self.leaves.items()
                }
            )
        )

    @staticmethod
    def of_file(file: WeightsFile) -> PathWeights:
        """Takes the leaves of an open file."""
        leaves = {
            path: file[path] if info.dtype is None else ArrayInFile(file, path, info)
            for path, info in file.info.items()
        }
        return PathWeights(leaves, file.file)

    @staticmethod
    def of_checkpoint(path: str | os.PathLike[str]) -> PathWeights:
        """Reads a checkpoint of Orbax, which may contain lists and dicts."""
        tree = read_weights(path)
        return PathWeights(flatten_state(tree), os.fspath(path), tree)

    @staticmethod
    def of_state(state: Any) -> PathWeights:
        """Flattens a state dict, an object that has one, or a mapping of paths.

        PRNG keys become their uint32 words, because models have those.

        Raises:
          StateDictError: it contains itself, or two of its keys have the same text.
        """
        if isinstance(state, Mapping) and is_flat(state):
            leaves = {str(path): leaf for path, leaf in state.items()}
        else:
            leaves = flatten_state(to_state_dict(state))
        return PathWeights({path: _key_to_words(leaf) for path, leaf in leaves.items()})


def _is_key(leaf: Any) -> bool:
    return is_jax_array(leaf) and str(leaf.dtype).startswith("key<")


def _key_to_words(leaf: Any) -> Any:
    if not _is_key(leaf):
        return leaf
    jax: Any = sys.modules["jax"]
    return jax.random.key_data(leaf)


def keys_as_words(params: Any) -> Any:
    """Replaces PRNG keys among the weights by their uint32 words."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return params
    try:
        leaves = jax.tree_util.tree_leaves(params)
    except ValueError:
        return params  # matching the weights reports keys that JAX cannot sort
    if not any(map(_is_key, leaves)):
        return params
    return jax.tree_util.tree_map(_key_to_words, params)


def _sort_numbered(state: Any) -> Any:
    """Sorts "10" after "9" in nested dicts; JAX sorts the keys of a dict, but no OrderedDict's."""
    if not isinstance(state, dict):
        return state
    items = {key: _sort_numbered(value) for key, value in state.items()}
    numbers = [str(i) for i in range(len(items))]
    if len(items) > 10 and items.keys() == set(numbers):
        return OrderedDict((number, items[number]) for number in numbers)
    return items


@contextlib.contextmanager
def open_params(weights: Any) -> Iterator[Any]:
    """Yields the weights; opens the file or checkpoint if they are a path.

    Raises:
      FileFormatError: it is neither a weights file nor a checkpoint of Orbax, or it is damaged.
      MissingDependencyError: it is a checkpoint, and orbax-checkpoint is not installed.
      OSError: it cannot be read.
    """
    if isinstance(weights, (str, os.PathLike)) and as_path(weights).is_dir():
        yield PathWeights.of_checkpoint(weights)
    elif isinstance(weights, (str, os.PathLike)):
        with open_weights(weights) as file:
            yield PathWeights.of_file(file)
    elif isinstance(weights, WeightsFile):
        yield PathWeights.of_file(weights)
    else:
        yield weights


def match_leaves(tree: TreeSpec, params: Any, what: str, root: str) -> list[Any]:
    """Returns the leaves of the weights in the order of a structure.

    A pytree with the structure is flattened. Anything else is treated as a state dict: leaves are
    matched by path, where lists are dicts with keys "0", "1", and named tuples are dicts.

    Args:
      tree: the structure.
      params: a pytree, a state dict, or a result of `open_params`.
      what: the target of the weights, for messages: "the argument params of predict".
      root: the prefix of a leaf's path, for messages.

    Raises:
      StructureError: the structure or the paths differ; each difference is listed.
    """
    if isinstance(params, PathWeights):
        return _match_leaves_by_path(tree, params, what)
    try:
        return tree.flatten(params, root)
    except StructureError as e:
        if not isinstance(params, Mapping):
            raise
        try:
            source = PathWeights.of_state(params)
        except StateDictError:
            raise e from None
        matching = match_paths(_list_targets(tree), source.leaves)
        if not matching.missing and not matching.unexpected:
            return [source.leaves[path] for path in matching.pairs.values()]
        if is_flat(params) or (matching.pairs and not _is_dict_tree(tree)):
            return _match_leaves_by_path(tree, source, what)
        raise


def _match_leaves_by_path(tree: TreeSpec, source: PathWeights, what: str) -> list[Any]:
    targets = _list_targets(tree)
    matching = match_paths(targets, source.leaves)
    if matching.missing or matching.unexpected:
        owner = f"The weights in {source.file}" if source.file else "params"
        lines = format_mismatches(dict.fromkeys(matching.missing, ""), matching.unexpected, targets)
        hint = _format_hint(matching.missing, matching.unexpected, source.file)
        raise StructureError(f"{owner} do not fit {what}:{format_bullets(lines)}\n{hint}")
    return [source.leaves[matching.pairs[name]] for name in targets]


def _format_hint(missing: Sequence[str], unexpected: Sequence[str], file: str) -> str:
    read = f"read_weights({file!r})" if file else "params"
    path_prefix, name_prefix = find_prefixes(missing, unexpected)
    if path_prefix:
        keys = "".join(f"[{key!r}]" for key in path_prefix.split("/"))
        return f"The weights lie below {path_prefix!r} there: pass params={read}{keys}."
    if name_prefix:
        return (
            f"The function has them below {name_prefix!r}: pass params={{{name_prefix!r}: {read}}}."
        )
    if not missing:
        return f"To leave some out, pass a part of them, as params={read}['params']."
    return "Pass the weights that it was exported with, or export it for these."


def _is_dict_tree(tree: TreeSpec) -> bool:
    return tree.kind in ("leaf", "dict") and all(map(_is_dict_tree, tree.children))


def _list_targets(tree: TreeSpec) -> dict[str, tuple[str, ...]]:
    """Returns the paths of the leaves in a state dict, each with its alternative path.

    Raises:
      StructureError: two leaves have the same path.
    """
    targets: dict[str, tuple[str, ...]] = {}
    for keys, short in iterate_leaf_keys(tree):
        path = join_path(list(map(str, keys)))
        if path in targets:
            raise StructureError(
                f"Two of the weights have the path {path!r} in a state dict: two keys of a dict "
                "have the same text. Pass a pytree of the structure, not a state dict or a file."
            )
        targets[path] = (path, join_path(list(map(str, short))))
    return targets


def iterate_leaf_keys(
    tree: TreeSpec, keys: tuple[Any, ...] = (), short: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yields the keys that lead to each leaf: all of them, and those without boxes.

    A box is a custom node around a single value, such as nnx.Variable.
    """
    if tree.kind == "leaf":
        yield keys, short
    is_box = tree.kind == "custom" and [child.kind for child in tree.children] == ["leaf"]
    for key, child in zip(tree.keys or range(len(tree.children)), tree.children, strict=True):
        yield from iterate_leaf_keys(child, (*keys, key), short if is_box else (*short, key))


_MAX_SHOWN = 20
"""Maximum number of lines for missing names, and for unexpected paths."""
_MAX_COMPARED = 2000
"""Maximum number of words to compare with each shown word, to limit the time."""


@dataclass(frozen=True)
class Matching:
    """Targets matched to the paths of weights, and both without a match.

    Attributes:
      pairs: maps the name of each target to its path.
      missing: the names of targets without a path.
      unexpected: the paths without a target.
    """

    pairs: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def match_paths(targets: Mapping[str, Sequence[str]], paths: Iterable[str]) -> Matching:
    """Finds the path of each target.

    A target matches the path that equals one of its names. Otherwise it matches the path with the
    same spelling after "." replaces "/" and "_" replaces characters that TensorFlow forbids in
    names, unless another target or path has that spelling.

    Args:
      targets: maps each target to its possible names, the likeliest first; names that two targets
        share are ignored.
      paths: the paths of the leaves, without duplicates.

    >>> match_paths({"w": ["dense/w"], "v": ["v"]}, ["dense.w", "u"])
    Matching(pairs={'w': 'dense.w'}, missing=('v',), unexpected=('u',))
    """
    all_paths = list(paths)
    pairs: dict[str, str] = {}
    open_paths = dict.fromkeys(all_paths)
    ranks = range(max(map(len, targets.values()), default=0))
    for normalize in (str, normalize_separators):
        # Matched paths count as well: a spelling that they share with another path is ambiguous.
        paths_by_spelling = _map_unique(normalize, ((path, path) for path in all_paths))
        for rank in ranks:
            words = ((name, names[rank]) for name, names in targets.items() if rank < len(names))
            for spelling, name in _map_unique(normalize, words).items():
                path = paths_by_spelling.get(spelling)
                if path is not None and path in open_paths and name not in pairs:
                    pairs[name] = path
                    del open_paths[path]
    missing = tuple(name for name in targets if name not in pairs)
    ordered = {name: pairs[name] for name in targets if name in pairs}
    return Matching(ordered, missing, tuple(open_paths))


def normalize_separators(word: str) -> str:
    """Replaces separators in a name, so that "a.b" and "a/b" are equal.

    >>> normalize_separators("layers.0.weight"), normalize_separators("layers/0/weight")
    ('layers/0/weight', 'layers/0/weight')
    """
    keys = word.replace("~1", "/").replace("~0", "~")
    return re.sub(r"[^\w/\-]+", "_", keys.replace(".", "/"), flags=re.ASCII)


def _map_unique(
    normalize: Callable[[str], str], words: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Maps each spelling that identifies exactly one name to that name."""
    names: dict[str, str] = {}
    ambiguous = set()
    for name, word in words:
        spelling = normalize(word)
        if names.setdefault(spelling, name) != name:
            ambiguous.add(spelling)
    return {spelling: name for spelling, name in names.items() if spelling not in ambiguous}


def format_mismatches(
    missing: Mapping[str, str], unexpected: Sequence[str], known: Iterable[str]
) -> list[str]:
    """Writes a line for each missing name and for each unexpected path, up to a maximum.

    Args:
      missing: maps names to expected types, as "float32[3,2]"; "" if the type is unknown.
      unexpected: the paths.
      known: all names that may have been meant.
    """
    names, proposals = list(known), list(unexpected)
    lines = []
    for name, type_text in list(missing.items())[:_MAX_SHOWN]:
        near = did_you_mean(name, _limit_words(name, proposals))
        # A path proposed for one name is not proposed for another.
        proposals = [path for path in proposals if not near or path not in near]
        # Weights that are an array without a container have no name.
        label = f"{name:.200}" or "a single array"
        lines.append(f"{label}{f' ({type_text})' if type_text else ''} is missing{near}")
    lines += _count_hidden(len(missing), "are missing")
    for path in unexpected[:_MAX_SHOWN]:
        near = did_you_mean(path, _limit_words(path, names)) if path in proposals else ""
        lines.append(f"{path:.200} is not expected{near}")
    lines += _count_hidden(len(unexpected), "are not expected")
    return lines


def _count_hidden(count: int, what: str) -> list[str]:
    return [f"{count - _MAX_SHOWN} more {what}"] if count > _MAX_SHOWN else []


def _limit_words(word: str, words: Sequence[str]) -> Sequence[str]:
    """Returns the words to compare with a word: of many, those with the same last key."""
    if len(words) <= _MAX_COMPARED:
        return words
    last_key = re.split(r"[./]", word)[-1]
    return [each for each in words if each.endswith(last_key)][:_MAX_COMPARED]


def find_prefixes(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str]:
    """Finds a prefix that all paths have and the missing names lack, or the other way round.

    Returns:
      The prefix that only the paths have, and the prefix that only the names have; one or both
      are "".

    >>> find_prefixes(["w", "b"], ["params/w", "params/b", "step"])
    ('params', '')
    >>> find_prefixes(["params/w"], ["w"])
    ('', 'params')
    """
    if not missing:
        return "", ""
    paths = set(unexpected)
    for path in unexpected:
        prefix = path.removesuffix(f"/{missing[0]}")
        if prefix != path and all(f"{prefix}/{name}" in paths for name in missing):
            return prefix, ""
    prefix, _, _ = missing[0].partition("/")
    if all(name.startswith(f"{prefix}/") and name[len(prefix) + 1 :] in paths for name in missing):
        return "", prefix
    return "", ""
