"""Progress bars for long work, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["B", "export", "trial"]

Advance: TypeAlias = Callable[[int], None]
"""Called with the additional progress: bytes, or pieces of work."""


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, unit: Unit, *, show: bool | None = None
) -> Iterator[Advance]:
    """Shows a progress bar on stderr during the block.

    Args:
      description: the description of the work, as "writing weights.msgpack".
      total: the number of bytes or pieces of work.
      unit: the unit of `total`; bytes are shown as kB, MB, GB.
      show: True or False; None shows it if stderr is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda amount: None
        return
    # Imported late: most work is too short for a bar.
    from tqdm import tqdm

    scaled = unit == "B"
    with tqdm(
        total=total, desc=description, unit=unit, unit_scale=scaled, file=sys.stderr, leave=False
    ) as bar:

        def advance(amount: int) -> None:
            bar.update(amount)

        yield advance
