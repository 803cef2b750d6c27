"""JAX's configuration goes along with a job, and is put back."""

import threading
from typing import Any

import jax
import pytest

# Private: each option is read and set without starting a process for it.
from jax2tf_bridge.parallel._configuration import read_configuration, use_configuration


def test_it_has_what_changes_a_trace_and_not_what_belongs_to_the_process() -> None:
    names = set(read_configuration())
    assert names >= {
        "jax_enable_x64",
        "jax_default_matmul_precision",
        "jax_numpy_dtype_promotion",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_use_shardy_partitioner",
    }
    assert names.isdisjoint({"jax_platforms", "jax_default_device", "jax_compilation_cache_dir"})


def test_it_is_that_of_the_thread() -> None:
    with jax.default_matmul_precision("float32"):
        assert read_configuration()["jax_default_matmul_precision"] == "float32"
    assert read_configuration()["jax_default_matmul_precision"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_default_matmul_precision", "bfloat16"),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_default_prng_impl", "rbg"),
        ("jax_random_seed_offset", 7),
        ("jax_traceback_in_locations_limit", 0),
    ],
)
def test_options_are_set_and_put_back(name: str, value: Any) -> None:
    before = read_configuration()
    with use_configuration({**before, name: value}):
        assert jax.config.values[name] == value
        others = {k: v for k, v in read_configuration().items() if k != name}
        assert others == {k: v for k, v in before.items() if k != name}
    assert read_configuration() == before


# JAX says so of options that a later release lacks.
@pytest.mark.filterwarnings("ignore:.*will be removed in JAX:DeprecationWarning")
def test_all_that_is_read_can_be_set() -> None:
    """Each option takes its own value; those of yes and no the other one as well."""
    before = read_configuration()
    for name, value in before.items():
        with use_configuration({name: not value if isinstance(value, bool) else value}):
            pass
    assert read_configuration() == before


def test_other_threads_do_not_see_it() -> None:
    seen = []
    with use_configuration({"jax_enable_x64": True}):
        thread = threading.Thread(target=lambda: seen.append(jax.config.values["jax_enable_x64"]))
        thread.start()
        thread.join()
    assert seen == [False]


def test_options_of_another_release_are_left_out() -> None:
    with use_configuration({"jax_of_another_release": 1}):
        pass
