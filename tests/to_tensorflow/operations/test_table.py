"""The rows of the tables have emitters, and the emitters have rows."""

from collections import Counter

# Private: the rows are compared with the emitters.
from jax2tf_bridge._operations import COMPOSITES, CUSTOM_CALLS, OPERATIONS
from jax2tf_bridge.emitters.operations import OPERATION_EMITTERS


def test_each_row_has_one_emitter() -> None:
    rows = Counter(name for name, row in OPERATIONS.items() if row.in_tensorflow)
    del rows["dot"]  # the rewriting makes dot_general of it
    rows.update(COMPOSITES.keys())
    rows.update(target for target, row in CUSTOM_CALLS.items() if row.in_tensorflow)
    emitters = Counter(name for each in OPERATION_EMITTERS for name in each.names)
    # The rewriting makes those of TensorFlow, which no module has.
    assert rows == Counter({n: c for n, c in emitters.items() if not n.startswith("tensorflow.")})
