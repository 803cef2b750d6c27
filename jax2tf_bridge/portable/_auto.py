"""AUTO, with which a user leaves the choice of polymorphic_shapes to the bridge."""

from __future__ import annotations

from typing import Final, final


@final
class Auto:
    """AUTO, for `polymorphic_shapes` or an entry of it: the bridge finds the open dimensions.

    An argument with unknown dimensions (None in a tf.TensorSpec) has these open. Of example
    arguments, as many dimensions are open as tracing allows, except those that the results show to
    be parameters. Open dimensions share a variable where tracing shows that they must be equal.
    AUTO is the only object of this class.

    >>> {"polymorphic_shapes": AUTO}
    {'polymorphic_shapes': AUTO}
    """

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"  # copies and pickles are this object


AUTO: Final = Auto()
