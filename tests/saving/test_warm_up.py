"""Warm-up files hold what TensorFlow Serving's messages say, and are read back."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import FileFormatError, ShapeError
from jax2tf_bridge.saved_model import WARM_UP, bytes_field
from jax2tf_bridge.saving.buckets import Bucketing, make_bucketing
from jax2tf_bridge.saving.serving import write_warm_up

# Private: requests are read back, which only TensorFlow Serving does otherwise.
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest, make_zeros, read_warm_up_requests

# Private: requests of every dtype and shape, without a model for each.
from jax2tf_bridge.saving.serving._warm_up_requests import (
    make_bucket_requests,
    make_request_from_example,
)
from shape_poly import parse_comparison
from tests.sampling import stride
from tests.saving.bucketed_functions import aval

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)


def bucketing(constraints: tuple[str, ...] = ()) -> Bucketing:
    inputs = {"x": aval("(b, l, 3)"), "mask": aval("(b,)", "bool"), "n": aval("()", "int32")}
    outputs = {"y": aval("(b,)")}
    buckets = {"b": (1, 8)}
    return make_bucketing("score", inputs, outputs, buckets, mask="mask", constraints=constraints)


def array(shape: tuple[int, ...], dtype: str) -> Any:
    return np.ones(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)


def all_dtypes() -> list[WarmUpRequest]:
    return [
        WarmUpRequest(
            f"of_{dtype}",
            {
                "zeros": make_zeros((2, 3), dtype),
                "ones": array((2, 3), dtype),
                "one": array((), dtype),
                "none": array((0, 2), dtype),
            },
        )
        for dtype in DTYPES
    ]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    requests = all_dtypes()
    write_warm_up(tmp_path, requests)
    assert (tmp_path / "assets.extra" / "tf_serving_warmup_requests").exists()
    found = list(read_warm_up_requests(tmp_path))
    assert [str(r) for r in found] == [str(r) for r in requests]
    for got, expected in zip(found, requests, strict=True):
        for name, array in expected.inputs.items():
            np.testing.assert_array_equal(got.inputs[name], array, strict=True)


def serving_messages() -> Any:
    """tensorflow.serving.PredictionLog, made by protobuf of the fields in the public .proto."""
    # It comes with TensorFlow; the bridge itself does without.
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pools = importlib.import_module("google.protobuf.descriptor_pool")
    factory = importlib.import_module("google.protobuf.message_factory")
    field = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="log.proto", package="s", syntax="proto3")

    def message(name: str, *fields: Any) -> Any:
        made = file.message_type.add(name=name)
        for number, label, kind, title in fields:
            type_name = f".s.{kind}" if kind[0].isupper() else None
            made.field.add(
                name=title,
                number=number,
                label=label,
                type=field.TYPE_MESSAGE if type_name else getattr(field, f"TYPE_{kind.upper()}"),
                type_name=type_name,
            )
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("ModelSpec", (1, one, "string", "name"), (3, one, "string", "signature_name"))
    request = message(
        "PredictRequest",
        (1, one, "ModelSpec", "model_spec"),
        (2, many, "PredictRequest.InputsEntry", "inputs"),
        (3, many, "string", "output_filter"),
    )
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=field.TYPE_BYTES)
    message("PredictLog", (1, one, "PredictRequest", "request"))
    message("PredictionLog", (6, one, "PredictLog", "predict_log"))
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("s.PredictionLog"))


def test_the_file_is_what_protobuf_reads(tmp_path: Path) -> None:
    requests = all_dtypes()
    write_warm_up(tmp_path, requests)
    log_class = serving_messages()
    records = list(tf.data.TFRecordDataset(str(tmp_path / WARM_UP)).as_numpy_iterator())
    for record, request in zip(records, requests, strict=True):
        read = log_class.FromString(record).predict_log.request
        assert read.model_spec.signature_name == request.signature
        assert list(read.output_filter) == []
        assert set(read.inputs) == set(request.inputs)
        for name, tensor in request.inputs.items():
            values = tf.io.parse_tensor(read.inputs[name], tensor.dtype)
            np.testing.assert_array_equal(values.numpy(), tensor)


def test_zeros_take_no_room(tmp_path: Path) -> None:
    request = WarmUpRequest("f", {"x": make_zeros((1024, 1024, 64), "float32")})
    write_warm_up(tmp_path, [request])
    assert (tmp_path / WARM_UP).stat().st_size < 100
    (found,) = read_warm_up_requests(tmp_path)
    assert str(found) == str(request)


def test_strings_are_read_back(tmp_path: Path) -> None:
    words = np.array([b"a", "größe".encode()], object)
    request = WarmUpRequest("f", {"words": words, "none": make_zeros((2,), "string")})
    write_warm_up(tmp_path, [request])
    (found,) = read_warm_up_requests(tmp_path)
    assert str(found) == str(request) == "f(words: string[2], none: string[2])"
    assert found.inputs["words"].tolist() == words.tolist()
    assert found.inputs["none"].tolist() == [b"", b""]


def test_a_request_for_each_bucket() -> None:
    assert [str(r) for r in make_bucket_requests(bucketing())] == [
        "score(x: float32[1,1,3], n: int32[])",
        "score(x: float32[8,1,3], n: int32[])",
    ]
    assert [str(r) for r in make_bucket_requests(bucketing(("l >= 5", "mod(l, 4) == 0")))] == [
        "score(x: float32[1,8,3], n: int32[])",
        "score(x: float32[8,8,3], n: int32[])",
    ]
    with pytest.raises(ShapeError, match="no sizes of l were found that satisfy l >= 5000"):
        make_bucket_requests(bucketing(("l >= 5000",)))


def test_an_example_of_open_sizes_is_a_request_as_it_is() -> None:
    inputs = {"x": aval("(b, l, 3)"), "ids": aval("(2*b,)", "int32"), "n": aval("()", "int32")}
    constraint = [parse_comparison("l >= b + 1")]
    x = np.ones((2, 4, 3), np.float32)
    request = make_request_from_example("f", inputs, constraint, {"x": x})
    assert str(request) == "f(x: float32[2,4,3], ids: int32[4], n: int32[])"
    assert request.inputs["x"] is x
    np.testing.assert_array_equal(
        make_request_from_example("f", inputs, (), {"n": np.int32(7)}).inputs["n"],
        np.int32(7),
        strict=True,
    )
    # The length follows from nothing that is given.
    request = make_request_from_example("f", inputs, constraint, {"ids": np.zeros(6, np.int32)})
    assert str(request) == "f(x: float32[3,4,3], ids: int32[6], n: int32[])"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            {"x": ((2, 2, 3), "float32")},
            r"are impossible: x is float32\[2,2,3\], expected float32\[b,l,3\]",
        ),
        (
            {"x": ((2, 3, 3), "float32"), "ids": ((2,), "int32")},
            r"; ids is int32\[2\], expected int32",
        ),
        (
            {"x": ((2, 3, 4), "float32")},
            r"the example for x is float32\[2,3,4\], and x is float32\[",
        ),
        ({"x": ((2, 3), "float32")}, r"the example for x is float32\[2,3\], and x is float32\["),
        ({"x": ((2, 3, 3), "float64")}, r"the example for x is float64\[2,3,3\], and x is float32"),
    ],
)
def test_examples_of_sizes_that_cannot_be(example: dict[str, Any], message: str) -> None:
    inputs = {"x": aval("(b, l, 3)"), "ids": aval("(2*b,)", "int32")}
    arrays = {name: array(*of) for name, of in example.items()}
    with pytest.raises(ShapeError, match=message) as info:
        make_request_from_example("f", inputs, [parse_comparison("l >= b + 1")], arrays)
    assert str(info.value).startswith(("f: the example for x", "f: the sizes of the example are"))


@pytest.mark.parametrize("size", [5, 1])
def test_an_example_whose_sizes_do_not_follow(size: int) -> None:
    """Neither a nor b is known: what is given would be cut, or cannot be."""
    inputs = {"x": aval("(a + b,)"), "y": aval("(a,)"), "n": aval("()", "int32")}
    with pytest.raises(ShapeError) as info:
        make_request_from_example("f", inputs, (), {"x": np.zeros(size, np.float32)})
    assert str(info.value) == (
        f"f: the example for x is float32[{size}]; its sizes do not follow from float32[a + b] "
        "alone. Give y as well."
    )


def test_an_example_is_repeated_and_cut() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    small, large = make_bucket_requests(bucketing(), {"x": x, "n": np.int32(7)})
    np.testing.assert_array_equal(small.inputs["x"], x[:1, :1])
    np.testing.assert_array_equal(large.inputs["x"], np.tile(x[:, :1], (4, 1, 1)))
    np.testing.assert_array_equal(small.inputs["n"], np.int32(7), strict=True)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            {"x": np.zeros((2, 2, 4), np.float32)},
            "score: the example for x is float32[2,2,4], and x is float32[b,l,3]",
        ),
        ({"x": np.zeros((2, 3), np.float32)}, "the example for x is float32[2,3], and x is"),
        ({"x": np.zeros((0, 1, 3), np.float32)}, "the example for x is float32[0,1,3], and x is"),
        ({"n": np.int64(1)}, "score: the example for n is int64[], and n is int32[]"),
    ],
)
def test_examples_that_do_not_fit(example: Any, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        make_bucket_requests(bucketing(), example)
    assert message in str(caught.value)


def test_more_than_tensorflow_serving_takes(tmp_path: Path) -> None:
    request = WarmUpRequest("f", {})
    write_warm_up(tmp_path, [request] * 1000)
    assert (tmp_path / WARM_UP).exists()
    with pytest.raises(ShapeError) as caught:
        write_warm_up(tmp_path / "more", [request] * 1001)
    assert str(caught.value) == (
        "1001 warm-up requests, one for each signature and choice of buckets: TensorFlow Serving "
        "loads a model with at most 1000. Give fewer buckets."
    )
    assert not (tmp_path / "more").exists()


def test_no_file_means_no_requests(tmp_path: Path) -> None:
    assert list(read_warm_up_requests(tmp_path)) == []


def test_damaged_files(tmp_path: Path) -> None:
    write_warm_up(tmp_path, all_dtypes()[:2])
    path = tmp_path / WARM_UP
    data = path.read_bytes()
    for at in {*range(16), *range(16, len(data), stride(7))}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(FileFormatError, match="not a warm-up file of TensorFlow Serving, or"):
            list(read_warm_up_requests(tmp_path))
    # A record is its length, a checksum, its bytes, and another checksum.
    first = 16 + int.from_bytes(data[:8], "little")
    for length in {*range(1, len(data), stride(7)), first - 1, first + 1, len(data) - 1} - {first}:
        path.write_bytes(data[:length])
        with pytest.raises(FileFormatError, match="not a warm-up file"):
            list(read_warm_up_requests(tmp_path))
    path.write_bytes(data[:first])
    assert [request.signature for request in read_warm_up_requests(tmp_path)] == ["of_bool"]


def log_of(proto: bytes) -> bytes:
    entry = bytes_field(1, "x") + bytes_field(2, proto)
    return bytes_field(6, bytes_field(1, bytes_field(2, entry)))


@pytest.mark.parametrize(
    "record",
    [
        b"\x00\x01",
        b"\x0b",
        b"\xff" * 11,
        b"\x32\x7f",
        b"\x09\x01",
        b"\x80",
        log_of(b"\x08\x01\x12\x7f"),
    ],
)
def test_records_that_are_no_requests(record: bytes, tmp_path: Path) -> None:
    path = tmp_path / WARM_UP
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(record)
    told = "not a warm-up file|tf_serving_warmup_requests cannot be read: in an? "
    with pytest.raises(FileFormatError, match=told):
        list(read_warm_up_requests(tmp_path))


def test_requests_of_other_kinds_and_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / WARM_UP
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(bytes_field(2, b"to classify"))
        writer.write(b"\x08\x05" + bytes_field(6, bytes_field(1, b"\x5d\0\0\0\0\x09" + b"\0" * 8)))
    (found,) = read_warm_up_requests(tmp_path)
    assert (found.signature, found.inputs) == ("serving_default", {})
