"""A channel takes the messages of its other end, each once and in order, and nothing else."""

import hmac
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

# A test overwrites the payload of a message, which begins after the prefix.
from jax2tf_bridge.colocated import TOKEN_SIZE, Channel, _channel
from jax2tf_bridge.errors import NotPicklableError, UntrustedMessageError


def pair() -> tuple[Channel, Channel]:
    parent = Channel.with_new_token()
    return parent, Channel(parent.token, end="worker")


class Unpickled(Exception):
    """Raised by what must not be unpickled."""


def _unpickled() -> None:
    raise Unpickled


class Trap:
    def __reduce__(self) -> Any:
        return _unpickled, ()


def refused(channel: Channel, message: bytes, text: str | None = None) -> None:
    with pytest.raises(UntrustedMessageError, match=text) as caught:
        channel.unpack(message)
    assert "Nothing of it was unpickled" in str(caught.value)


def test_objects_and_bytes_go_both_ways_in_one_order() -> None:
    parent, worker = pair()
    assert worker.unpack(parent.pack({"a": [1, (2.5, None)]})) == {"a": [1, (2.5, None)]}
    assert worker.verify(parent.sign(b"bytes")) == b"bytes"
    assert worker.unpack(parent.pack("second")) == "second"
    assert parent.verify(worker.sign(memoryview(b"answer"))) == b"answer"
    assert parent.unpack(memoryview(worker.pack(3))) == 3
    assert parent.verify(bytearray(worker.sign(b""))) == b""


def test_what_is_no_bytes_does_not_count_as_a_message() -> None:
    parent, worker = pair()
    for wrong in ("text", memoryview(b"abcd")[::2]):
        with pytest.raises(TypeError):
            parent.sign(wrong)  # type: ignore[arg-type]
    assert worker.verify(parent.sign(memoryview(b"ab").cast("H"))) == b"ab"


def test_the_trap_springs_where_it_is_sent_by_the_other_end() -> None:
    parent, worker = pair()
    with pytest.raises(Unpickled):
        worker.unpack(parent.pack(Trap()))
    # The channel has counted that message and expects the next one.
    assert worker.unpack(parent.pack(1)) == 1


