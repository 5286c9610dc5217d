"""Downloads of sets in their published layouts: VOC by torchvision, Open Images picture by picture, and the Visual Decathlon
as one archive, from which the requested set is unpacked.

For Open Images, only pictures with objects of the chosen classes are downloaded:

    class-descriptions-boxable.csv, whole/SPLIT-annotations-bbox.csv    as published
    sub-SPLIT-annotations-bbox.csv                                      the rows of those classes
    SPLIT/IMAGE.jpg                                                     their pictures
    SHA256SUMS, LICENCE.txt                                             digests for `sha256sum -c`; the licence

A file whose digest matches SHA256SUMS is not downloaded again. A partial file is completed.
"""

from __future__ import annotations

import base64
import csv
import http.client
import io
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from chronograd import files
from chronograd.data.layouts import decathlon_folder
from chronograd.data.published import data_folder
from chronograd.errors import EXTRAS, InputError, MissingExtraError, NotFoundError, RunError
from chronograd.job import Data
from chronograd.words import how_many

# The address that the downloader of github.com/qfgaohao/pytorch-ssd uses.
ANNOTATIONS_URL = "https://storage.googleapis.com/openimages/2018_04"
PICTURES_URL = "https://open-images-dataset.s3.amazonaws.com"
# The address stands on robots.ox.ac.uk/~vgg/decathlon, which states no digest. This one, of 406,351,554 bytes, is recorded in
# url_checksums/visual_domain_decathlon.txt of github.com/tensorflow/datasets.
DECATHLON_URL = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-data.tar.gz"
DECATHLON_SHA256 = "8eca928bda025d855c91a78db45b3b18bc322efd7b1462a041e62c27b3c83c25"
SPLITS = ("train", "validation", "test")
TRIES = 4
PAUSE_S = 1.0
AT_ONCE = 8
LICENCE = """\
Open Images (https://storage.googleapis.com/openimages/web/index.html)

The annotations are licensed by Google LLC under CC BY 4.0. The images are listed by their owners as having a CC BY 2.0 licence;
Google makes no representation about the licence of any of them: check each that you use. Authors and licences stand in
image_ids_and_rotation.csv, which the site above has.
"""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Fetched:
    """The result of a download, in words, and its folder."""

    folder: Path
    summary: str
    notes: tuple[str, ...] = ()


def download(data: Data, most: int | None, say: Say) -> Fetched:
    """Download a set into the folder of its name. A relative folder lies in the data folder.

    Args:
        most: pictures of each split, for Open Images.
    Raises: InputError for a set with another way to download it, RunError where the network or the server fails.
    """
    layout, _, path = data.name.partition(":")
    root = data_folder() / Path(path).expanduser()
    if layout == "voc":
        return fetch_voc(root)
    if layout == "open-images":
        return fetch_open_images(root, data.class_names or (), most, say)
    if layout == "decathlon":
        return fetch_decathlon(path, say)
    raise InputError(
        f"--download cannot download {data.name}",
        "it downloads voc:…/VOCdevkit/VOC2007, open-images:PATH and decathlon:SET",
    )


def fetch_decathlon(name: str, say: Say = lambda text: None) -> Fetched:
    """Download the archive of the nine sets of the Visual Decathlon, and unpack one of them. The archive stays for the others.

    Raises: as `decathlon_folder`; RunError where the download fails, or the archive is another one or lacks the set.
    """
    folder = decathlon_folder(name)
    if folder.is_dir():
        return Fetched(folder, f"{name} of the Visual Decathlon is in {folder}; it was there")
    folder.parent.mkdir(parents=True, exist_ok=True)
    archive = folder.parent / DECATHLON_URL.rpartition("/")[2]
    say("decathlon: the archive of nine sets, 406 MB")
    Sums(folder.parent).fetch(DECATHLON_URL, archive.name, DECATHLON_SHA256)
    say(f"decathlon: unpacking {name}")
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=f".{name}.") as aside:
            with tarfile.open(archive) as outer:
                member = next(one for one in outer if one.isfile() and Path(one.name).name == f"{name}.tar")
                with tarfile.open(fileobj=outer.extractfile(member), mode="r|") as inner:
                    inner.extractall(aside, filter="data")
            (Path(aside) / name).replace(folder)
    except (tarfile.TarError, OSError, EOFError, StopIteration) as error:
        why = f"it has no {name}.tar" if isinstance(error, StopIteration) else str(error)
        raise RunError(f"{archive} cannot be unpacked: {why}", "remove it to download it again") from None
    notes = (f"the other sets are in {archive}; remove it if you need none of them",)
    return Fetched(folder, f"{name} of the Visual Decathlon is in {folder}", notes)


