"""Detection sets downloaded in their published layout, from a local server with small sets."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torchvision.datasets.voc as torchvision_voc
from PIL import Image
from tests.detect.test_sets import annotation, voc_object

from chronograd.cli.main import main
from chronograd.data import downloads
from chronograd.data.downloads import SPLITS, fetch_decathlon, fetch_file, fetch_open_images, fetch_voc
from chronograd.errors import InputError, NotFoundError, RunError

HEADER = [
    "ImageID",
    "Source",
    "LabelName",
    "Confidence",
    "XMin",
    "XMax",
    "YMin",
    "YMax",
    "IsOccluded",
    "IsTruncated",
    "IsGroupOf",
    "IsDepiction",
    "IsInside",
]
PICTURES = {"train": ["aa01", "aa02", "aa03"], "validation": ["bb01"], "test": ["cc01", "cc02"]}
LABELS = {"/m/01": "Handgun", "/m/02": "Shotgun", "/m/03": "Tree"}


class Server:
    """A server of `files` by path.

    The first answer for paths in `torn` stops half-way; paths in `wrong` have a false md5.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.torn: set[str] = set()
        self.wrong: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.asked.append((self.path, asked))
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
                if asked and first >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(content) - first))
                md5 = hashlib.md5(content + (b"!" if self.path in server.wrong else b""))
                if self.path.endswith(".jpg"):
                    self.send_header("ETag", f'"{md5.hexdigest()}"')
                else:
                    self.send_header("x-goog-hash", f"md5={base64.b64encode(md5.digest()).decode()}")
                self.end_headers()
                is_torn = self.path in server.torn
                server.torn.discard(self.path)
                self.wfile.write(content[first : len(content) // 2 if is_torn else None])

            def log_message(self, *_: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}"
        threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    own = Server()
    monkeypatch.setattr(downloads, "ANNOTATIONS_URL", f"{own.url}/2018_04")
    monkeypatch.setattr(downloads, "PICTURES_URL", own.url)
    monkeypatch.setattr(downloads, "PAUSE_S", 0.0)
    yield own
    own.httpd.shutdown()
    own.httpd.server_close()


def jpeg(grey: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), (grey,) * 3).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def open_images(server: Server) -> Server:
    """Two of three training pictures, and one each of validation and test, contain a gun."""
    server.files["/2018_04/class-descriptions-boxable.csv"] = "".join(f"{k},{v}\n" for k, v in LABELS.items()).encode()
    for split in SPLITS:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEADER)
        for number, name in enumerate(PICTURES[split]):
            label = list(LABELS)[number % 3]
            writer.writerow([name, "xclick", label, 1, 0.25, 0.75, 0.5, 1.0, 0, 0, 0, 0, 0])
            server.files[f"/{split}/{name}.jpg"] = jpeg(50 * number)
        server.files[f"/2018_04/{split}/{split}-annotations-bbox.csv"] = stream.getvalue().encode()
    return server


