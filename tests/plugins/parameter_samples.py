"""Runs each test function with a part of its parameters.

`pytest --every 4` keeps the first set of parameters of each function, the fifth, and so on;
`--every 4 --offset 1` the second, the sixth, and so on. It is for a further pair of JAX and
TensorFlow, where every function should run, and where what one set of parameters finds, another one
would mostly find as well. In the folders of `LITTLE_OF_EITHER` it keeps one of every N tests of a
module.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

EVERY, OFFSET = "--every", "--offset"
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs when marks have been applied, so that what they leave out is not in the sample."""
    every, offset = config.getoption(EVERY), config.getoption(OFFSET)
    is_pure = config.getoption("--pure", default=False)
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        # The pure tests run for the newest Python, which may break any function.
        of_module = item.path.parent.name in LITTLE_OF_EITHER and not is_pure
        functions[item.nodeid.partition("::" if of_module else "[")[0]].append(item)
    kept = {
        item
        for sets in functions.values()
        # A function with few sets has one in the sample as well.
        for item in sets[offset % min(every, len(sets)) :: every]
    }
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
