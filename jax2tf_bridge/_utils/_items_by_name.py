"""Dicts that users index by name: an unknown name is a KeyError that lists the known ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from jax2tf_bridge._utils._texts import unknown_name_text

V = TypeVar("V")


class ItemsByName(dict[str, V]):
    """A dict whose KeyError suggests the nearest names and lists all.

    >>> ItemsByName("signature", {"serve": 1, "embed": 2})["sreve"]
    Traceback (most recent call last):
        ...
    KeyError: "There is no signature 'sreve': did you mean 'serve'? There are: serve, embed."
    """

    def __init__(self, kind: str, items: Mapping[str, V]) -> None:
        """Copies `items`; `kind` says what they are, as "signature"."""
        super().__init__(items)
        self.kind = kind

    def __missing__(self, name: object) -> V:
        raise KeyError(f"There is {unknown_name_text(self.kind, name, self)}")


def name_items(result: Any, **kinds: str) -> None:
    """Replaces mappings among the fields of a frozen dataclass by ItemsByName.

    Args:
      result: the object; call this in its `__post_init__`.
      kinds: the kind of the items, by field.
    """
    for field, kind in kinds.items():
        object.__setattr__(result, field, ItemsByName(kind, getattr(result, field)))
