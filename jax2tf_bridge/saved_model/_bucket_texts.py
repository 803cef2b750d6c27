"""What is said to people of the buckets of a signature: where it is saved and where it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def bucket_texts(buckets: Mapping[str, Iterable[int]]) -> list[str]:
    """The sizes of each variable.

    >>> bucket_texts({"b": (1, 8), "n": (128,)})
    ['buckets b 1, 8; n 128']
    """
    sizes = (f"{name} {', '.join(map(str, found))}" for name, found in buckets.items())
    return [f"buckets {'; '.join(sizes)}"] if buckets else []


def padding_texts(
    pad_values: Mapping[str, str], masks: Iterable[str], unchecked: Iterable[str]
) -> list[str]:
    """What is special about the padding.

    Args:
      pad_values: what inputs are padded with, by name, as text.
      masks: the arguments that the buckets fill.
      unchecked: the variables whose padding was not tried.

    >>> padding_texts({"ids": "1"}, ["mask"], ["n"])
    ['ids padded with 1', 'mask filled by the buckets', 'not checked: padding of n']
    """
    texts = [f"{name} padded with {value}" for name, value in pad_values.items()]
    filled, not_tried = ", ".join(masks), ", ".join(unchecked)
    texts += [f"{filled} filled by the buckets"] if filled else []
    return texts + ([f"not checked: padding of {not_tried}"] if not_tried else [])
