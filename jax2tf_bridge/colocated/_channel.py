"""Channel: signed messages between a process and its worker. Only signed messages are unpickled.

Specs (shapes, dtypes and shardings) can also be sent as an array of text, like other arrays.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import secrets
import struct
import threading
from collections.abc import Iterable
from typing import Any, Literal, NoReturn, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.colocated._pickling import dumps, loads
from jax2tf_bridge.errors import (
    DeviceError,
    DTypeError,
    NotPicklableError,
    SerializationError,
    UntrustedMessageError,
)

End: TypeAlias = Literal["parent", "worker"]

TOKEN_SIZE = 32
"""Size in bytes of the secret that the two ends of a Channel share."""
_MAGIC = b"\x89j2tfCHN"
_VERSION = 1
_HEADER = struct.Struct(">8sBBcQ")  # magic, version, kind, sender, number
_SIGNATURE_SIZE = hashlib.sha256().digest_size
_PREFIX_SIZE = _HEADER.size + _SIGNATURE_SIZE
_END_LETTERS: dict[End, bytes] = {"parent": b"p", "worker": b"w"}
_NOTHING_UNPICKLED = "Nothing of it was unpickled."


class MessageKind(enum.IntEnum):
    """Kind of a message. Specs have their own numbering, since they may be read in any order."""

    OBJECT = 1
    BYTES = 2
    SPECS = 3


_KIND_NAMES = {
    MessageKind.OBJECT: "an object",
    MessageKind.BYTES: "a sequence of bytes",
    MessageKind.SPECS: "a tree of specs",
}


class Channel:
    """One end of a connection between two processes that share a secret token.

    Reading a pickle can run any code. Therefore each message is signed (HMAC-SHA256) together with
    its sender and its number, and the signature is verified before anything is unpickled. The
    channel rejects messages that are unsigned, modified, repeated, out of order, or its own.
    Messages are not encrypted.

    Use each token for one pair of processes only. Pass it to the worker in its environment or
    through a pipe that it inherits, such as its stdin. Never pass it as a command-line argument,
    which every user of the machine can read.

    Both ends need the same versions of the bridge, Python, JAX and cloudpickle.

    >>> parent = Channel.with_new_token()
    >>> worker = Channel(parent.token, end="worker")
    >>> worker.unpack(parent.pack({"sizes": [1, 2]}))
    {'sizes': [1, 2]}
    """

    def __init__(self, token: bytes, *, end: End) -> None:
        """Makes one end of a channel.

        Args:
          token: the 32 secret random bytes that both ends share.
          end: the role of this process, "parent" or "worker".

        Raises:
          ValueError: the token has another size or type, or there is no such end.
        """
        if not isinstance(token, bytes) or len(token) != TOKEN_SIZE:
            got = f"{len(token)} bytes" if isinstance(token, bytes) else type(token).__name__
            raise ValueError(
                f"A channel's token is {TOKEN_SIZE} random bytes, not {got}. Take "
                "Channel.with_new_token() in the parent, and its token in the worker."
            )
        if end not in _END_LETTERS:
            raise ValueError(f'end is "parent" or "worker", not {end!r}.')
        self.end: End = end
        self._token = token
        self._lock = threading.Lock()
        self._sent = self._received = 0
        self._sent_specs = 0
        # Numbers of the specs that were read: all below the first one, and those in the set.
        self._first_unread_specs = 0
        self._read_specs: set[int] = set()

    @classmethod
    def with_new_token(cls) -> Channel:
        """Makes the parent's end of a new channel, with a new random token."""
        return cls(secrets.token_bytes(TOKEN_SIZE), end="parent")

    @property
    def token(self) -> bytes:
        """Secret that only the worker at the other end may know."""
        return self._token

    def __repr__(self) -> str:
        return f"<Channel, {self.end}'s end>"

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError(
            "A Channel holds a secret of this process, so it cannot be sent in a message. In the "
            'worker, make its end with Channel(token, end="worker").',
            culprit="Channel",
        )

    def pack(self, obj: Any) -> bytes:
        """Makes a message from an object, such as a function, a sharding, a PRNG key or an array.

        Devices are sent as ids. The receiver uses its CPU devices with the same ids.

        Raises:
          NotPicklableError: the object cannot be sent. The message names the captured part that
            is the cause.
          MissingDependencyError: cloudpickle is not installed.
        """
        return self._seal(MessageKind.OBJECT, dumps(obj))

    def unpack(self, message: bytes | bytearray | memoryview) -> Any:
        """Reads the object in the next message that `pack` made at the other end.

        Raises:
          UntrustedMessageError: `message` is not that message. Nothing of it was unpickled.
          DeviceError: the object contains devices that this process does not have.
          MissingDependencyError: cloudpickle is not installed.
        """
        return loads(self._open(MessageKind.OBJECT, message))

    def sign(self, payload: bytes | bytearray | memoryview) -> bytes:
        """Makes a message from bytes, such as a .jaxfn file, without pickling them."""
        return self._seal(MessageKind.BYTES, payload)

    def verify(self, message: bytes | bytearray | memoryview) -> bytes:
        """Reads the bytes in the next message that `sign` made at the other end.

        Raises:
          UntrustedMessageError: `message` is not that message.
        """
        return bytes(self._open(MessageKind.BYTES, message))

    def pack_specs(self, obj: Any) -> bytes:
        """Makes a message for `serialize_specs`, which can be read once, in any order."""
        return self._seal(MessageKind.SPECS, dumps(obj))

    def unpack_specs(self, message: bytes) -> Any:
        """Reads the object in a message that `pack_specs` made; raises the errors of `unpack`."""
        return loads(self._open(MessageKind.SPECS, message))

    def _sign_payload(self, header: bytes, payload: bytes | bytearray | memoryview) -> bytes:
        signature = hmac.new(self._token, header, hashlib.sha256)
        signature.update(payload)
        return signature.digest()

    def _seal(self, kind: MessageKind, payload: bytes | bytearray | memoryview) -> bytes:
        # Fails before a number is taken: the other end would wait for its message forever.
        payload = memoryview(payload).cast("B")
        with self._lock:
            if kind is MessageKind.SPECS:
                number = self._sent_specs
                self._sent_specs += 1
            else:
                number = self._sent
                self._sent += 1
        header = _HEADER.pack(_MAGIC, _VERSION, kind, _END_LETTERS[self.end], number)
        return b"".join((header, self._sign_payload(header, payload), payload))

    def _open(self, kind: MessageKind, message: bytes | bytearray | memoryview) -> memoryview:
        """Verifies a message and returns its payload. Counts only valid messages."""
        # Copied, since the sender of a shared buffer could change it after the check.
        data = memoryview(message if type(message) is bytes else memoryview(message).tobytes())
        head = bytes(data[: len(_MAGIC)])
        if head != _MAGIC or len(data) < _PREFIX_SIZE:
            raise _make_not_a_message_error(head, len(data))
        header = bytes(data[: _HEADER.size])
        _, version, message_kind, sender, number = _HEADER.unpack(header)
        if version != _VERSION:
            raise UntrustedMessageError(
                f"The message has version {version} of the channel's format, but this bridge reads "
                f"version {_VERSION}. {_NOTHING_UNPICKLED} Use one version of jax2tf-bridge in "
                "both processes."
            )
        payload = data[_PREFIX_SIZE:]
        signature = bytes(data[_HEADER.size : _PREFIX_SIZE])
        if not hmac.compare_digest(signature, self._sign_payload(header, payload)):
            raise UntrustedMessageError(
                "The message is not signed with this channel's token, or was changed or cut off. "
                f"{_NOTHING_UNPICKLED} Both ends need the same token, new for each worker, and "
                "must pass on the results of pack and sign unchanged."
            )
        # The signature is valid, so one of the two ends wrote the header.
        if sender == _END_LETTERS[self.end]:
            raise UntrustedMessageError(
                f"The {self.end}'s end got a message that it sent itself. {_NOTHING_UNPICKLED} "
                'Make one end with end="parent", and the other with end="worker".'
            )
        if message_kind != kind:
            raise UntrustedMessageError(
                f"The message has {_KIND_NAMES[MessageKind(message_kind)]}, but "
                f"{_KIND_NAMES[kind]} was expected. {_NOTHING_UNPICKLED} Use unpack for messages "
                "of pack, verify for those of sign, and deserialize_specs for those of "
                "serialize_specs."
            )
        self._check_number(kind, number)
        return payload

    def _check_number(self, kind: MessageKind, number: int) -> None:
        with self._lock:
            if kind is MessageKind.SPECS:
                if number < self._first_unread_specs or number in self._read_specs:
                    raise UntrustedMessageError(
                        f"Specs {number} were read before. {_NOTHING_UNPICKLED} Read each array "
                        "of serialize_specs once, and keep what deserialize_specs returns."
                    )
                self._read_specs.add(number)
                while self._first_unread_specs in self._read_specs:
                    self._read_specs.remove(self._first_unread_specs)
                    self._first_unread_specs += 1
            elif number != self._received:
                is_repeated = number < self._received
                raise UntrustedMessageError(
                    f"Message {number} came{' again' if is_repeated else ''}, but message "
                    f"{self._received} was expected. {_NOTHING_UNPICKLED} Read each message once, "
                    "in the order in which the other end made them."
                )
            else:
                self._received += 1


