"""Open Inference Protocol requests: exact round trips, and malformed requests refused as such."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from chronograd.deploy import protocol
from chronograd.deploy.protocol import (
    DATATYPES,
    HEADER_LENGTH,
    InferenceRequest,
    ProtocolError,
    TensorSpec,
    check_inputs,
    decompressed,
    is_long,
    json_bytes,
    read_answer,
    read_request,
    write_answer,
    write_request,
)

NUMBERS = [dtype for name, dtype in DATATYPES.items() if name != "BYTES"]


def tensors(finite: bool) -> st.SearchStrategy[Any]:
    """A strategy of tensors of every datatype."""
    shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)

    def of(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
        limits = {"allow_nan": not finite, "allow_infinity": not finite, "width": 8 * dtype.itemsize}
        return arrays.arrays(dtype, shapes, elements=st.floats(**limits) if dtype.kind == "f" else None)

    strings = arrays.arrays(object, shapes, elements=st.text().map(lambda text: text.encode("utf-8", "ignore")))
    return st.one_of(*(of(dtype) for dtype in NUMBERS), strings)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(finite=False), min_size=1, max_size=3))
def test_binary_tensors_round_trip(inputs: dict[str, Any]) -> None:
    headers, body = write_request(inputs, is_binary=True)
    asked = read_request(body, headers[HEADER_LENGTH])
    assert asked.is_binary
    for name, array in inputs.items():
        assert asked.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(asked.inputs[name], array)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(finite=True), min_size=1, max_size=3))
def test_json_tensors_round_trip(inputs: dict[str, Any]) -> None:
    headers, body = write_request(inputs, is_binary=False)
    assert HEADER_LENGTH not in headers
    asked = read_request(body)
    for name, array in inputs.items():
        assert asked.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(asked.inputs[name], array)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(finite=True), min_size=1, max_size=3), st.data())
def test_answer_has_the_requested_outputs_in_order(outputs: dict[str, Any], data: Any) -> None:
    names = data.draw(st.permutations(list(outputs)))[: data.draw(st.integers(1, len(outputs)))]
    asked = {name: data.draw(st.booleans()) for name in names}
    headers, body = write_answer("m", "1", InferenceRequest({}, asked, "an id"), outputs)
    length = headers.get(HEADER_LENGTH)
    said = json.loads(body[: None if length is None else int(length)])
    assert (said["model_name"], said["model_version"], said["id"]) == ("m", "1", "an id")
    assert [one["name"] for one in said["outputs"]] == names
    assert [("data" not in one) for one in said["outputs"]] == list(asked.values())
    for name, array in read_answer(body, length).items():
        np.testing.assert_array_equal(array, outputs[name])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "id",
    "parameters",
    "inputs",
    "outputs",
    "name",
    "shape",
    "datatype",
    "data",
    "binary_data_size",
    "binary_data",
)


def body_of(kind: Any = JSON) -> st.SearchStrategy[Any]:
    """Return a request in which any field may have any value."""
    tensor = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["x", "y"]) | kind,
            "shape": st.lists(st.integers(-1, 5), max_size=3) | kind,
            "datatype": st.sampled_from([*DATATYPES, "BF16"]) | kind,
            "data": st.lists(st.integers() | st.floats() | st.booleans() | st.text(), max_size=6) | kind,
            "parameters": st.dictionaries(st.sampled_from(FIELDS), st.integers(-2, 40) | kind, max_size=2) | kind,
        },
    )
    return st.fixed_dictionaries(
        {"inputs": st.lists(tensor, max_size=3) | kind},
        optional={"outputs": st.lists(tensor, max_size=2) | kind, "id": kind, "parameters": kind},
    )


@settings(max_examples=150, deadline=None)
@given(body_of(), st.binary(max_size=40), st.one_of(st.none(), st.text(max_size=6), st.integers(-3, 400)))
def test_any_request_is_read_or_refused(data: Any, binary: bytes, length: Any) -> None:
    head = json.dumps(data).encode()
    header = str(len(head) if length is None else length)
    problem = None
    try:
        asked = read_request(head + binary, header)
    except ProtocolError as error:
        problem = error
    if problem is None:
        assert all(protocol.datatype_of(array) in DATATYPES for array in asked.inputs.values())
    else:
        assert 400 <= problem.status < 500
        assert 0 < len(str(problem)) < 1000


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=4)))
def test_arbitrary_bytes_are_refused(body: bytes, length: str | None) -> None:
    with pytest.raises(ProtocolError):
        read_request(body, length)


def request(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | changes
    return json.dumps({"inputs": [{k: v for k, v in tensor.items() if v is not None}]}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": []}', "inputs is a list of 0|inputs is \\[\\]"),
        (b'{"inputs": [' + b'{"name": "x"},' * 1001 + b"1]}", "at most 1000"),
        (request(datatype="BF16"), "datatype of input 'x' is 'BF16'"),
        (request(datatype="INT8", data=[1, 300]), "a number that INT8 cannot hold"),
        (request(datatype="UINT8", data=[1, -1]), "a number that UINT8 cannot hold"),
        (request(datatype="INT32", data=[1, 2.5]), "has 2.5, which is not a INT32"),
        (request(datatype="INT32", data=[1, True]), "has True, which is not a INT32"),
        (request(datatype="BOOL", data=[True, 0]), "has 0, which is not a BOOL"),
        (request(data=[1, 1e300]), "a number that FP32 cannot hold"),
        (request(data=[1, 10**400]), "a number that FP32 cannot hold"),
        (request(data=[1, "2"]), "has '2', which is not a FP32"),
        (request(datatype="BYTES", data=["a", "\ud800"]), "a string that is not text"),
        (request(data=[1]), "has 1 elements, and its shape is \\[2\\]"),
        (request(data=[[1, 2]]), "has shape \\[1, 2\\]"),
        (request(data=[[1], [2, 3]]), "differ in length"),
        (request(shape=[2, -1]), "shape of input 'x'"),
        (request(shape=[True, 2]), "shape of input 'x'"),
        (request(shape=[1] * 33), "shape of input 'x'"),
        (request(shape=[2**40, 2**40]), "has 2 elements"),
        (request(shape=[0, 2**62, 2**62], data=[]), "cannot be read"),
        (request(data=None), "neither data nor a binary_data_size"),
        (request(parameters={"binary_data_size": 8}), "both data and"),
        (request(data=None, parameters={"binary_data_size": 8}), "0 are left in the body"),
        (request(data=None, parameters={"binary_data_size": True}), "is True; send a number"),
        (request(parameters={"shared_memory_region": "r"}), "shared memory"),
        (b'{"inputs": [1], "parameters": {"sequence_id": 7}}', "sequences"),
        (b'{"inputs": [{"name": "x"}, {"name": "x"}]}', "datatype of input 'x' is None"),
    ],
)  # fmt: skip
def test_errors_state_the_fault(body: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read_request(body)


@pytest.mark.parametrize("length", ["-1", "1_0", " 5", "+5", "9" * 30, "1000000", "٣", ""])
def test_invalid_json_length_is_refused(length: str) -> None:
    with pytest.raises(ProtocolError, match=HEADER_LENGTH):
        read_request(request(), length)


def test_nested_and_flat_data_are_the_same_tensor() -> None:
    flat = read_request(request(shape=[2, 2], data=[1, 2, 3, 4.5]))
    nested = read_request(request(shape=[2, 2], data=[[1, 2], [3, 4.5]]))
    np.testing.assert_array_equal(flat.inputs["x"], np.array([[1, 2], [3, 4.5]], np.float32))
    np.testing.assert_array_equal(nested.inputs["x"], flat.inputs["x"])


def test_64_bit_integers_keep_all_bits() -> None:
    """Floating-point numbers would round them to 2**63 and 2**63 + 2048."""
    asked = read_request(request(datatype="UINT64", data=[2**63 + 1, 1]))
    assert asked.inputs["x"].tolist() == [2**63 + 1, 1]


def test_binary_tensors_are_aligned() -> None:
    """The length of the JSON before them varies."""
    for length in range(1, 9):
        headers, body = write_request({"x" * length: np.arange(3.0)}, is_binary=True)
        assert read_request(body, headers[HEADER_LENGTH]).inputs["x" * length].flags.aligned


def test_non_finite_numbers_are_not_sent_as_json() -> None:
    with pytest.raises(ProtocolError, match="y has values that are not finite") as raised:
        write_answer("m", "1", InferenceRequest({}), {"y": np.array([1.0, np.nan])})
    assert raised.value.status == 422
    headers, body = write_answer("m", "1", InferenceRequest({}, is_binary=True), {"y": np.array([1.0, np.nan])})
    assert np.isnan(read_answer(body, headers[HEADER_LENGTH])["y"][1])


def test_inputs_are_checked_against_the_model() -> None:
    specs = [TensorSpec("x", "FP32", (-1, 2))]
    check_inputs({"x": np.zeros((5, 2), np.float32)}, specs)
    for inputs, words in (
        ({}, "input x is missing"),
        ({"x": np.zeros((5, 2)), "z": np.zeros(1)}, "no input 'z'"),
        ({"x": np.zeros((5, 2))}, "is FP64, and the model takes FP32"),
        ({"x": np.zeros((5, 3), np.float32)}, r"shape \[5, 3\], and the model takes \[-1, 2\]"),
        ({"x": np.zeros(2, np.float32)}, r"shape \[2\]"),
    ):
        with pytest.raises(ProtocolError, match=words):
            check_inputs(inputs, specs)


def test_body_decompression_is_limited() -> None:
    assert decompressed(gzip.compress(b"abc"), "gzip", 3) == b"abc"
    assert decompressed(zlib.compress(b"abc"), "Deflate ", 3) == b"abc"
    for body, encoding, status in (
        (gzip.compress(bytes(10**6)), "gzip", 413),
        (b"abc", "gzip", 400),
        (gzip.compress(b"abc")[:-2], "gzip", 400),
        (gzip.compress(b"abc") + b"x", "gzip", 400),
        (b"abc", "br", 415),
    ):
        with pytest.raises(ProtocolError) as raised:
            decompressed(body, encoding, 1000)
        assert raised.value.status == status


def test_json_size_limit_and_slow_bodies() -> None:
    for is_binary in (False, True):
        headers, body = write_request({"x": np.ones(200_000, np.float32)}, is_binary=is_binary)
        length = headers.get(HEADER_LENGTH)
        end = json_bytes(body, length)
        assert is_long(body, length) == (not is_binary)
        assert list(read_request(body, length, end).inputs) == ["x"]
        with pytest.raises(ProtocolError, match="send binary data") as raised:
            read_request(body, length, end - 1)
        assert raised.value.status == 413
    headers, body = write_request({"x": np.full(100_000, b"", object)}, is_binary=True)  # read individually
    assert is_long(body, headers[HEADER_LENGTH])
    assert is_long(body.replace(b"BYTES", b"\\u0042YTES"), str(int(headers[HEADER_LENGTH]) + 5))


@pytest.mark.parametrize(
    ("head", "form"),
    [(b"\xff\xd8\xff\xe0", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"GIF89a", "image/gif")],
)
def test_picture_without_its_content_type_names_the_header(head: bytes, form: str) -> None:
    with pytest.raises(
        ProtocolError, match=f"the body is a picture .*; send it with the header Content-Type: {form}"
    ) as raised:
        protocol.read_request(head + bytes(100))
    assert raised.value.status == 415
