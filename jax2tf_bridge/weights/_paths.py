"""Paths in nested state dicts, such as "params/layers_0/kernel", and flat dicts by path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax2tf_bridge.errors import StateDictError

# Syntax of a key in the paths of join_path.
_WRITTEN_KEY = re.compile(r"(?:[^~/]|~[01])+|~", re.DOTALL)


def join_path(keys: Sequence[str]) -> str:
    """Joins keys to a path; no keys give "", the path of the whole state.

    In keys, "~" is escaped as "~0" and "/" as "~1", like in JSON pointers. An empty key becomes
    "~". So different sequences of keys have different paths.

    >>> join_path(["params", "layers_0", "kernel"]), join_path(["a/b", "c"]), join_path([""])
    ('params/layers_0/kernel', 'a~1b/c', '~')
    """
    return "/".join(key.replace("~", "~0").replace("/", "~1") or "~" for key in keys)


def split_path(path: str) -> tuple[str, ...]:
    """Splits a path of join_path into its keys.

    Raises:
      StateDictError: the path is invalid.

    >>> split_path("params/a~1b"), split_path("")
    (('params', 'a/b'), ())
    """
    if not isinstance(path, str):
        raise StateDictError(
            f"{path!r} is not a path of a state dict: expected text, got {type(path).__name__}. "
            "Write it as text, such as 'params/kernel'."
        )
    parts = path.split("/") if path else []
    for part in parts:
        if not _WRITTEN_KEY.fullmatch(part):
            fault = f"{part!r} has a '~' without 0 or 1 behind it" if part else "a key is missing"
            raise StateDictError(
                f"{path!r} is not a path of a state dict: {fault}. Write '/' between keys, '~1' "
                "for a '/' and '~0' for a '~' within a key, and '~' for a key that is empty.",
                path=path,
            )
    return tuple(
        "" if part == "~" else part.replace("~1", "/").replace("~0", "~") for part in parts
    )


def path_below(path: str, further: str) -> str:
    """Joins two paths; either may be "".

    >>> path_below("params", "dense/kernel"), path_below("", "params")
    ('params/dense/kernel', 'params')
    """
    return "/".join(part for part in (path, further) if part)


def walk(root: Any, visit: Callable[[Any, Sequence[str]], Iterable[tuple[str, Any]]]) -> None:
    """Walks a tree of any depth, depth first, without recursion.

    Args:
      root: the root of the tree.
      visit: called with an item and the keys of its path; returns the item's children by key.
    """
    keys: list[str] = []
    stack = [iter(visit(root, keys))]
    while stack:
        del keys[len(stack) - 1 :]
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        else:
            key, item = entry
            keys.append(key)
            children = visit(item, keys)
            if children:
                stack.append(iter(children))


def flatten_state(state: Any) -> dict[str, Any]:
    """Maps the paths of a nested state dict to its leaves, in order.

    The keys of lists, tuples and named tuples are indices and fields, as in to_state_dict. Empty
    containers become {}; an empty `state` gives no leaves. A `state` that is a leaf itself has the
    path "". Leaves are not copied.

    Args:
      state: a state dict, or any tree of mappings, lists, tuples and named tuples.

    Raises:
      StateDictError: the tree contains itself, or two keys of a mapping are the same text.

    >>> flatten_state({"params": {"kernel": 1.5, "a/b": 2}, "counts": [3, 4], "stats": {}})
    {'params/kernel': 1.5, 'params/a~1b': 2, 'counts/0': 3, 'counts/1': 4, 'stats': {}}
    """
    flat: dict[str, Any] = {}
    entered: set[int] = set()

    def visit(value: Any, keys: Sequence[str]) -> Iterable[tuple[str, Any]]:
        children = _list_children(value, keys)
        if children is None:
            flat[join_path(keys)] = value
        elif value:
            return enter(value, children, keys)
        elif keys:
            flat[join_path(keys)] = {}
        return ()

    def enter(
        value: Any, children: Iterable[tuple[str, Any]], keys: Sequence[str]
    ) -> Iterator[tuple[str, Any]]:
        if id(value) in entered:
            raise make_cycle_error(join_path(keys))
        entered.add(id(value))
        yield from children
        entered.discard(id(value))

    walk(state, visit)
    return flat


def unflatten_state(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nests leaves by their paths: the inverse of flatten_state.

    Lists and tuples become dicts, as in to_state_dict; from_state_dict converts them back.

    Args:
      flat: leaves by their paths.

    Returns:
      Nested dicts, in the order of the paths; the leaf itself if its path is "".

    Raises:
      StateDictError: a path is invalid, or leads through another path's leaf.

    >>> unflatten_state({"params/dense/kernel": 1.5, "params/dense/bias": 2})
    {'params': {'dense': {'kernel': 1.5, 'bias': 2}}}
    """
    root: dict[str, Any] = {}
    # The ids of the dicts created here: leaves may be dicts, too, and must not change.
    created = {id(root)}
    for path, leaf in flat.items():
        keys = split_path(path)
        if not keys:
            if len(flat) > 1:
                _refuse_overlap("", next(nested for nested in flat if nested))
            whole: dict[str, Any] = leaf
            return whole
        node = root
        for depth, key in enumerate(keys[:-1], start=1):
            if key not in node:
                node[key] = {}
                created.add(id(node[key]))
            elif id(node[key]) not in created:
                _refuse_overlap(join_path(keys[:depth]), path)
            node = node[key]
        if keys[-1] in node:
            _refuse_overlap(path, next(p for p in flat if p.startswith(f"{path}/")))
        node[keys[-1]] = leaf
    return root


def is_flat(state: Mapping[Any, Any]) -> bool:
    """Returns whether the keys are paths: no value is a container, and some key has a slash."""
    nested = any(isinstance(value, (Mapping, list, tuple)) for value in state.values())
    return not nested and any("/" in str(key) for key in state)


def make_cycle_error(path: str) -> StateDictError:
    return StateDictError(
        f"{path or 'at the top'}: the container contains itself. Remove the reference, or replace "
        "it by a copy.",
        path=path,
    )


def check_keys_differ(keys: Iterable[Any], path: Callable[[], str]) -> None:
    """Checks that the keys of a dict at `path` have different texts.

    Raises:
      StateDictError: two keys have the same text.
    """
    first: dict[str, Any] = {}
    for key in keys:
        earlier = first.setdefault(str(key), key)
        if earlier is not key:
            raise StateDictError(
                f"{path() or 'at the top'}: the keys {earlier!r} and {key!r} are the same text, "
                "and the keys of a state dict are text. Rename one of them.",
                path=path(),
            )


def _list_children(value: Any, keys: Sequence[str]) -> Iterable[tuple[str, Any]] | None:
    """Returns the children of a container by their keys; None for a leaf."""
    if isinstance(value, Mapping):
        check_keys_differ(value, lambda: join_path(keys))
        return ((str(key), child) for key, child in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, (list, tuple)):
        return ((str(index), child) for index, child in enumerate(value))
    return None


def _refuse_overlap(path: str, beyond: str) -> None:
    raise StateDictError(
        f"There is a leaf at {path!r}, and another one below it at {beyond!r}. A path holds a leaf "
        "or a dict: rename or remove one of them.",
        path=path,
    )