def test_each_changed_bit_and_each_cut_is_refused() -> None:
    parent, worker = pair()
    message = parent.pack(Trap())
    for size in range(len(message)):
        refused(worker, message[:size])
    for i in range(len(message)):
        for bit in range(8):
            changed = bytearray(message)
            changed[i] ^= 1 << bit
            refused(worker, bytes(changed))
    refused(worker, message + b"\0", "was changed")
    # None of these counted.
    with pytest.raises(Unpickled):
        worker.unpack(message)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_refused(data: bytes, with_head: bool) -> None:
    parent, worker = pair()
    refused(worker, parent.pack(0)[:8] + data if with_head else data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_refused(protocol: int) -> None:
    data = pickle.dumps(Trap(), protocol)
    with pytest.raises(Unpickled):
        pickle.loads(data)
    refused(pair()[1], data, "pickle" if protocol >= 2 else "not a message")


def test_messages_of_other_channels_are_refused() -> None:
    parent, worker = pair()
    other, other_worker = pair()
    message = other.pack(Trap())
    refused(worker, message, "not signed with this channel's token")
    with pytest.raises(UntrustedMessageError, match="not signed with this channel's token"):
        worker.verify(other.sign(b"bytes"))
    with pytest.raises(Unpickled):
        other_worker.unpack(message)
    assert worker.unpack(parent.pack(1)) == 1


def test_messages_are_read_once_and_in_order() -> None:
    parent, worker = pair()
    first, second = parent.pack("first"), parent.pack("second")
    refused(worker, second, "Message 1 came, but message 0 was expected")
    assert worker.unpack(first) == "first"
    refused(worker, first, "Message 0 came again, but message 1 was expected")
    assert worker.unpack(second) == "second"
    refused(worker, first, "Message 0 came again")


def test_messages_do_not_come_back_to_their_sender() -> None:
    parent, worker = pair()
    refused(parent, parent.pack(Trap()), "The parent's end got a message that it sent itself")
    refused(worker, worker.pack(Trap()), "The worker's end got a message that it sent itself")


def test_bytes_are_not_taken_for_objects() -> None:
    """Bytes that a worker signs may come from a file, which is nothing to unpickle."""
    parent, worker = pair()
    refused(worker, parent.sign(pickle.dumps(Trap())), "The message has a sequence of bytes, but")
    parent, worker = pair()
    with pytest.raises(
        UntrustedMessageError, match="has an object, but a sequence of bytes was expected"
    ):
        worker.verify(parent.pack(1))
    parent, worker = pair()
    refused(worker, parent.pack_specs(Trap()), "has a tree of specs, but an object was")


def test_another_version_is_refused() -> None:
    parent, worker = pair()
    message = bytearray(parent.pack(Trap()))
    message[8] += 1
    refused(worker, bytes(message), "version 2 of the channel's format, .* reads version 1")


def test_the_token_is_32_bytes_that_nobody_sees() -> None:
    parent, worker = pair()
    assert len(parent.token) == TOKEN_SIZE == 32
    assert parent.token != Channel.with_new_token().token
    assert repr(parent) == "<Channel, parent's end>"
    assert repr(worker) == "<Channel, worker's end>"
    assert parent.token not in parent.pack([1])
    for token in (b"", b"x" * 31, b"x" * 33, "x" * 32):
        with pytest.raises(ValueError, match="token is 32 random bytes, not"):
            Channel(token, end="worker")  # type: ignore[arg-type]
    end: Literal["parent", "worker"]
    end = "child"  # type: ignore[assignment]
    with pytest.raises(ValueError, match='end is "parent" or "worker", not \'child\''):
        Channel(parent.token, end=end)


def test_a_channel_is_not_sent() -> None:
    parent, _ = pair()
    with pytest.raises(NotPicklableError, match="A Channel holds a secret"):
        pickle.dumps(parent)
    with pytest.raises(NotPicklableError, match=r"<lambda> captures `parent`") as caught:
        parent.pack(lambda: parent)
    assert "holds a secret" in str(caught.value)


def test_what_cannot_be_packed_does_not_count() -> None:
    parent, worker = pair()
    with pytest.raises(NotPicklableError):
        parent.pack(threading.Lock())
    assert worker.unpack(parent.pack(1)) == 1


def test_memory_that_others_write_to_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory changes after the signature was verified; the message is unpickled as it was."""
    for shared in (bytearray, lambda message: memoryview(bytearray(message))):
        parent, worker = pair()
        message = shared(parent.pack(("good",) * 100))
        attack = pickle.dumps(Trap())

        def compared(
            one: bytes, other: bytes, message: Any = message, attack: Any = attack
        ) -> bool:
            message[-len(attack) :] = attack
            start = _channel._PREFIX_SIZE
            message[start : start + len(attack)] = attack
            return one == other

        monkeypatch.setattr(hmac, "compare_digest", compared)
        assert worker.unpack(message) == ("good",) * 100
        assert bytes(message).count(attack) == 2


def test_messages_may_lie_scattered_in_memory() -> None:
    parent, worker = pair()
    message = parent.pack([1])
    apart = bytearray(2 * len(message))
    apart[::2] = message
    assert worker.unpack(memoryview(apart)[::2]) == [1]


def test_specs_that_were_read_take_no_memory() -> None:
    parent, worker = pair()
    messages = [parent.pack_specs(i) for i in range(50)]
    for i in (1, 0, *range(3, 50), 2):
        assert worker.unpack_specs(messages[i]) == i
    assert worker._read_specs == set()
    for message in messages:
        with pytest.raises(UntrustedMessageError, match="were read before"):
            worker.unpack_specs(message)


def test_threads_make_messages_with_numbers_of_their_own() -> None:
    parent, worker = pair()
    with ThreadPoolExecutor(8) as threads:
        messages = list(threads.map(parent.pack, range(200)))
    messages.sort(key=lambda message: message[11:19])
    assert sorted(worker.unpack(message) for message in messages) == list(range(200))
