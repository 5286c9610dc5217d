"""The reader of TFLite files: small files written here, whole, cut, altered, and of other kinds."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.flat_buffer import ADD, CONVOLUTION, DEPTHWISE, FLOAT16, INT8, Model, tflite

from chronograd.errors import FileFormatError
from chronograd.models import tflite_weights
from chronograd.models.weights import load_pretrained

# Outputs, height, width, inputs; and 1, height, width, outputs.
PLAIN = np.arange(2 * 3 * 1 * 4).reshape(2, 3, 1, 4) / 8
DEEP = np.arange(3 * 2 * 5).reshape(1, 3, 2, 5) / 4


def model(kind: int = FLOAT16) -> Model:
    """A convolution with 16-bit constants and a bias, and a depthwise one without bias, as converters write them."""
    made = Model()
    x = made.result()
    weight = made.widened(made.constant("trunk/first/Conv2D", PLAIN, kind))
    bias = made.widened(made.constant("trunk/first/BatchNorm/FusedBatchNormV3;other", [0.5, -2.0], kind))
    x = made.operator(CONVOLUTION, [x, weight, bias], made.result("y"))
    x = made.operator(ADD, [x, x], made.result("z"))
    deep = made.constant("trunk/second/BatchNorm/FusedBatchNormV3;trunk/second/depthwise;head/Conv2D", DEEP)
    made.operator(DEPTHWISE, [x, deep, -1], made.result("out"))
    return made


def written(tmp_path: Path, data: bytes, name: str = "net.tflite") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_layers_have_their_names_values_and_order_of_dimensions(tmp_path: Path) -> None:
    layers = tflite_weights.read(written(tmp_path, model().file()))
    assert list(layers) == ["trunk/first.weight", "trunk/first.bias", "trunk/second.weight"]
    weight, bias, deep = layers.values()
    assert {tensor.dtype for tensor in layers.values()} == {torch.float32}
    assert (tuple(weight.shape), tuple(deep.shape)) == ((2, 4, 3, 1), (5, 1, 3, 2))
    assert weight[1, 2, 0, 0] == PLAIN[1, 0, 0, 2]
    assert weight[0, 3, 2, 0] == PLAIN[0, 2, 0, 3]
    assert deep[4, 0, 2, 1] == DEEP[0, 2, 1, 4]
    assert bias.tolist() == [0.5, -2.0]


def test_model_inside_an_archive(tmp_path: Path) -> None:
    whole = tflite_weights.read(written(tmp_path, model().file()))
    archive = written(tmp_path, b"???\nBicycle\nBoot\n" + model().file() + b"and more", "all_packed_assets.data")
    inside = tflite_weights.read(archive)
    assert whole.keys() == inside.keys()
    assert all(torch.equal(whole[name], inside[name]) for name in whole)


def test_file_is_loaded_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, model().file())
    network = torch.nn.Module()
    network.first = torch.nn.Conv2d(4, 2, (3, 1))
    network.second = torch.nn.Conv2d(5, 5, (3, 2), groups=5, bias=False)
    network.own_name = lambda name: name.removeprefix("trunk/")  # type: ignore[assignment]
    loaded = load_pretrained(network, str(path), "net")
    assert (loaded.num_loaded, loaded.fresh) == (3, ())
    assert network.first.bias.tolist() == [0.5, -2.0]


def test_file_that_was_cut_off_is_refused_at_every_length(tmp_path: Path) -> None:
    data = model().file()
    path = tmp_path / "cut.tflite"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(FileFormatError) as error:
            tflite_weights.read(path)
        assert "\n" not in error.value.message
        assert str(path) in error.value.message
        assert error.value.hint


def test_altered_file_is_read_or_refused(tmp_path: Path) -> None:
    data, drawn = model().file(), random.Random(0)
    path = tmp_path / "altered.tflite"
    messages = []
    for _ in range(800):
        altered = bytearray(data)
        for _ in range(drawn.choice((1, 1, 4))):
            altered[drawn.randrange(len(data))] = drawn.choice((0, 1, 10, 127, 128, 255, drawn.randrange(256)))
        path.write_bytes(altered)
        try:
            tflite_weights.read(path)
        except FileFormatError as error:
            messages.append(error.message)
    assert 80 < len(messages) < 720
    assert not [message for message in messages if not message.isprintable()]


def _quantised() -> bytes:
    return model(INT8).file()


def _twins() -> bytes:
    made = model()
    made.operators.append(made.operators[-1])
    return made.file()


def _without_convolution() -> bytes:
    made = Model()
    made.operator(ADD, [made.result(), made.result()], made.result())
    return made.file()


def _computed() -> bytes:
    made = Model()
    made.operator(CONVOLUTION, [made.result(), made.result("trunk/first")], made.result())
    return made.file()


def _of_another_shape() -> bytes:
    made = model()
    made.tensors[1][0] = [2, 3, 1, 5]
    return made.file()


def _with_a_name_of_two_lines() -> bytes:
    made = model()
    made.tensors[1][3] = "two\nlines"
    return made.file()


def _without_inputs() -> bytes:
    made = model()
    made.operators[2][1] = []
    return made.file()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a model", r"has no TFLite model: its mark TFL3 is missing"),
        (_quantised(), r"tensor trunk/first/Conv2D is neither float16 nor float32; quantised models are not supported"),
        (model().file(graphs=2), r"it has 2 graphs, not one"),
        (_twins(), r"two convolutions have the name trunk/second"),
        (_without_convolution(), r"it has no convolution"),
        (_computed(), r"tensor trunk/first is not a constant"),
        (_of_another_shape(), r"tensor trunk/first/Conv2D has the shape \(2, 3, 1, 5\) and 24 values"),
        (_with_a_name_of_two_lines(), r"tensor 1 has a name that is not printable"),
        (_without_inputs(), r"a convolution has tensor -1 of \d+"),
        (tflite({0: 3}), r"it has 0 graphs, not one"),
        (tflite({0: 3, 2: [{}] * 100_001}), r"100,001 tables of a kind"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as error:
        tflite_weights.read(written(tmp_path, data))
    assert error.value.hint
