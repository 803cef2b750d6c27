"""Functions sharded over several devices: the record says so, eager TensorFlow refuses."""

import os
import subprocess
import sys

SCRIPT = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jax2tf_bridge as bridge

mesh = Mesh(jax.devices()[:2], ("x",))
f = jax.jit(
    lambda a, b: a + b,
    in_shardings=(NamedSharding(mesh, P("x")), None),
    out_shardings=NamedSharding(mesh, P("x")),
)
x = np.ones((4, 2), np.float32)
record = bridge.export(f)(x, x)
assert record.nr_devices == 2
assert record.in_shardings[0] is not None and record.in_shardings[1] is None
assert record.out_shardings[0] is not None
try:
    bridge.convert(f)(x, x)
except bridge.ShardingError as e:
    print(e)
try:
    record.vjp()
except bridge.ShardingError as e:
    print(e)
"""


def test_sharded_functions_are_refused_in_eager_mode() -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.strip().splitlines()
    assert lines[0].startswith(
        "<lambda> is sharded over 2 devices, and eager TensorFlow cannot shard. Call it inside "
        "tf.function(..., jit_compile=True)"
    )
    assert lines[1].startswith("<lambda> is sharded over 2 devices: its gradient cannot be")
