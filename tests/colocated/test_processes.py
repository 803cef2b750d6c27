"""Objects that a process with eight devices sends to another one, and what they are there."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.fresh_process import several_devices

Run: TypeAlias = Callable[[str], None]

PEERS = Path(__file__).with_name("peers.py").read_text()
# The parent runs each text that comes as if its main program had it, with a channel for it alone.
PARENT = f"""
{PEERS}
import functools
import json
import traceback
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax2tf_bridge.colocated import deserialize_specs, serialize_specs

types = (AxisType.Explicit, AxisType.Auto)
mesh = Mesh(np.array(jax.devices()).reshape(4, 2)[::-1], ("x", "y"), axis_types=types)

with Worker(10) as worker:
    for line in sys.stdin:
        worker.begin_channel()
        _failure, _known = None, {{*globals(), "_failure", "_known", "_name"}}
        try:
            exec(json.loads(line))
        except Exception:
            _failure = traceback.format_exc()
        for _name in globals().keys() - _known:  # so that no text needs what another defined
            del globals()[_name]
        print(json.dumps(_failure), flush=True)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs code in a parent with eight devices, whose worker has ten; both serve all tests."""
    command = [sys.executable, "-c", PARENT]
    environment = {**os.environ, **several_devices(8)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        texts, answers = parent.stdin, parent.stdout

        def run(code: str) -> None:
            texts.write(json.dumps(code) + "\n")
            texts.flush()
            answer = answers.readline()
            assert answer, f"the parent ended with {parent.wait()}"
            error = json.loads(answer)
            assert error is None, error

        yield run
        texts.close()
        assert parent.wait(60) == 0


def test_meshes_and_shardings_are_rebuilt_on_the_devices_with_the_same_ids(run: Run) -> None:
    run("""
def described(m, named, single, device):
    assert all(d in jax.devices() for d in m.devices.flat)
    return (
        [d.id for d in m.devices.flat], m.devices.shape, m.axis_names, m.axis_types,
        str(named.spec), named.memory_kind, named.mesh is m,
        [d.id for d in single.device_set], single.memory_kind,
        device.id, device in jax.devices(),
    )

named = NamedSharding(mesh, PartitionSpec("y", None, "x"), memory_kind="pinned_host")
single = SingleDeviceSharding(jax.devices()[3], memory_kind="pinned_host")
found = worker.call(described, mesh, named, single, jax.devices()[5])
# The order of the mesh, which is not that of the ids, is kept.
assert found == (
    [6, 7, 4, 5, 2, 3, 0, 1], (4, 2), ("x", "y"), types,
    str(named.spec), "pinned_host", True,
    [3], "pinned_host",
    5, True,
), found
# There and back they are the same.
for it in (mesh, named, single, jax.devices()[2], mesh.abstract_mesh):
    assert worker.call(lambda it: it, it) == it
spread = NamedSharding(mesh, PartitionSpec("x"), memory_kind="pinned_host")
specs = {"a": jax.ShapeDtypeStruct((8, 2), jnp.bfloat16, sharding=spread)}
assert worker.call(lambda it: it, specs) == specs
""")


def test_devices_that_a_process_lacks_are_an_error_that_lists_them(run: Run) -> None:
    run("""
try:
    worker.call(lambda: Mesh(np.array(jax.devices()), "i"))
except ValueError as e:
    error = f"{type(e).__name__}: {e}"
else:
    raise AssertionError("a mesh came that this process cannot have")
assert error.startswith("DeviceError: There are no CPU devices 8 to 9 in this process"), error
assert "which has devices 0 to 7." in error, error
assert "--xla_force_host_platform_device_count=10" in error, error
# Functions that fit the worker's devices still work.
assert worker.call(lambda: jax.devices()[1]) == jax.devices()[1]
""")


def test_arrays_and_keys_keep_values_types_and_devices(run: Run) -> None:
    run("""
def described(x):
    place = [d.id for d in x.sharding.device_set] if x.committed else None
    return str(x.dtype), x.shape, x.weak_type if hasattr(x, "weak_type") else None, place

sharding = NamedSharding(mesh, PartitionSpec("x"))
keys = jax.random.split(jax.random.key(7, impl="rbg"), (2, 3))
for x in (
    jnp.arange(8.0), jnp.asarray(2.0), jnp.ones((2, 0), jnp.bfloat16), jnp.asarray(3, jnp.int4),
    jax.device_put(jnp.arange(8.0), sharding),
    jax.device_put(jnp.asarray(2.0), jax.devices()[3]),
    keys, jax.random.key(1), jax.device_put(jax.random.split(jax.random.key(1), 8), sharding),
):
    found = worker.call(described, x)
    place = sorted(d.id for d in x.sharding.device_set) if x.committed else None
    assert (*found[:3], found[3] and sorted(found[3])) == (*described(x)[:3], place), (x, found)
    back = worker.call(lambda it: it, x)
    words = jax.random.key_data if str(x.dtype).startswith("key") else (lambda it: it)
    assert bool((words(back) == words(x)).all())
    assert (back.dtype, back.committed) == (x.dtype, x.committed)
    assert not x.committed or back.sharding == x.sharding
