"""Takes private names away from a seam, for tests of what happens without them."""

from collections.abc import Sequence

import pytest

from jax2tf_bridge._utils import SeamName


def take_away(monkeypatch: pytest.MonkeyPatch, seam: Sequence[SeamName], *names: str) -> None:
    """Lets the seam find nothing under these names, as in a release that lacks them.

    The names themselves stay where they are: JAX and TensorFlow call them too.
    """
    original = SeamName.get
    assert set(names) <= {entry.name for entry in seam}
    monkeypatch.setattr(
        SeamName, "get", lambda self: None if self.name in names else original(self)
    )