def fetch_voc(root: Path) -> Fetched:
    """Download a year of PASCAL VOC by torchvision, which checks its digests; for 2007 with the test split."""
    year = re.fullmatch(r"VOC(20(?:07|08|09|10|11|12))", root.name)
    if year is None or root.parent.name != "VOCdevkit":
        raise InputError(
            f"{root} does not say which year of VOC is meant",
            "name it as VOC does, such as voc:VOCdevkit/VOC2007",
        )
    splits = ("trainval", "test") if year[1] == "2007" else ("trainval",)
    missing = [split for split in splits if not _has_voc_split(root, split)]
    folder = root.parent.parent  # the archive is unpacked here
    if missing and year[1] == "2011":  # the archive of 2011 has one more folder
        if folder.name != "TrainVal":
            raise InputError(
                f"{root} is not where the archive of VOC 2011 has it", "name it voc:TrainVal/VOCdevkit/VOC2011"
            )
        folder = folder.parent
    try:
        from torchvision.datasets import VOCDetection
    except ModuleNotFoundError:
        raise MissingExtraError("torchvision", EXTRAS["torchvision"], "downloading VOC") from None
    hint = f"unpack its archives into {folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.impatient():
            for split in missing:
                VOCDetection(folder, year=year[1], image_set=split, download=True)
    except Exception as error:  # the download and the archive can raise anything
        raise RunError(f"downloading VOC {year[1]} failed: {error}", hint) from error
    for split in missing:
        if not _has_voc_split(root, split):
            raise RunError(f"VOC {year[1]} was downloaded, and {root} still has not all of {split}", hint)
    return Fetched(root, f"VOC {year[1]} is in {root}" + ("" if missing else "; it was there"))


def _has_voc_split(root: Path, split: str) -> bool:
    """Return whether a split is complete: its list exists, with the last picture and annotation. A torn download lacks the end."""
    listed = root / "ImageSets/Main" / f"{split}.txt"
    lines = files.read_text(listed, "replace").split("\n") if listed.is_file() else []
    names = [line.split()[0] for line in lines if line.strip()]
    if not names:
        return False
    return (root / f"Annotations/{names[-1]}.xml").is_file() and (root / f"JPEGImages/{names[-1]}.jpg").is_file()


# -- Open Images ------------------------------------------------------------------------------------