draws = worker.call(lambda k: np.asarray(jax.random.normal(k, (3,))), keys[1, 2])
assert (draws == np.asarray(jax.random.normal(keys[1, 2], (3,)))).all()
""")


def test_functions_of_the_main_program_run_in_the_worker(run: Run) -> None:
    run("""
from dataclasses import dataclass

weights = jnp.arange(3.0)

def layer(x, scale=2.0):
    return jnp.tanh(x * weights) * scale

def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)

@functools.partial(jax.jit, static_argnames="n")
def power(x, n):
    return x**n

@jax.custom_vjp
def clipped(x):
    return x * 2

clipped.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 5,))

@jax.custom_jvp
def bent(x):
    return x * 2

bent.defjvp(lambda p, t: (p[0] * 2, t[0] * 7))

@jax.tree_util.register_dataclass
@dataclass
class Module:
    kernel: jax.Array

    def __call__(self, x):
        return x @ self.kernel

module = Module(jnp.ones((3, 2)))
x = jnp.ones(3)
spread = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))
for function, args in (
    (layer, (x,)), (lambda x: layer(x) + 1, (x,)), (functools.partial(layer, scale=3.0), (x,)),
    (jax.jit(layer), (x,)), (jax.grad(lambda x: layer(x).sum()), (x,)), (jax.vmap(layer), (x,)),
    (functools.partial(power, n=3), (x,)), (recursive, (5,)), (jnp.sin, (x,)),
    (jax.grad(clipped), (1.0,)), (jax.grad(bent), (1.0,)),
    (module, (x,)), (module.__call__, (x,)),
    (jax.grad(jax.checkpoint(lambda x: (layer(x) ** 2).sum())), (x,)),
    (jax.tree_util.Partial(layer, x), ()), (lambda: spread * 2, ()),
):
    np.testing.assert_allclose(worker.call(function, *args), function(*args), rtol=1e-6)
structure = jax.tree.structure({"a": [0, (0, None)]})
assert worker.call(lambda it: it.unflatten([1, 2]), structure) == {"a": [1, (2, None)]}
""")


def test_node_types_of_the_main_program_are_registered_where_they_are_needed(run: Run) -> None:
    """A class that is sent by value is the same class in each message; its registration is not."""
    run("""
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

def register(kind):
    jax.tree_util.register_pytree_node(kind, lambda p: ((p.a, p.b), None), lambda _, c: kind(*c))

register(Pair)
structure = jax.tree.structure(Pair(1, 2))

total = lambda pair: float(jax.jit(lambda p: p.a + p.b)(pair))
kind, error = worker.answer(total, Pair(1.0, 2.0))
assert (kind, "Pair" in error) == ("error", True), error
kind, error = worker.answer(lambda s: s.num_leaves, structure)
assert (kind, "Pair" in error) == ("error", True), error
worker.call(register, Pair)
assert worker.call(total, Pair(1.0, 2.0)) == 3.0
assert worker.call(lambda s: s.unflatten([3, 4]).b, structure) == 4
""")


def test_flax_modules_run_in_the_worker(run: Run) -> None:
    if importlib.util.find_spec("flax") is None:
        pytest.skip("flax is not installed")
    run("""
import flax.linen as nn

class Net(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)))

net = Net(5)
x = jnp.ones((2, 3))
shapes = jax.eval_shape(net.init, jax.random.key(0), x)
params = jax.tree.map(lambda s: jnp.ones(s.shape), shapes)
for function, args in (
    (net.apply, (params, x)), (lambda p, x: net.apply(p, x), (params, x)),
    (functools.partial(net.apply, params), (x,)), (jax.jit(net.apply), (params, x)),
):
    np.testing.assert_allclose(worker.call(function, *args), function(*args), rtol=1e-6)
# A bound module belongs to its process, because Flax keeps state outside of it.
try:
    worker.call(net.bind(params), x)
except TypeError as e:
    assert "the tuple holds `[0]." in str(e), e
    assert "weakref" in str(e), e
else:
    raise AssertionError("a bound module was sent")
