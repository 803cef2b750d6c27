"""Matches weights to variables by path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge._utils import did_you_mean

_MAX_SHOWN = 20
# The time to compare words grows with their number times the number of lines shown.
_MAX_COMPARED = 2000


@dataclass(frozen=True)
class Matching:
    """Weights matched to variables by path, and what is left over.

    Attributes:
      pairs: maps the name of each target to its path.
      missing: the names of targets without a path.
      unexpected: the paths without a target.
    """

    pairs: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def match(targets: Mapping[str, Sequence[str]], paths: Iterable[str]) -> Matching:
    """Finds the path of each target.

    A target matches the path that equals one of its names. Otherwise it matches the path with the
    same spelling after "." replaces "/" and "_" replaces characters that TensorFlow forbids in
    names, unless another target or path has that spelling.

    Args:
      targets: maps each target to its possible names, the likeliest first; names that two targets
        share are ignored.
      paths: the paths of the leaves, without duplicates.

    >>> match({"w": ["dense/w"], "v": ["v"]}, ["dense.w", "u"])
    Matching(pairs={'w': 'dense.w'}, missing=('v',), unexpected=('u',))
    """
    given = list(paths)
    pairs: dict[str, str] = {}
    open_paths = dict.fromkeys(given)
    ranks = range(max(map(len, targets.values()), default=0))
    for spelling in (_as_it_is, spelt_alike):
        # Counted among all, matched ones included: a leftover must not match a pair's partner.
        by_path = _only(spelling, ((path, path) for path in given))
        for rank in ranks:
            called = ((name, words[rank]) for name, words in targets.items() if rank < len(words))
            for word, name in _only(spelling, called).items():
                path = by_path.get(word)
                if path is not None and path in open_paths and name not in pairs:
                    pairs[name] = path
                    del open_paths[path]
    missing = tuple(name for name in targets if name not in pairs)
    ordered = {name: pairs[name] for name in targets if name in pairs}
    return Matching(ordered, missing, tuple(open_paths))


def spelt_alike(word: str) -> str:
    """Replaces separators in a name, so that "a.b" and "a/b" are equal.

    >>> spelt_alike("layers.0.weight"), spelt_alike("layers/0/weight")
    ('layers/0/weight', 'layers/0/weight')
    """
    keys = word.replace("~1", "/").replace("~0", "~")
    return re.sub(r"[^\w/\-]+", "_", keys.replace(".", "/"), flags=re.ASCII)


def _as_it_is(word: str) -> str:
    return word


def _only(spelling: Callable[[str], str], words: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Maps each spelling that identifies exactly one name to that name."""
    owner: dict[str, str] = {}
    shared = set()
    for name, word in words:
        spelt = spelling(word)
        if owner.setdefault(spelt, name) != name:
            shared.add(spelt)
    return {spelt: name for spelt, name in owner.items() if spelt not in shared}


def differences(
    missing: Mapping[str, str], unexpected: Sequence[str], known: Iterable[str]
) -> list[str]:
    """Writes a line for each missing name and each unexpected path, up to a maximum.

    Args:
      missing: maps names to expected types, as "float32[3,2]"; "" if the type is unknown.
      unexpected: the paths.
      known: all names that may have been meant.
    """
    names, proposals = list(known), list(unexpected)
    lines = []
    for name, described in list(missing.items())[:_MAX_SHOWN]:
        near = did_you_mean(name, _nearest(name, proposals))
        # A path proposed for one name is not proposed for another.
        proposals = [path for path in proposals if not near or path not in near]
        # Weights that are an array without a container have no name.
        label = f"{name:.200}" or "a single array"
        shown = f"{label} ({described})" if described else label
        lines.append(f"{shown} is missing{near}")
    lines += _and_more(len(missing), "are missing")
    for path in unexpected[:_MAX_SHOWN]:
        near = did_you_mean(path, _nearest(path, names)) if path in proposals else ""
        lines.append(f"{path:.200} is not expected{near}")
    lines += _and_more(len(unexpected), "are not expected")
    return lines


def _and_more(count: int, what: str) -> list[str]:
    return [f"{count - _MAX_SHOWN} more {what}"] if count > _MAX_SHOWN else []


def _nearest(word: str, known: Sequence[str]) -> Sequence[str]:
    """Picks the words worth comparing: if there are many, those with the same last part."""
    if len(known) <= _MAX_COMPARED:
        return known
    last = re.split(r"[./]", word)[-1]
    return [other for other in known if other.endswith(last)][:_MAX_COMPARED]


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
    there = set(unexpected)
    for path in unexpected:
        before = path.removesuffix(f"/{missing[0]}")
        if before != path and all(f"{before}/{name}" in there for name in missing):
            return before, ""
    head, _, _ = missing[0].partition("/")
    if all(name.startswith(f"{head}/") and name[len(head) + 1 :] in there for name in missing):
        return "", head
    return "", ""
