"""serialize_exported(): writes the bytes that jax.export.deserialize reads."""

from __future__ import annotations

from jax2tf_bridge.errors import MissingDependencyError, SerializationError
from jax2tf_bridge.portable import HoldsPortable, PortableFunction, as_portable_function
from jax2tf_bridge.serialization.jax_exported import check_writable_chain, write_exported


def serialize_exported(
    portable: PortableFunction | HoldsPortable, *, vjp_order: int | None = None
) -> bytes:
    """Writes the bytes that jax.export.deserialize of JAX 0.8 to 0.12 reads.

    The bytes are of serialization version 12 (WRITTEN_VERSION) and also have the fields that older
    releases read. They name no release of JAX, since none wrote them. The format cannot hold
    constraints, requirements, argument names, dropped platforms and the target, so these are left
    out; the checks inside the module stay. Captured arrays become constants of each module, and
    4-bit integers keep their dtype; both need JAX.

    Args:
      portable: the function.
      vjp_order: the number of VJPs to write with it; missing ones are made. The default is the
        number that the function holds: from `with_vjp`, from a file, or made before.

    Raises:
      SerializationError: the format cannot hold the function, it needs JAX, which is not
        installed, or it has fewer VJPs than `vjp_order`; nothing is written.
      ModuleError: JAX is needed, and cannot read the module, or the module's types differ from the
        function's.
      InconclusiveShapeError: a VJP depends on a comparison of sizes that cannot be decided.
      ValueError: vjp_order is negative.
      FunctionError: `portable` is not a portable function.
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
