"""serialize_exported(): writes the bytes that jax.export.deserialize reads."""

from __future__ import annotations

from jax2tf_bridge.errors import MissingDependencyError, SerializationError
from jax2tf_bridge.portable import HoldsPortable, PortableFunction, as_portable_function
from jax2tf_bridge.serialization.jax_exported import check_writable_chain, write_exported


def serialize_exported(
    portable: PortableFunction | HoldsPortable, *, vjp_order: int | None = None
) -> bytes:
    """Writes the bytes that jax.export.deserialize of JAX 0.8 to 0.12 reads.

    They say that they are of serialization version 12 (WRITTEN_VERSION), without naming a release
    of JAX, since none wrote them; what older releases look for stands in them as well.  The format
    has neither constraints nor requirements, argument names, dropped platforms and the target:
    they are left out; what the module checks itself it still checks.  Arrays that the function
    captured become constants of each module, and 4-bit integers cross as such: both need JAX.

    Args:
      portable: the function.
      vjp_order: how many VJPs are written with it, and made if they are not there; None for
        those that are there: of `with_vjp`, of a file, or asked for before.

    Raises:
      SerializationError: the format cannot hold the function, JAX is needed for it and not
        installed, or it has fewer VJPs than asked for; nothing is written.
      ModuleError: JAX is needed, and cannot read the module, or its types are not the
        function's.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
      FunctionError: it is no portable function.
    """
    functions = check_writable_chain(
        as_portable_function(portable, "serialize_exported"), vjp_order
    )
    needs_jax = next((f for f in functions if f.needs_jax), None)
    if needs_jax is None:
        return write_exported(functions)
    try:
        from jax2tf_bridge.from_jax.stablehlo import convert_to_jax_form
    except MissingDependencyError as e:
        raise SerializationError(
            f"{needs_jax.portable.name} cannot be written as JAX's exported function without JAX: "
            f"{needs_jax.needs_jax}. Install JAX (pip install 'jax2tf-bridge[jax]'), or write a "
            ".jaxfn file with write_function."
        ) from e
    return write_exported(list(map(convert_to_jax_form, functions)))
