"""Runs each test function with a part of its parameters.

`pytest --every 4` keeps the first set of parameters of each function, the fifth, and so on. It is
for a further pair of JAX and TensorFlow, where every function should run, and where what one set of
parameters finds, another one would mostly find as well.
"""

from __future__ import annotations

from collections import Counter

import pytest

OPTION = "--every"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        type=int,
        default=1,
        metavar="N",
        help="of the parameter sets of each test function, run the first and each Nth after it",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs when marks have been applied, so that what they leave out is not in the sample."""
    every = config.getoption(OPTION)
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        (kept if seen[function] % every == 0 else left_out).append(item)
        seen[function] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
