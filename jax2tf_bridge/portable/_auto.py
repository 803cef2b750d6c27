"""AUTO, the value of polymorphic_shapes that lets the bridge choose."""

from __future__ import annotations

from typing import Final, final


@final
class Auto:
    """The class of AUTO, which lets the bridge find the open dimensions.

    AUTO is a value of `polymorphic_shapes`, or of one entry of it. If an argument has unknown
    dimensions (None in a tf.TensorSpec), those are open. For example arguments, as many dimensions
    are open as tracing allows, except those that the results show to be parameters. Open dimensions
    share a variable if tracing shows that they must be equal. AUTO is the only instance.

    >>> {"polymorphic_shapes": AUTO}
    {'polymorphic_shapes': AUTO}
    """

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"  # copying and unpickling return the singleton


AUTO: Final = Auto()
