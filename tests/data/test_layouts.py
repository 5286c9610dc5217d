"""Picture folders: the class of each file. These tests read no pixels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from chronograd.data import layouts
from chronograd.data.layouts import Listing
from chronograd.errors import FileFormatError, InputError, NotFoundError, RunError


def touch(root: Path, *names: str) -> Path:
    """Create empty files."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def shown(root: Path, listing: Listing) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return relative paths with their labels for both splits."""

    def split(paths: tuple[Path, ...], labels_N: Any) -> list[tuple[str, int]]:
        return [(str(p.relative_to(root)), int(n)) for p, n in zip(paths, labels_N, strict=True)]

    return split(listing.train_paths, listing.train_labels_N), split(listing.test_paths, listing.test_labels_N)


def test_split_folder_matches_torchvision(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    names = [
        "train/b/2.JPG",
        "train/b/10.png",
        "train/a/x.jpeg",
        "train/a/deep/y.webp",
        "train/a/Z.bmp",
        "train/C/1.ppm",
    ]
    touch(tmp_path, *names, "val/a/1.jpg", "val/b/1.jpg", "val/C/1.tif")
    listing = layouts.listing(f"folder:{tmp_path}")
    assert listing.class_names == ("C", "a", "b")
    train, test = shown(tmp_path, listing)
    for part, found in (("train", train), ("val", test)):
        theirs = ImageFolder(tmp_path / part, allow_empty=True).samples
        assert [(str(tmp_path / path), label) for path, label in found] == theirs
    assert listing.notes == ()
    assert listing.side == 224


def test_val_folder_has_priority_over_test(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg")
    assert shown(tmp_path, layouts.listing(f"folder:{tmp_path}"))[1] == [("test/a/1.jpg", 0), ("test/b/1.jpg", 1)]
    touch(tmp_path, "val/b/7.jpg")
    listing = layouts.listing(f"folder:{tmp_path}")
    assert shown(tmp_path, listing)[1] == [("val/b/7.jpg", 1)]
    assert any("test is not used" in note for note in listing.notes)
    assert any("no test images of 1 class: a" in note for note in listing.notes)


@pytest.mark.parametrize("part", ["", "train/"])
def test_default_split_is_a_fixed_fifth_of_each_class(tmp_path: Path, part: str) -> None:
    touch(tmp_path, *(f"{part}a/{i:02d}.jpg" for i in range(11)), *(f"{part}b/{i:02d}.jpg" for i in range(5)))
    listing = layouts.listing(f"folder:{tmp_path}")
    train, test = shown(tmp_path, listing)
    assert len(set(train + test)) == 16
    assert np.bincount(listing.test_labels_N).tolist() == [2, 1]  # 11 // 5 and 5 // 5
    assert train == sorted(train)
    assert shown(tmp_path, layouts.listing(f"folder:{tmp_path}")) == (train, test)
    assert any("a fixed fifth of each class is the test set" in note for note in listing.notes)


def test_relative_and_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home, data = (tmp_path / name for name in ("here", "home", "data"))
    for place in (here, home, data):
        touch(place / f"in-{place.name}", "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CHRONOGRAD_DATA", str(data))
    for name in ("folder:in-here", "folder:./in-here", "folder:~/in-home", "folder:in-data", f"folder:{here}/in-here"):
        assert len(layouts.listing(name).train_paths) == 2
    with pytest.raises(InputError, match=r"there is no folder in-none here, nor .*data/in-none"):
        layouts.listing("folder:in-none")


def test_links_to_classes_and_pictures_are_followed(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere", "a/1.jpg", "2.jpg")
    root = touch(tmp_path / "set", "train/b/1.jpg", "val/b/1.jpg")
    os.symlink(tmp_path / "elsewhere" / "a", root / "train" / "a")
    os.symlink(tmp_path / "elsewhere" / "2.jpg", root / "train" / "b" / "2.jpg")
    os.symlink(root, root / "train" / "b" / "loop")
    assert [name for name, _ in shown(root, layouts.listing(f"folder:{root}"))[0]] == [
        "train/a/1.jpg",
        "train/b/1.jpg",
        "train/b/2.jpg",
    ]


def test_files_outside_classes_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg")
    touch(tmp_path, "train/readme.txt", "train/a/Thumbs.db", "train/a/notes", "train/loose.jpg", "train/a/.hidden.jpg")
    touch(tmp_path, "train/.cache/1.jpg", "train/a/._1.jpg")
    (tmp_path / "train" / "empty").mkdir()
    listing = layouts.listing(f"folder:{tmp_path}")
    assert len(listing.train_paths) == 2
    left, empty = listing.notes
    assert left.startswith("left out 4 files of")
    assert left.endswith(", …")
    assert empty == "left out 1 class without pictures: empty"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no folder with pictures of a class"),
        (("1.jpg",), "no folder with pictures of a class"),
        (("a/1.jpg",), "has one class, a"),
        (("val/a/1.jpg", "val/b/1.jpg"), "has val and no train"),
        (("a/1.jpg", "b/1.jpg"), "no class has 5 images"),
        (("train/a/1.jpg", "train/b/1.jpg", "val/a/x.txt"), "has no test images"),
        (("train/a/1.jpg", "train/b/1.jpg", "val/c/1.jpg"), "test images and no training images of 1 class in .*: c"),
        (("train/a/x.txt", "train/b/1.jpg", "train/c/1.jpg", "val/a/1.jpg"), "no training images of 1 class in .*: a"),
    ],
)
def test_unusable_folders_are_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    touch(tmp_path, *names)
    with pytest.raises(InputError, match=message):
        layouts.listing(f"folder:{tmp_path}")


def test_missing_folder_file_and_empty_name_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "file")
    for name, message in (
        (f"{tmp_path}/none", "there is no folder"),
        (f"{tmp_path}/file", "is a file"),
        ("", "without a folder"),
    ):
        with pytest.raises(InputError, match=message):
            layouts.listing(f"folder:{name}")


