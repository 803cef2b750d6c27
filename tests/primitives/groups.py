"""Groups of cases that run as one module, and groups that run in a process of their own.

    python -m tests.primitives.groups NAME ...

says which cases of these groups disagree, a line each. XLA keeps what it has compiled, in thousands
of mapped pieces of memory a group; the system has 65530 for a process, beyond which it crashes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tests.primitives.case import Case
from tests.primitives.running import disagreements
from tests.primitives.table import SUBJECTS

_LARGEST_GROUP = 12
_GROUPS_A_PROCESS = 2


def _groups(subject: str, cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    """Cases of one precision."""
    for x64 in (False, True):
        chosen = [case for case in cases if case.x64 == x64]
        for start in range(0, len(chosen), _LARGEST_GROUP):
            name = f"{subject}-{'64' if x64 else '32'}-{start // _LARGEST_GROUP}"
            yield name, chosen[start : start + _LARGEST_GROUP]


GROUPS: dict[str, list[Case]] = {
    name: group for subject, cases in SUBJECTS.items() for name, group in _groups(subject, cases)
}
"""By names as "elementwise-32-0"."""


def processes() -> list[list[str]]:
    """Lists the names of the groups that run in one process, for each process."""
    names = list(GROUPS)
    starts = range(0, len(names), _GROUPS_A_PROCESS)
    return [names[start : start + _GROUPS_A_PROCESS] for start in starts]


def main(names: Sequence[str]) -> None:
    """Prints the disagreements of the groups."""
    for name in names:
        for found in disagreements(GROUPS[name]):
            print(" ".join(str(found).split()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