""")


def test_specs_come_as_an_array_of_text(run: Run) -> None:
    """Only the array's text is carried, as JAX would carry the array."""
    run("""
sharding = NamedSharding(mesh, PartitionSpec("x"))
specs = {
    "x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding),
    "k": jax.ShapeDtypeStruct((2,), jax.random.key(0).dtype),
    "none": None,
}

def read(text):
    import __main__
    array = jax.device_put(np.array(text, np.dtypes.StringDType()), jax.devices()[1])
    found = deserialize_specs(array, __main__.channel)
    return sorted(found), found["x"].sharding.mesh.devices.shape, found

array = serialize_specs(specs, mesh, worker.channel)
assert len(array.addressable_shards) == 8
assert array.sharding.is_fully_replicated
for shard in array.addressable_shards:
    assert shard.data.item() == array.addressable_shards[0].data.item()
names, shape, found = worker.call(read, array.addressable_shards[3].data.item())
assert names == ["k", "none", "x"]
assert shape == (4, 2)
assert found == specs
# A second time they are refused there.
kind, error = worker.answer(read, array.addressable_shards[3].data.item())
assert kind == "error", error
assert "UntrustedMessageError: Specs 0 were read before" in error, error
""")


def test_specs_have_no_size_limit(run: Run) -> None:
    run("""
structs = [jax.ShapeDtypeStruct((i,), jnp.float32) for i in range(2)]
here = Channel.with_new_token()
there = Channel(here.token, end="worker")
long = {"n" * 4_000_000: structs[1]}
array = serialize_specs(long, jax.devices(), here)
assert len(array.addressable_shards) == 8
assert len(array.addressable_shards[7].data.item()) > 5_000_000
assert deserialize_specs(array, there) == long
""")


def test_worker_refuses_what_is_not_its_parents(run: Run, tmp_path: Path) -> None:
    """Each refused payload would make a file if it were unpickled, and none of them does."""
    trace = tmp_path / "made"
    run(f"""
import pathlib, pickle
trace = pathlib.Path({str(trace)!r})

class Attack:
    def __reduce__(self):
        return (pathlib.Path.touch, (trace,))

stranger = Channel.with_new_token()

def refused(message, text):
    kind, error = worker.channel.unpack(worker.send(message))
    assert kind == "error", error
    assert error.startswith("UntrustedMessageError: "), error
    assert text in error, error
    assert "Nothing of it was unpickled" in error, error
    assert not trace.exists()

refused(pickle.dumps(Attack()), "these bytes are a pickle")
refused(stranger.pack(Attack()), "not signed with this channel's token")
good = worker.channel.pack((len, ("abc",)))
refused(good[:-1], "cut off")
refused(good[:20], "cut off")
refused(good[:-1] + b"?", "was changed")
assert worker.channel.unpack(worker.send(good)) == ("value", 3)
refused(good, "Message 0 came again")
answer = worker.send(worker.channel.pack((len, ("abc",))))
assert worker.channel.unpack(answer) == ("value", 3)
refused(answer, "it sent itself")
skipped = worker.channel.pack((len, ("abc",)))
refused(worker.channel.pack((Attack, ())), "but message 2 was expected")
assert worker.channel.unpack(worker.send(skipped)) == ("value", 3)

# The payload is a real one: unpickling it does make the file.
pickle.loads(pickle.dumps(Attack()))
assert trace.exists()
trace.unlink()

# A worker that was given another token believes nothing, and its answers are not believed.
worker.begin_channel(token=stranger.token)
answer = worker.send(worker.channel.pack((Attack, ())))
try:
    worker.channel.unpack(answer)
except ValueError as e:
    assert "not signed with this channel's token" in str(e)
else:
    raise AssertionError("the answer was read")
kind, error = Channel(stranger.token, end="parent").unpack(answer)
assert "not signed with this channel's token" in error, error
assert not trace.exists()
""")


@pytest.mark.costly
def test_modules_that_the_worker_lacks_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def f(): pass")
    run(f"""
sys.path.insert(0, {str(tmp_path)!r})
import only_here

kind, error = worker.answer(only_here.f)
assert error == "ModuleNotFoundError: No module named 'only_here'", error
# Sent by value it needs no module there.
import cloudpickle
cloudpickle.register_pickle_by_value(only_here)
assert worker.call(only_here.f) is None
""")


@pytest.mark.slow
def test_functions_that_remember_their_results(run: Run) -> None:
    run("""
@functools.cache
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

@functools.lru_cache(maxsize=3, typed=True)
def square(x):
    return x * x

def both(n):
    return depth(n), square(n), depth.cache_info().currsize, square.cache_parameters()

found = worker.call(both, 4)
assert found[:3] == (4, 16, 5), found
assert found[3] == {"maxsize": 3, "typed": True}
""")