def fetch_open_images(
    root: Path, classes: Sequence[str], most: int | None = None, say: Say = lambda text: None
) -> Fetched:
    """Download boxes and pictures of some classes of Open Images, for all three splits."""
    from chronograd.detect.sets import DESCRIPTIONS, descriptions

    if not classes:
        raise InputError(
            "data.class_names chooses no class of Open Images, which has 600",
            "name some, such as class_names=[Handgun,Shotgun]",
        )
    (root / "whole").mkdir(parents=True, exist_ok=True)
    sums = Sums(root)
    files.write_aside(root / "LICENCE.txt", LICENCE)
    sums.fetch(f"{ANNOTATIONS_URL}/{DESCRIPTIONS}", DESCRIPTIONS)
    identifiers = descriptions(root / DESCRIPTIONS)
    for name in classes:
        if name not in identifiers:
            raise NotFoundError("class of Open Images", name, identifiers)
    wanted = {identifiers[name] for name in classes}
    counts, missing = {}, []
    for split in SPLITS:
        listed = f"{split}-annotations-bbox.csv"
        say(f"{split}: boxes")
        sums.fetch(f"{ANNOTATIONS_URL}/{split}/{listed}", f"whole/{listed}")
        header, rows = _rows(root / "whole" / listed, wanted)
        names = list(dict.fromkeys(row["ImageID"] for row in rows))[:most]
        (root / split).mkdir(exist_ok=True)
        say(f"{split}: {how_many(len(names), 'pictures')}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            is_there = dict(zip(names, pool.map(partial(_picture, sums, split), names), strict=True))
        lost = [name for name, there in is_there.items() if not there]
        missing += [f"{split}/{name}" for name in lost]
        counts[split] = len(names) - len(lost)
        _write_rows(root / f"sub-{listed}", header, [row for row in rows if is_there.get(row["ImageID"])])
    total = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    fresh = f"{how_many(sums.fetched, 'files')} fetched, {sums.kept:,} were there"
    notes = (
        [f"{how_many(len(missing), 'pictures')} no longer on the server: {', '.join(missing[:3])}"] if missing else []
    )
    notes += [f"whose they are: {root / 'LICENCE.txt'}"]
    return Fetched(root, f"{how_many(total, 'pictures')} with {', '.join(classes)} in {root}; {fresh}", tuple(notes))


def _picture(sums: Sums, split: str, name: str) -> bool:
    """Download a picture; return whether it exists."""
    try:
        sums.fetch(f"{PICTURES_URL}/{split}/{name}.jpg", f"{split}/{name}.jpg")
    except _GoneError:
        return False
    return True


def _rows(path: Path, wanted: set[str]) -> tuple[Sequence[str], list[dict[str, str]]]:
    with files.open_text(path) as stream:
        reader = csv.DictReader(stream)
        header = reader.fieldnames or ()
        if not {"ImageID", "LabelName"} <= set(header):
            raise RunError(f"{path} has no columns ImageID and LabelName", "remove it, to fetch it again")
        # The identifier becomes the name of a file.
        return header, [
            row for row in reader if row["LabelName"] in wanted and re.fullmatch(r"[0-9a-zA-Z_-]+", row["ImageID"])
        ]


def _write_rows(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_aside(path, stream.getvalue())


# -- files ------------------------------------------------------------------------------------------


class _GoneError(RunError):
    """The server does not have the file."""


class Sums:
    """The downloaded files of a folder with their digests, stored in SHA256SUMS. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self.root, self.fetched, self.kept = root, 0, 0
        self._path, self._lock = root / "SHA256SUMS", Lock()
        lines = files.read_text(self._path).splitlines() if self._path.is_file() else []
        self._known = {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}

    def fetch(self, url: str, name: str, published: str = "") -> None:
        """Download a file unless it exists with its digest, the published one if there is any. Raises RunError."""
        path = self.root / name
        if path.is_file() and (published or self._known.get(name)) == files.digest(path):
            with self._lock:
                self.kept += 1
            return
        fetch_file(url, path)
        sha256 = files.digest(path)
        if published and sha256 != published:
            path.unlink()
            raise RunError(
                f"{url} has the sha256 {sha256}, but {published} is published", "it may be damaged: try again"
            )
        with self._lock:
            is_new = name not in self._known
            self._known[name] = sha256
            self.fetched += 1
            if is_new:
                with files.open_to_append(self._path) as stream:
                    stream.write(f"{sha256}  {name}\n".encode())
            else:
                files.write_aside(self._path, "".join(f"{own}  {entry}\n" for entry, own in self._known.items()))


def fetch_file(url: str, path: Path) -> None:
    """Download a file; continue a partial file of an earlier try.

    Length and MD5 are checked where the server states them, as an ETag or like Google's storage.

    Raises: RunError that names the address.
    """
    part = path.with_name(path.name + ".part")
    why = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            why = _try(url, part)
        except HTTPError as error:
            if error.code in (403, 404):
                raise _GoneError(f"{url} is not there: {error}") from None
            if error.code == 416:  # the partial file is as long as the file, or longer, so it may be another file
                part.unlink(missing_ok=True)
            why = str(error)
        except (URLError, OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
        if not why:
            part.replace(path)
            return
    raise RunError(
        f"downloading {url} failed {TRIES} times: {why}", "the same command goes on from here, where there is a network"
    )


def _try(url: str, part: Path) -> str:
    """Try once; return what is wrong with the received bytes, or an empty text."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urlopen(request, timeout=files.DOWNLOAD_TIMEOUT_S) as answer:
        is_rest = answer.status == 206
        if not is_rest:
            part.unlink(missing_ok=True)
        with files.open_to_append(part) as stream:
            shutil.copyfileobj(answer, stream)
        length = answer.headers.get("Content-Length")
        md5 = _stated_md5(answer.headers)
    size = part.stat().st_size
    wanted = None if length is None else int(length) + (have if is_rest else 0)
    if wanted is not None and size < wanted:
        return f"{size:,} of {wanted:,} bytes came"
    if md5 is not None and files.digest(part, "md5") != md5:
        part.unlink()
        return f"what came has not the md5 {md5}, which the server states"
    return ""


def _stated_md5(headers: Any) -> str | None:
    for value in headers.get_all("x-goog-hash") or []:
        if match := re.search(r"md5=([A-Za-z0-9+/=]+)", value):
            return base64.b64decode(match[1]).hex()
    tag = (headers.get("ETag") or "").strip('"')
    return tag if re.fullmatch(r"[0-9a-f]{32}", tag) else None