def _make_not_a_message_error(head: bytes, size: int) -> UntrustedMessageError:
    if head == _MAGIC:
        problem = f"it was cut off after {size} bytes"
    elif head[:1] == b"\x80":
        problem = "these bytes are a pickle, not a message of the bridge's channel"
    else:
        problem = f"these {size} bytes are not a message of the bridge's channel"
    return UntrustedMessageError(
        f"The message was refused: {problem}. {_NOTHING_UNPICKLED} A pickle can run any code, so "
        "only messages that the other process made with Channel.pack or Channel.sign are read."
    )


def serialize_specs(
    specs: Any, devices: Mesh | Sharding | Iterable[jax.Device], channel: Channel
) -> jax.Array:
    """Writes specs as an array for the process at the other end of the channel.

    Args:
      specs: a pytree of jax.ShapeDtypeStruct, with or without shardings.
      devices: the devices to place the array on. Devices of other processes are ignored.
      channel: the channel to the process that reads the array. It can read the array once.

    Returns:
      A scalar of numpy's StringDType, replicated over the devices. Its text is the signed message
      in base64.

    Raises:
      DTypeError: NumPy is older than 2.0, and has no StringDType.
      DeviceError: none of the devices belongs to this process.
      SerializationError: a leaf is not a jax.ShapeDtypeStruct.
      NotPicklableError: the structure or a sharding cannot be sent.
    """
    string_dtype = _make_string_dtype()
    for path, leaf in jax.tree_util.tree_leaves_with_path(specs):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            place = jax.tree_util.keystr(path)
            raise SerializationError(
                f"specs{place} must be a jax.ShapeDtypeStruct. Got: a {type(leaf).__qualname__}. "
                "Make specs by jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), or "
                "send the values by Channel.pack."
            )
    local_devices = _list_local_devices(devices)
    text = np.array(base64.b64encode(channel.pack_specs(specs)).decode("ascii"), string_dtype)
    # One device_put per device: JAX cannot read back text that it replicates in a single one.
    copies = [jax.device_put(text, device) for device in local_devices]
    sharding = NamedSharding(Mesh(np.array(local_devices), ("devices",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays((), sharding, copies)


def deserialize_specs(array: jax.Array, channel: Channel) -> Any:
    """Reads the pytree of jax.ShapeDtypeStruct that the other end of the channel wrote.

    Raises:
      UntrustedMessageError: the array is not from `serialize_specs` at the other end, or was read
        before. Nothing of it was unpickled.
      DeviceError: a sharding contains devices that this process does not have.
      DTypeError: NumPy is older than 2.0, and has no StringDType.
    """
    string_dtype = _make_string_dtype()
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if not isinstance(array, jax.Array) or not isinstance(dtype, type(string_dtype)) or shape != ():
        got = type(array).__qualname__
        if shape is not None:
            got = f"an array of {array_type_text(dtype, shape)}"
        raise UntrustedMessageError(
            f"deserialize_specs needs a scalar jax.Array of StringDType. Got: {got}. Pass the "
            "array that serialize_specs made."
        )
    text = array.addressable_shards[0].data.item()
    try:
        message = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UntrustedMessageError(
            "The text of this array was not written by serialize_specs. Nothing of it was "
            "unpickled. Pass the array that serialize_specs made."
        ) from None
    return channel.unpack_specs(message)


def _make_string_dtype() -> np.dtype[Any]:
    dtype_class = getattr(np.dtypes, "StringDType", None)
    if dtype_class is None:
        raise DTypeError(
            f"Specs as arrays need numpy's StringDType, which came with NumPy 2.0; NumPy "
            f"{np.__version__} is installed. Upgrade it, or send the specs with Channel.pack."
        )
    dtype: np.dtype[Any] = dtype_class()
    return dtype


def _list_local_devices(devices: Mesh | Sharding | Iterable[jax.Device]) -> list[jax.Device]:
    if isinstance(devices, Mesh):
        # An empty mesh contains None instead of devices.
        candidates: Iterable[jax.Device] = [d for d in devices.devices.flat if d is not None]
    elif isinstance(devices, Sharding):
        candidates = sorted(devices.device_set, key=lambda device: device.id)
    else:
        candidates = devices
    process = jax.process_index()
    local = [d for d in dict.fromkeys(candidates) if d.process_index == process]
    if not local:
        raise DeviceError(
            "None of these devices belongs to this process. Pass some of jax.local_devices(): "
            f"{jax.local_devices()}."
        )
    return local