def test_names_that_are_not_utf8_can_be_printed(tmp_path: Path) -> None:
    touch(tmp_path, "train/b/1.jpg", "val/b/1.jpg")
    strange = os.fsencode(tmp_path / "train") + b"/caf\xe9"
    os.mkdir(strange)
    with open(strange + b"/1.jpg", "wb"):
        pass
    assert layouts.listing(f"folder:{tmp_path}").class_names == ("b", "caf\ufffd")


# -- ImageNet ------------------------------------------------------------------------------------------

A, B, C = "n01440764", "n01443537", "n01484850"
TRAIN = (f"train/{A}/{A}_1.JPEG", f"train/{B}/{B}_1.JPEG", f"train/{B}/{B}_2.JPEG")
VAL = tuple(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 5))
EXPECTED = [(VAL[0], 1), (VAL[1], 0), (VAL[3], 1)]


def by_number(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(found)


def test_imagenet_with_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN, f"val/{B}/x.JPEG", f"val/{A}/y.JPEG")
    listing = layouts.listing(f"imagenet:{tmp_path}")
    assert listing.class_names == (A, B)
    assert shown(tmp_path, listing) == (
        [(TRAIN[0], 0), (TRAIN[1], 1), (TRAIN[2], 1)],
        [(f"val/{A}/y.JPEG", 0), (f"val/{B}/x.JPEG", 1)],
    )


def test_imagenet_with_kaggles_table(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN, *VAL, "val/ILSVRC2012_val_00000009.JPEG")
    rows = [f"{Path(path).stem},{name} 1 2 3 4 {name} 5 6 7 8" for path, name in zip(VAL, (B, A, C, B), strict=True)]
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]) + "\n")
    listing = layouts.listing(f"imagenet:{tmp_path}")
    assert by_number(shown(tmp_path, listing)[1]) == EXPECTED
    assert listing.notes == (
        "left out 1 test image that the ground truth does not list: ILSVRC2012_val_00000009.JPEG",
        "left out 1 test image of classes that are not trained: ILSVRC2012_val_00000003.JPEG",
    )


def test_imagenet_with_the_development_kit(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN, *VAL)
    kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    kit.mkdir(parents=True)
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    synsets = np.array(
        [(1, C, "shark", 0), (2, A, "tench", 0), (3, B, "goldfish", 0), (4, "n00000001", "x", 3)], fields
    )
    savemat(kit / "meta.mat", {"synsets": synsets.reshape(-1, 1)})
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("3\n2\n1\n3\n")
    assert by_number(shown(tmp_path, layouts.listing(f"imagenet:{tmp_path}"))[1]) == EXPECTED
    (kit / "meta.mat").write_bytes(b"not a matrix")
    with pytest.raises(FileFormatError, match="is not the data folder of the ILSVRC2012 kit"):
        layouts.listing(f"imagenet:{tmp_path}")


def test_other_set_in_place_of_imagenet_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "1", "train/cat/1.JPEG", "val/cat/1.JPEG")
    touch(tmp_path / "2", *TRAIN)
    touch(tmp_path / "3", *TRAIN, *VAL)
    touch(tmp_path / "4", *TRAIN, *VAL)
    (tmp_path / "4" / "LOC_val_solution.csv").write_text("ImageId,PredictionString\nILSVRC2012_val_00000001,cat\n")
    messages = ("no WordNet ids: cat", "has no folder val", "there is no ground truth", "line 2 of .* is 'ILSVRC")
    for number, message in enumerate(messages, 1):
        with pytest.raises(InputError, match=message):
            layouts.listing(f"imagenet:{tmp_path / str(number)}")


# -- decathlon -----------------------------------------------------------------------------------------


def test_decathlon_set_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOGRAD_DATA", str(tmp_path))
    root = tmp_path / "decathlon-1.0" / "dtd"
    with pytest.raises(RunError, match="CHRONOGRAD_DATA"):
        layouts.listing("decathlon:dtd")
    touch(root, "train/0001/000001.jpg", "train/0002/000002.jpg", "val/0002/000003.jpg", "val/0001/000004.jpg")
    listing = layouts.listing("decathlon:dtd")
    assert listing.class_names == ("0001", "0002")
    assert shown(root, listing)[1] == [("val/0001/000004.jpg", 0), ("val/0002/000003.jpg", 1)]
    assert listing.side == 72


def test_imagenet_is_no_target_of_the_decathlon() -> None:
    with pytest.raises(InputError, match=r"not offered as a target(.|\n)*imagenet:PATH"):
        layouts.listing("decathlon:imagenet12")
    with pytest.raises(NotFoundError, match="did you mean gtsrb"):
        layouts.listing("decathlon:gtrsb")


def test_data_set_names_are_not_folders() -> None:
    assert [layouts.is_layout(n) for n in ("folder:x", "imagenet:", "decathlon:dtd", "folder", "cifar10", "other:x")] == [
        True, True, True, False, False, False
    ]  # fmt: skip
