"""ONNX models: search, refusals, and which requests may share a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.deploy import onnx_models

from chronograd.deploy import model as models
from chronograd.deploy import repository
from chronograd.deploy.protocol import ProtocolError
from chronograd.errors import FileFormatError, InputError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_models_in_files_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a.onnx", "a@3.onnx", "notes.txt", "b/1/model.onnx", "b/12/model.onnx", "b/draft/model.onnx")
    everything = [("a", "1"), ("a", "3"), ("b", "1"), ("b", "12")]
    assert [(p.name, p.version) for p in repository.find([tmp_path])] == everything
    assert [(p.name, p.version) for p in repository.find([tmp_path / "b"])] == everything[2:]
    assert [(p.name, p.version) for p in repository.find([tmp_path / "a@3.onnx", tmp_path / "b"])] == everything[1:]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["notes.txt"], "there is no model at"),
        (["m@0.onnx"], "is not the name of a model"),
        (["m@new.onnx"], "is not the name of a model"),
        (["a model.onnx"], "is not the name of a model"),
        (["m.onnx", "m@1.onnx"], "version 1 of m exists twice"),
    ],
)
def test_invalid_model_names_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    touch(tmp_path, *names)
    with pytest.raises(InputError, match=words):
        repository.find([tmp_path])


@pytest.mark.serve
def test_invalid_model_is_refused(tmp_path: Path) -> None:
    path = onnx_models.scale(tmp_path / "m.onnx")
    whole = path.read_bytes()
    for content in (b"", b"no model", bytes(100), whole[:-20], whole[: len(whole) // 2], b"\x89PNG\r\n" + whole):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"m\.onnx"):
            models.load(path)
    with pytest.raises(FileFormatError, match="cannot read"):
        models.load(tmp_path / "nothing.onnx")


@pytest.mark.serve
@pytest.mark.parametrize(
    "place", ["../weights.bin", "/etc/hostname", "inside/../../weights.bin", "link.bin", "missing.bin"]
)
def test_model_data_outside_its_folder_is_refused(tmp_path: Path, place: str) -> None:
    import onnx

    folder = tmp_path / "models"
    path = onnx_models.scale(folder / "m.onnx")
    (tmp_path / "weights.bin").write_bytes(np.float32(5).tobytes())
    (folder / "weights.bin").write_bytes(np.float32(5).tobytes())
    (folder / "link.bin").symlink_to("../weights.bin")

    def save(place: str) -> None:
        proto = onnx.load(path)
        factor = next(one for one in proto.graph.initializer if one.name == "factor")
        factor.ClearField("raw_data")
        factor.ClearField("external_data")
        factor.data_location = onnx.TensorProto.EXTERNAL
        factor.external_data.add(key="location", value=place)
        path.write_bytes(proto.SerializeToString())

    original = path.read_bytes()
    save("weights.bin")
    model = models.load(path)
    assert model.run({"x": np.ones((1, 4), np.float32)}, ["y"])[0].tolist() == [[5] * 4]
    assert model.is_on_disk()
    (folder / "weights.bin").write_bytes(np.float32(6).tobytes() + b" ")
    assert not model.is_on_disk()
    path.write_bytes(original)
    save(place)
    with pytest.raises(FileFormatError, match="external data"):
        models.load(path)


@pytest.mark.serve
def test_requests_are_merged_only_for_independent_rows(tmp_path: Path) -> None:
    assert models.load(onnx_models.heavy(tmp_path / "heavy.onnx")).most_rows > 1
    for path, words in (
        (onnx_models.centred(tmp_path / "centred.onnx"), "its answer to a row depends on the other rows"),
        (onnx_models.scale(tmp_path / "fixed.onnx", rows=1), "the first axis of x has a fixed length"),
    ):
        model = models.load(path)
        assert (model.most_rows, model.why_alone) == (1, words)
    assert models.load(tmp_path / "heavy.onnx", most_rows=1).why_alone == "batching is off"


@pytest.mark.serve
def test_unusable_inputs_are_client_errors(tmp_path: Path) -> None:
    model = models.load(onnx_models.lookup(tmp_path / "m.onnx"))
    with pytest.raises(ProtocolError, match="cannot run with these inputs") as raised:
        model.run({"index": np.array([3])}, ["y"])
    assert raised.value.status == 400
