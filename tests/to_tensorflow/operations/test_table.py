"""The table of operations that exports read has the operations with emitters, and no others."""

from jax2tf_bridge.targets import _tensorflow_operations as told
from jax2tf_bridge.to_tensorflow.operations._custom_calls import COMPOSITES, TARGETS
from jax2tf_bridge.to_tensorflow.operations._table import EMITTERS


def test_operations() -> None:
    of_stablehlo = {name for name in EMITTERS if not name.startswith("tensorflow.")}
    assert of_stablehlo == told.OPERATIONS


def test_custom_calls() -> None:
    assert set(TARGETS) == told.CUSTOM_CALLS


def test_composites() -> None:
    assert set(COMPOSITES) == told.COMPOSITES