def test_pictures_of_chosen_classes_are_downloaded_once(open_images: Server, tmp_path: Path) -> None:
    fetched = fetch_open_images(tmp_path / "guns", ["Handgun", "Shotgun"])
    root = fetched.folder
    assert "2 train, 1 validation, 2 test pictures with Handgun, Shotgun" in fetched.summary
    assert sorted(p.name for p in root.glob("*/*.jpg")) == ["aa01.jpg", "aa02.jpg", "bb01.jpg", "cc01.jpg", "cc02.jpg"]
    for line in (root / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest
    assert "CC BY 4.0" in (root / "LICENCE.txt").read_text()
    # A second time: no download except of damaged files, and no digest appears twice.
    open_images.asked.clear()
    (root / "train/aa01.jpg").write_bytes(b"damaged")
    again = fetch_open_images(root, ["Handgun", "Shotgun"])
    assert [path for path, _ in open_images.asked] == ["/train/aa01.jpg"]
    assert "1 file fetched, 8 were there" in again.summary
    names = [line.split("  ")[1] for line in (root / "SHA256SUMS").read_text().splitlines()]
    assert len(names) == len(set(names)) == 9


def test_verb_downloads_a_set_that_a_job_reads(
    open_images: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    words = ["data", "open-images:guns", "class_names=[Handgun,Shotgun]", "--download", "--most", "1", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "1 train, 1 validation, 1 test pictures" in err
    described = json.loads(out)
    assert (described["train_size"], described["test_size"]) == (1, 1)
    assert [(c["name"], c["train_objects"]) for c in described["classes"]] == [("Handgun", 1), ("Shotgun", 0)]
    assert described["classes"][0]["sides"] == pytest.approx([0.5, 0.5])


def test_missing_picture_is_skipped_and_reported(open_images: Server, tmp_path: Path) -> None:
    del open_images.files["/train/aa02.jpg"]
    fetched = fetch_open_images(tmp_path, ["Handgun", "Shotgun"])
    assert fetched.notes[0] == "1 picture no longer on the server: train/aa02"
    assert "aa02" not in (tmp_path / "sub-train-annotations-bbox.csv").read_text()


def test_classes_are_checked(open_images: Server, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean Handgun"):
        fetch_open_images(tmp_path, ["Handgum"])
    with pytest.raises(InputError, match="chooses no class"):
        fetch_open_images(tmp_path, [])


def test_interrupted_download_resumes(server: Server, tmp_path: Path) -> None:
    server.files["/large.csv"] = content = bytes(range(256)) * 400
    server.torn.add("/large.csv")
    fetch_file(f"{server.url}/large.csv", tmp_path / "large.csv")
    assert (tmp_path / "large.csv").read_bytes() == content
    assert server.asked == [("/large.csv", None), ("/large.csv", f"bytes={len(content) // 2}-")]
    # Left by a killed process, and longer than the new file.
    for part in (content[:1000], content + b"more"):
        (tmp_path / "large.csv.part").write_bytes(part)
        fetch_file(f"{server.url}/large.csv", tmp_path / "large.csv")
        assert (tmp_path / "large.csv").read_bytes() == content


def test_wrong_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    for name in ("a.csv", "a.jpg"):
        server.files[f"/{name}"] = b"content"
        server.wrong.add(f"/{name}")
        with pytest.raises(RunError, match=r"failed 4 times: what came has not the md5"):
            fetch_file(f"{server.url}/{name}", tmp_path / name)
        assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match="is not there"):
        fetch_file(f"{server.url}/none.csv", tmp_path / "none.csv")


def archive(split: str, name: str, root: str = "VOCdevkit/VOC2007", picture: str = "") -> bytes:
    """Return a tar file of VOC with one picture."""
    stream = io.BytesIO()
    files = {
        f"Annotations/{name}.xml": annotation(voc_object("dog", 5, 5, 20, 20), size=(40, 30)).encode(),
        f"JPEGImages/{picture or name}.jpg": jpeg(90),
        f"ImageSets/Main/{split}.txt": f"{name}\n".encode(),
    }
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(f"{root}/{path}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def publish(server: Server, monkeypatch: pytest.MonkeyPatch, key: str, content: bytes) -> None:
    """Point torchvision to an archive on that server."""
    entry = torchvision_voc.DATASET_YEAR_DICT[key]
    server.files[f"/{entry['filename']}"] = content
    changed = {**entry, "url": f"{server.url}/{entry['filename']}", "md5": hashlib.md5(content).hexdigest()}
    monkeypatch.setitem(torchvision_voc.DATASET_YEAR_DICT, key, changed)


def test_voc_is_downloaded_through_torchvision(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, split, name in (("2007", "trainval", "000005"), ("2007-test", "test", "000001")):
        publish(server, monkeypatch, key, archive(split, name))
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    assert main(["data", "voc:VOCdevkit/VOC2007", "--download", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["train_size"], described["test_size"], described["classes"][0]["name"]) == (1, 1, "dog")
    asked = len(server.asked)
    assert fetch_voc(tmp_path / "VOCdevkit/VOC2007").summary.endswith("it was there")
    assert len(server.asked) == asked
    # A split with a missing picture is unpacked again.
    (tmp_path / "VOCdevkit/VOC2007/JPEGImages/000001.jpg").unlink()
    assert not fetch_voc(tmp_path / "VOCdevkit/VOC2007").summary.endswith("it was there")
    assert (tmp_path / "VOCdevkit/VOC2007/JPEGImages/000001.jpg").is_file()
    # In another data folder, the same name means another set.
    other = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "VOCdevkit", other / "VOCdevkit")
    for path in other.rglob("*.xml"):
        path.write_text(path.read_text().replace("dog", "cat"))
    monkeypatch.setenv("CHRONOGRAD_DATA", str(other))
    assert main(["data", "voc:VOCdevkit/VOC2007", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"][0]["name"] == "cat"
    with pytest.raises(InputError, match="does not say which year"):
        fetch_voc(tmp_path / "pictures")


def test_voc_2011_has_one_more_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = "TrainVal/VOCdevkit/VOC2011"
    publish(server, monkeypatch, "2011", archive("trainval", "2007_000027", root))
    with pytest.raises(InputError, match="not where the archive of VOC 2011 has it"):
        fetch_voc(tmp_path / "VOCdevkit/VOC2011")
    assert not server.asked
    assert fetch_voc(tmp_path / root).folder == tmp_path / root
    assert (tmp_path / root / "JPEGImages/2007_000027.jpg").is_file()
    assert fetch_voc(tmp_path / root).summary.endswith("it was there")


def test_incomplete_archive_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server, monkeypatch, "2012", archive("trainval", "a", "VOCdevkit/VOC2012", picture="b"))
    with pytest.raises(RunError, match="still has not all of trainval"):
        fetch_voc(tmp_path / "VOCdevkit/VOC2012")


# -- Visual Decathlon -------------------------------------------------------------------------------


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def decathlon_set(name: str) -> bytes:
    """Return the tar file of a set: two classes with two training pictures and one test picture each, and unlabelled ones."""
    own = {f"{name}/train/000{k}/00000{i}.jpg": jpeg(60 * k + i) for k in (1, 2) for i in (1, 2)}
    own |= {f"{name}/val/000{k}/00001{k}.jpg": jpeg(60 * k) for k in (1, 2)}
    return tar({**own, f"{name}/test/000021.jpg": jpeg(9)})


@pytest.fixture
def decathlon(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server of an archive with two sets, whose digest is published; the data folder is empty."""
    content = tar({f"{name}.tar": decathlon_set(name) for name in ("dtd", "svhn")}, "w:gz")
    server.files["/share/decathlon-1.0-data.tar.gz"] = content
    monkeypatch.setattr(downloads, "DECATHLON_URL", f"{server.url}/share/decathlon-1.0-data.tar.gz")
    monkeypatch.setattr(downloads, "DECATHLON_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    return server


def test_set_of_the_decathlon_is_downloaded_once_and_read(
    decathlon: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decathlon.torn.add("/share/decathlon-1.0-data.tar.gz")  # the connection ends half-way
    assert main(["data", "decathlon:svhn", "--download", "--json"]) == 0
    out, err = capsys.readouterr()
    described = json.loads(out)
    assert (described["train_size"], described["test_size"], described["shape"]) == (4, 2, [3, 72, 72])
    assert [c["name"] for c in described["classes"]] == ["0001", "0002"]
    assert "remove it if you need none of them" in err
    root = tmp_path / "decathlon-1.0"
    names = {"svhn", "decathlon-1.0-data.tar.gz", "SHA256SUMS"}
    assert {path.name for path in root.iterdir()} == names  # nothing temporary
    # The second set comes from the same archive, and a set on disk needs neither.
    asked = len(decathlon.asked)
    assert fetch_decathlon("dtd").folder == root / "dtd"
    (root / "decathlon-1.0-data.tar.gz").unlink()
    assert fetch_decathlon("dtd").summary.endswith("it was there")
    assert len(decathlon.asked) == asked
    with pytest.raises(NotFoundError, match="did you mean gtsrb"):
        fetch_decathlon("gtrsb")
    with pytest.raises(InputError, match="not offered as a target"):
        fetch_decathlon("imagenet12")


def test_other_archives_of_the_decathlon_are_refused(
    decathlon: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, path = tmp_path / "decathlon-1.0", "/share/decathlon-1.0-data.tar.gz"
    published = decathlon.files[path]
    with pytest.raises(RunError, match=r"cannot be unpacked: it has no aircraft\.tar"):
        fetch_decathlon("aircraft")
    (root / "decathlon-1.0-data.tar.gz").unlink()
    outside = tar({"dtd.tar": tar({"../evil.jpg": jpeg(1)})}, "w:gz")
    decathlon.files[path] = outside
    with pytest.raises(RunError, match=f"but {hashlib.sha256(published).hexdigest()} is published"):
        fetch_decathlon("dtd")
    assert not (root / "decathlon-1.0-data.tar.gz").exists()
    monkeypatch.setattr(downloads, "DECATHLON_SHA256", hashlib.sha256(outside).hexdigest())
    with pytest.raises(RunError, match=r"cannot be unpacked: .*outside the destination"):
        fetch_decathlon("dtd")
    assert not list(tmp_path.rglob("evil.jpg"))
    assert not (root / "dtd").exists()
