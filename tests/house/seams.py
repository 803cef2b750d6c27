"""What the tests of the two seams share: taking one private name away, and reading its span."""

from collections.abc import Sequence
from typing import Protocol

import pytest


class Name(Protocol):
    """A private name as a seam lists it."""

    @property
    def module(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def releases(self) -> str: ...
    @property
    def without(self) -> str: ...


def take_away(monkeypatch: pytest.MonkeyPatch, seam: Sequence[Name], *names: str) -> None:
    """Lets the seam find nothing under these names, as in a release that lacks them.

    The names themselves stay where they are: JAX and TensorFlow call them too.
    """
    kind = type(seam[0])
    original = kind.get  # type: ignore[attr-defined]
    assert set(names) <= {entry.name for entry in seam}
    monkeypatch.setattr(
        kind, "get", lambda self: None if self.name in names else original(self), raising=True
    )


def has_release(span: str, release: str) -> bool:
    """Whether "0.8 to 0.12" holds a release as "0.10.2"."""
    first, last = (_key(end) for end in span.split(" to "))
    return first <= _key(release) <= last


def _key(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)
