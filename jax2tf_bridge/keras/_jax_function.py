"""JAX functions that are exported when Keras first passes their inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.errors import LayerError
from jax2tf_bridge.keras._model import LayerModel, LayerOptions, model_from_portables
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.signatures import PathWeights, open_params

TRAINING = "training"
"""Name of the argument of a JAX function that is True in training."""

KEY = "rng"
"""Name of the argument of a JAX function that takes a PRNG key."""

# Common names for these two arguments; error messages suggest to rename them.
_LIKE_TRAINING = frozenset({"train", "is_train", "is_training", "train_mode"})
_LIKE_KEY = frozenset({"key", "prng", "prng_key", "rng_key", "rngs"})


@dataclass(frozen=True, eq=False)
class JaxFunction:
    """A JAX function whose inputs are not known yet.

    Attributes:
      function: the user's function.
      params: the weights; None if it takes none.
      options: the options of the layer.
    """

    function: Callable[..., Any]
    params: Any
    options: LayerOptions

    def export_model(self, layer: str, inputs: Any) -> LayerModel:
        """Exports the function for the inputs that Keras passes.

        Args:
          layer: the name of the layer in error messages.
          inputs: a nest of objects with shapes (None for unknown sizes) and dtypes.

        Raises:
          LayerError: the function takes another number of inputs.
          ExportError: as `export` raises.
        """
        with open_params(self.params) as opened_params:
            params = (
                opened_params.tree() if isinstance(opened_params, PathWeights) else opened_params
            )
        args, kwargs = self._split_arguments(self._assign_inputs(layer, inputs))
        call_args = args if self.params is None else (params, *args)
        functions = [self.function]
        if TRAINING in self._get_parameters():
            functions = [functools.partial(self.function, **{TRAINING: v}) for v in (False, True)]
        portables = [self._export(function, call_args, kwargs) for function in functions]
        return model_from_portables(portables, params, self.options)

    def _get_parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # some builtins have no signature
            return {}

    def _list_positional(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, p in self._get_parameters().items() if p.kind in kinds]
        return names[0 if self.params is None else 1 :]

    def _split_arguments(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Sorts values by name into args and kwargs; the name "" is the only positional value."""
        kwargs = dict(values)
        if KEY in self._get_parameters():
            import jax

            kwargs[KEY] = jax.random.key(0)
        args = [kwargs.pop("")] if "" in kwargs else []
        for name in self._list_positional():
            if name not in kwargs:
                break
            args.append(kwargs.pop(name))
        return tuple(args), kwargs

    def _assign_inputs(self, layer: str, inputs: Any) -> Mapping[str, Any]:
        parameters = self._get_parameters()
        named = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
        names = [n for n in (*self._list_positional(), *named) if n not in (TRAINING, KEY)]
        required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
        if isinstance(inputs, Mapping) and set(required) <= inputs.keys() <= set(names):
            return inputs
        if not required and self._takes_any_inputs():
            return {"": inputs}
        if len(required) == 1 or (not required and names):
            return {(required or names)[0]: inputs}
        if isinstance(inputs, (list, tuple)) and len(inputs) == len(required):
            return dict(zip(required, inputs, strict=True))
        raise LayerError(self._describe_misfit(layer, required, inputs))

    def _takes_any_inputs(self) -> bool:
        """Returns whether the function takes *args or has no known signature."""
        parameters = self._get_parameters().values()
        return not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def _describe_misfit(self, layer: str, required: Sequence[str], inputs: Any) -> str:
        name = getattr(self.function, "__name__", "the function")
        if not required:
            return f"{layer} needs a function that takes inputs, but {name} takes none."
        if isinstance(inputs, Mapping):
            got = f"a dict of {', '.join(map(str, inputs))}"
        elif isinstance(inputs, (list, tuple)):
            got = f"a {type(inputs).__name__} of {len(inputs)}"
        else:
            got = "one array"
        hint = (
            f" If {required[0]} are its weights, pass them as params of the layer."
            if self.params is None
            else ""
        )
        if aliases := [n for n in required if n in _LIKE_TRAINING or n in _LIKE_KEY]:
            role = TRAINING if aliases[0] in _LIKE_TRAINING else KEY
            hint += f" The layer itself passes an argument named {role}: rename {aliases[0]} to it."
        return (
            f"{layer} takes {', '.join(required)}, the arguments of {name}, as a list in this "
            f"order or as a dict. Got: {got}.{hint}"
        )

    def _export(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PortableFunction:
        import jax

        from jax2tf_bridge.from_jax import export

        options = self.options
        shapes = options.polymorphic_shapes
        first = 0 if self.params is None else 1
        leaves, tree = jax.tree_util.tree_flatten((tuple(args[first:]), dict(kwargs)))
        if shapes is None:
            leaves = _make_symbolic(leaves)
        else:
            leaves = [_make_spec(leaf, tuple(leaf.shape)) for leaf in leaves]
            if first and not isinstance(shapes, Mapping):
                positional_shapes = (
                    [shapes] * len(args[first:]) if isinstance(shapes, str) else shapes
                )
                shapes = [None, *positional_shapes]
        positional, keywords = jax.tree_util.tree_unflatten(tree, leaves)
        return export(
            function,
            polymorphic_shapes=shapes,
            polymorphic_constraints=options.polymorphic_constraints,
            target=options.target,
        )(*args[:first], *positional, **keywords)


def _make_symbolic(leaves: Sequence[Any]) -> list[Any]:
    """Replaces the batch size and unknown sizes by symbolic sizes."""
    from jax import export as jax_export

    scope = jax_export.SymbolicScope()
    batches = [leaf.shape[0] for leaf in leaves if leaf.shape]
    count = 0
    specs = []
    for leaf in leaves:
        sizes: list[Any] = []
        for axis, size in enumerate(leaf.shape):
            if axis == 0 and size in (None, batches[0]):
                (size,) = jax_export.symbolic_shape("b", scope=scope)
            elif size is None:
                count += 1
                (size,) = jax_export.symbolic_shape(f"d{count}", scope=scope)
            sizes.append(size)
        specs.append(_make_spec(leaf, tuple(sizes)))
    return specs


def _make_spec(leaf: Any, shape: tuple[Any, ...]) -> Any:
    """Makes the argument spec of an input for export; 64-bit dtypes need jax_enable_x64."""
    import jax

    from jax2tf_bridge.from_jax.shapes import OpenSpec

    if isinstance(leaf, jax.Array):
        return leaf  # a PRNG key
    return OpenSpec(shape, jax.dtypes.canonicalize_dtype(jax.numpy.dtype(leaf.dtype)))
