"""split_to_logical_devices annotates as TensorFlow's own sharding functions do."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.to_tensorflow import split_to_logical_devices

# Private: names of TensorFlow are taken away.
from jax2tf_bridge.to_tensorflow._tf_compat import LOGICAL_DEVICES_SEAM as SEAM
from tests.house.seams import take_away

# An xla.OpSharding of type OTHER, with the tiles and the devices in order.
TILED_2_1 = b'\x08\x03\x1a\x02\x02\x01"\x02\x00\x01'
REPLICATED = b""
SPEC = tf.TensorSpec((4, 3))


def annotations(function: Any, spec: tf.TensorSpec = SPEC) -> list[bytes]:
    """Reads the XlaSharding ops of a function's graph, by both names that XLA reads."""
    traced = tf.function(function, autograph=False).get_concrete_function(spec)
    return annotations_of(traced.graph.as_graph_def())


def annotations_of(graph: Any) -> list[bytes]:
    """Reads the XlaSharding ops of a graph and of the functions that it calls."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    found = [node.attr for node in nodes if node.op == "XlaSharding"]
    for attributes in found:
        assert attributes["sharding"].s == attributes["_XlaSharding"].s
    return [attributes["sharding"].s for attributes in found]


@pytest.mark.parametrize("tiles", [None, (2, 1), [2, 1], (np.int64(2), 1), (1, 3), (2, 3), (1, 1)])
def test_annotation_is_that_of_tensorflow(tiles: Any) -> None:
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    (ours,) = annotations(lambda x: split_to_logical_devices(x, tiles))
    if tiles is None:
        theirs = xla_sharding.Sharding.replicate()
    else:
        theirs = xla_sharding.Sharding.tile(np.arange(np.prod(tiles)).reshape(tiles))
    assert ours == theirs.proto.SerializeToString()
    expected = {(2, 1): TILED_2_1, None: REPLICATED}
    assert ours == expected.get(None if tiles is None else tuple(tiles), ours)


def test_values_stay_in_a_saved_model(tmp_path: Path) -> None:
    f = convert(jnp.sin)

    @tf.function(input_signature=[SPEC], autograph=True)
    def split(x: Any) -> Any:
        return split_to_logical_devices(f(split_to_logical_devices(x, (2, 1))), None)

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(split(x), np.sin(x), rtol=1e-6)
    module = tf.Module()
    module.f = split
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.f(x), np.sin(x), rtol=1e-6)
    graph = loaded.f.concrete_functions[0].graph.as_graph_def()
    assert sorted(set(annotations_of(graph))) == sorted({TILED_2_1, REPLICATED})


@pytest.mark.parametrize("tiles", [(2,), (2, 1, 1), (0, 2), (-1, 2), 2, (2.0, 1), "ab"])
def test_other_partitions_are_refused(tiles: Any) -> None:
    message = r"one positive integer for each dimension .* \(4, 3\)\. Got: "
    with pytest.raises(ShardingError, match=message):
        annotations(lambda x: split_to_logical_devices(x, tiles))


def test_unknown_rank_is_taken() -> None:
    (found,) = annotations(lambda x: split_to_logical_devices(x, (2, 1)), tf.TensorSpec(None))
    assert found == TILED_2_1


def test_eager_tensors_are_refused() -> None:
    with pytest.raises(ShardingError, match=r"Call it within the tf\.function that is compiled"):
        split_to_logical_devices(tf.ones((2, 2)), (2, 1))


@pytest.mark.parametrize(("name", "tiles"), [("tile", (2, 1)), ("replicate", None)])
def test_without_the_name(name: str, tiles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert annotations(lambda x: split_to_logical_devices(x, tiles))
    take_away(monkeypatch, SEAM, name)
    with pytest.raises(ShardingError, match="cannot annotate tensors for XLA"):
        annotations(lambda x: split_to_logical_devices(x, tiles))
