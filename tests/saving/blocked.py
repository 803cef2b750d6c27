"""Makes packages impossible to import for a while, where a process without them would take long.

What imports them at its top has done so before: the tests of layers (tests/house) look at that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tests.plugins.pure import Blocker


@contextlib.contextmanager
def blocked(*packages: str) -> Iterator[None]:
    """Behaves as if these packages were neither imported nor installed."""
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] in packages
    }
    blocker = Blocker(packages)
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)
        sys.modules.update(hidden)
