"""Makes graphs of SavedModels with TensorFlow's own operations instead of modules."""

from __future__ import annotations

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import PortableFunction, make_called_function
from jax2tf_bridge.saved_model import GRAPH_FILE, CalledModule, SavedModelContents
from jax2tf_bridge.storage import as_path
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import replace_call_modules


def operations_graph(contents: SavedModelContents, target: Target) -> bytes:
    """Returns saved_model.pb with operations instead of XlaCallModule ops.

    Args:
      contents: the SavedModel, which any tool may have written.
      target: a target without XLA.

    Raises:
      ModuleError: TensorFlow has no operation for one of a module, or a module calls TensorFlow
        functions itself.
    """
    functions = {(m.function, m.node): _make_function(m, target) for m in contents.modules}
    graph = (as_path(contents.path) / GRAPH_FILE).read_bytes()
    return replace_call_modules(graph, functions, for_converters=target.for_converters)


def _make_function(called: CalledModule, target: Target) -> PortableFunction:
    if called.functions:
        raise ModuleError(
            f"The module of {called.place} calls TensorFlow functions, whose graphs the new model "
            "would lack. Export the function again without XLA."
        )
    return make_called_function(
        bytes(called.module),
        called.stablehlo_version,
        name=called.place,
        argument_dtypes=called.arguments,
        result_dtypes=[result.dtype for result in called.results],
        platforms=called.platforms or ("cpu",),
        disabled_checks=called.disabled_checks,
        has_tokens=called.has_tokens,
        calling_convention_version=called.calling_convention_version,
        target=target,
    )
