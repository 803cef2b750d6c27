"""Runs each test function with a part of its parameters.

`pytest --every 4` keeps the first set of parameters of each function, the fifth, and so on;
`--every 4 --offset 1` the second, the sixth, and so on. It is for a further pair of JAX and
TensorFlow, where every function should run, and where what one set of parameters finds, another one
would mostly find as well. In the folders of `LITTLE_OF_EITHER` it keeps one of every N tests of a
module.

`pytest --half` keeps every second set of parameters, and leaves out the tests that are marked as
costly; `--rest` keeps the others. Tests of the checkout itself (`WHOLE`) are all in the half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

EVERY, OFFSET, HALF, REST = "--every", "--offset", "--half", "--rest"
WHOLE = "house"
LITTLE_OF_EITHER = frozenset({"cli", "inspecting", "publishing", "saved_model", "storage"})
"""Folders of packages that leave JAX and TensorFlow to other packages.

The tests of those packages find what another release changes.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        EVERY,
        type=int,
        default=1,
        metavar="N",
        help="of the parameter sets of each test function, run one of every N",
    )
    parser.addoption(
        OFFSET,
        type=int,
        default=0,
        metavar="K",
        help="with --every N, which one: from 0, the first, to N - 1",
    )
    parser.addoption(
        HALF, action="store_true", help="half of the parameter sets, and no test marked as costly"
    )
    parser.addoption(REST, action="store_true", help=f"what {HALF} leaves out")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs when marks have been applied, so that what they leave out is not in the sample."""
    half, rest = config.getoption(HALF), config.getoption(REST)
    if half or rest:
        kept = _choose_half(items) if half else {*items} - _choose_half(items)
    else:
        every, offset = config.getoption(EVERY), config.getoption(OFFSET)
        # The pure tests run for the newest Python, which may break any function.
        is_pure = config.getoption("--pure", default=False)
        by_function = _group(items, frozenset() if is_pure else LITTLE_OF_EITHER)
        # A function with few sets has one in the sample as well.
        kept = {
            item for sets in by_function for item in sets[offset % min(every, len(sets)) :: every]
        }
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _group(items: list[pytest.Item], by_module: frozenset[str]) -> Iterable[list[pytest.Item]]:
    """Groups tests by function, in some folders by module."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        of_module = item.path.parent.name in by_module
        groups[item.nodeid.partition("::" if of_module else "[")[0]].append(item)
    return groups.values()


def _choose_half(items: list[pytest.Item]) -> set[pytest.Item]:
    whole = {item for item in items if item.path.parent.name == WHOLE}
    cheap = [item for item in items if not item.get_closest_marker("costly")]
    return whole.union(*(sets[::2] for sets in _group(cheap, frozenset())))
