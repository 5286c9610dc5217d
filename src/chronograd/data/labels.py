"""Labels of a training set: the images of a published split that a job uses, and their classes. Needs no torch.

    samples, skip     positions skip … skip + samples of a fixed shuffle
    test_samples      the first of such a shuffle of the test images
    long_tail         class sizes by Zipf's law
    label_noise       some labels replaced at random
    labels            a file of samples and labels, for example from a teacher, in place of all the above

Samples are numbered as in the published training split, from 0. N training images, K classes.
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import FileFormatError, InputError
from chronograd.files import as_asked, open_plain, replacing
from chronograd.job import Data
from chronograd.words import how_many

Array = np.ndarray[Any, Any]

SHUFFLE_SEED = 0
# Second number in the seed of label noise. It is larger than any epoch, because the seeds of epochs are (seed, epoch).
_NOISE_STREAM = 2**31
# Allowed difference of a row of probabilities from a sum of 1, in float32.
_SUM_TOLERANCE = 1e-3
_FORMAT = (
    "a labels file is an .npz of `sample` (int64) with `label` (int64) or `probability` (float32 rows that sum to 1)"
)


@dataclass(frozen=True)
class TrainingSet:
    """The samples of the published split that a job trains on, and their labels.

    Attributes:
        samples_N: int64; a labels file may repeat a sample.
        labels: int64 of shape (N,), or float32 probabilities of shape (N, K).
    """

    samples_N: Array
    labels: Array
    notes: tuple[str, ...] = ()

    def only(self, kept: Array) -> TrainingSet:
        """Return the samples at the positions `kept`."""
        return TrainingSet(self.samples_N[kept], self.labels[kept], self.notes)


def num_training(data: Data, published_size: int) -> int:
    """Return the number of training images of a job. Raises InputError if the set has fewer.

    Reads the labels file if the job has one, and no other labels.
    """
    if data.labels is not None:
        _check_alone(data)
        return len(_read_samples(data.labels, published_size))
    if data.long_tail and data.samples is None:
        raise InputError(
            f"data.long_tail is {data.long_tail:g} and data.samples is not given",
            f"say how many of the {how_many(published_size, 'training images')} to choose, such as data.samples=1000",
        )
    left = published_size - data.skip
    if data.samples is None and left > 0:
        return left
    if data.samples is None or data.samples > left:
        skipped = f" and data.skip is {data.skip:,}" if data.skip else ""
        asked = f"data.samples is {data.samples:,}{skipped}" if data.samples else f"data.skip is {data.skip:,}"
        raise InputError(f"{asked}; {data.name} has {how_many(published_size, 'training images')}", "ask for fewer")
    return data.samples


def num_test(data: Data, published_size: int) -> int:
    """Return the number of test images of a job. Raises InputError if the set has fewer."""
    if data.test_samples is not None and data.test_samples > published_size:
        raise InputError(
            f"data.test_samples is {data.test_samples:,}; {data.name} has {how_many(published_size, 'test images')}",
            "ask for fewer",
        )
    return data.test_samples or published_size


def choose_test(data: Data, published_size: int) -> Array:
    """Return the test samples of a job (int64): all in order, or the first of a fixed shuffle. Raises as `num_test`."""
    if data.test_samples is None:
        return np.arange(published_size)
    return shuffled(published_size)[: num_test(data, published_size)]


def choose(data: Data, published_N: Array, class_names: tuple[str, ...], seed: int) -> TrainingSet:
    """Return the training set of a job from a published split with labels `published_N` (int64).

    Args:
        seed: draws the label noise and nothing else.

    Raises: InputError and FileFormatError as `num_training` and `read_labels`, and where a class has too few images.
    """
    size = num_training(data, len(published_N))
    if data.labels is not None:
        return read_labels(data.labels, len(published_N), len(class_names))
    notes: list[str] = []
    if data.long_tail:
        samples_N = _long_tail(data, published_N, class_names)
        counts = np.bincount(published_N[samples_N], minlength=len(class_names))
        without = f"; {(counts == 0).sum():,} classes have none" if counts.min() == 0 else ""
        notes.append(
            f"long tail with exponent {data.long_tail:g}: {how_many(counts[0], 'images')} of the first class, "
            f"{counts[-1]:,} of the last{without}"
        )
    elif data.samples is None and not data.skip:
        samples_N = np.arange(len(published_N))
    else:
        samples_N = shuffled(len(published_N))[data.skip : data.skip + size]
    labels_N = published_N[samples_N].astype(np.int64)
    if data.label_noise:
        noisy_N, is_replaced_N = with_noise(labels_N, data.label_noise, seed)
        notes.append(
            f"label noise of {data.label_noise:g}: {is_replaced_N.sum():,} of {size:,} training labels were drawn at random, "
            f"{(noisy_N != labels_N).sum():,} of them changed"
        )
        labels_N = noisy_N
    return TrainingSet(samples_N.astype(np.int64), labels_N, tuple(notes))


def with_noise(labels_N: Array, probability: float, seed: int) -> tuple[Array, Array]:
    """Replace each label with `probability` by a draw from the distribution of all labels. Return the labels and a mask
    of the draws.

    A draw may equal the old label. Source: the label noise of D. Mahajan et al., arXiv 1805.00932.
    """
    random = np.random.RandomState([seed, _NOISE_STREAM])
    is_replaced_N = random.random_sample(len(labels_N)) < probability
    drawn_N = labels_N[random.randint(len(labels_N), size=len(labels_N))]
    return np.where(is_replaced_N, drawn_N, labels_N), is_replaced_N


def zipf_counts(total: int, num_classes: int, exponent: float) -> list[int]:
    """Return images per class, in proportion to rank ** -exponent, that sum to `total`.

    >>> zipf_counts(110, 3, 1.0), zipf_counts(10, 4, 0.0)
    ([60, 30, 20], [3, 3, 2, 2])
    """
    return apportioned(total, np.arange(1, num_classes + 1, dtype=float) ** -exponent)


def apportioned(total: int, weights: Array) -> list[int]:
    """Return whole numbers in proportion to weights that sum to `total`; largest remainders are rounded up."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact + 1e-9).astype(int)  # 1e-9 makes 60 of a rounded 59.999…
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return [int(n) for n in counts]


def _long_tail(data: Data, published_N: Array, class_names: tuple[str, ...]) -> Array:
    """Return the first images of each class in the fixed shuffle, with class sizes by Zipf's law, in the order of the shuffle."""
    assert data.samples is not None
    candidates = shuffled(len(published_N))[data.skip :]
    labels = published_N[candidates]
    is_chosen = np.zeros(len(candidates), dtype=bool)
    for c, wanted in enumerate(zipf_counts(data.samples, len(class_names), data.long_tail)):
        members = np.flatnonzero(labels == c)
        if wanted > len(members):
            raise InputError(
                f"data.long_tail={data.long_tail:g} with data.samples={data.samples:,} wants {how_many(wanted, 'images')} of class "
                f"{class_names[c]}; there are {len(members):,}",
                "ask for fewer samples or a smaller exponent",
            )
        is_chosen[members[:wanted]] = True
    return candidates[is_chosen]


def stratified_fifth(labels_N: Array) -> Array:
    """Return a mask of the test images of a set without a test split: a fifth of each class, rounded down (bool).

    A fixed shuffle chooses them, so that they never change.
    """
    order = shuffled(len(labels_N))
    is_test_N = np.zeros(len(labels_N), dtype=bool)
    for c in np.unique(labels_N):
        is_test_N[order[labels_N[order] == c][4::5]] = True
    return is_test_N


def shuffled(size: int) -> Array:
    return np.random.RandomState(SHUFFLE_SEED).permutation(size)


# -- files of labels -----------------------------------------------------------------------------------


def write_labels(path: str | Path, sample: Array, label: Array | None = None, probability: Array | None = None) -> None:
    """Write a file for `data.labels`: the class of each sample, or its probabilities of all classes.

    Args:
        sample: int64 of shape (N,), numbered as in the published training split; may repeat.
        label: int64 of shape (N,). probability: float32 of shape (N, K); rows sum to 1. Give exactly one of the two.

    Raises: InputError for input that `read_labels` would refuse, or if the file cannot be written.
    """
    if (label is None) == (probability is None):
        raise InputError("a labels file has label or probability, one of the two", "give write_labels one of them")
    sample = np.asarray(sample)
    if sample.dtype.kind not in "iu" or sample.ndim != 1:
        raise InputError(f"sample is {_what(sample)}", _FORMAT)
    values = {"sample": sample.astype(np.int64)}
    if label is not None:
        values["label"] = _checked_labels(np.asarray(label), len(sample), None)
    else:
        values["probability"] = _checked_probabilities(np.asarray(probability), len(sample), None)
    path = Path(path).expanduser()
    with as_asked(path), replacing(path) as stream:
        np.savez(stream, allow_pickle=False, **values)


def read_labels(path: str | Path, published_size: int, num_classes: int) -> TrainingSet:
    """Read the training set of a labels file.

    Raises: InputError if the file does not exist; FileFormatError if it is not a labels file, or belongs to another set.
    """
    samples_N = _read_samples(path, published_size)
    with _opened(path) as arrays:
        found = [name for name in ("label", "probability") if name in arrays]
        if len(found) != 1:
            raise FileFormatError(f"{path} has {' and '.join(found) or 'neither label nor probability'}", _FORMAT)
        values = _read_member(path, arrays, found[0])
    check = _checked_labels if found == ["label"] else _checked_probabilities
    try:
        labels = check(values, len(samples_N), num_classes)
    except InputError as error:
        raise FileFormatError(f"{path}: {error.message}", error.hint) from None
    kind = "labels" if found == ["label"] else "probabilities"
    distinct = len(np.unique(samples_N))
    return TrainingSet(
        samples_N, labels, (f"{len(samples_N):,} {kind} of {how_many(distinct, 'training images')} from {path}",)
    )


def _check_alone(data: Data) -> None:
    fields = ["skip", "label_noise", "long_tail"] + (["samples"] if data.name != "synthetic" else [])
    for field in fields:
        if getattr(data, field):
            raise InputError(
                f"data.labels is {data.labels} and data.{field} is {getattr(data, field)}; the file says which samples",
                f"leave data.{field} out",
            )


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        stream = open_plain(Path(path).expanduser())
    except FileNotFoundError:
        raise InputError(f"data.labels is {path}; there is no such file", "name a file that exists") from None
    except (OSError, RuntimeError) as error:
        raise InputError(f"data.labels is {path}, which cannot be opened: {error}", "name a file") from None
    with stream:
        try:
            arrays = np.load(stream, allow_pickle=False)
        except _UNREADABLE as error:
            raise FileFormatError(f"{path} cannot be read as an .npz file: {error}", _FORMAT) from None
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise FileFormatError(f"{path} is a single array", _FORMAT)
        with arrays:
            _check_sizes(path, arrays)
            yield arrays


# zipfile and numpy raise any of these for a damaged file.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, MemoryError, NotImplementedError),
    *(RuntimeError, TypeError, KeyError, SyntaxError, tokenize.TokenError),
)
_MAX_BYTES = 100_000_000
_MAX_TIMES = 50


def _check_sizes(path: str | Path, arrays: Any) -> None:
    """Refuse arrays that are too large: a few kilobytes can unzip to gigabytes."""
    for member in arrays.zip.infolist():
        if member.file_size > max(_MAX_BYTES, _MAX_TIMES * member.compress_size):
            raise FileFormatError(f"{member.filename} in {path} has {member.file_size:,} bytes unzipped", _FORMAT)


def _read_member(path: str | Path, arrays: Any, name: str) -> Array:
    try:
        values: Array = arrays[name]
    except _UNREADABLE as error:
        raise FileFormatError(f"{name} in {path} cannot be read: {error}", _FORMAT) from None
    if not isinstance(values, np.ndarray):  # numpy returns the bytes of a member that is not an array
        raise FileFormatError(f"{name} in {path} is no array", _FORMAT)
    return values


def _read_samples(path: str | Path, published_size: int) -> Array:
    with _opened(path) as arrays:
        if "sample" not in arrays:
            raise FileFormatError(f"{path} has no `sample`, but {', '.join(arrays) or 'nothing'}", _FORMAT)
        samples_N = _read_member(path, arrays, "sample")
    if samples_N.dtype.kind not in "iu" or samples_N.ndim != 1 or len(samples_N) == 0:
        raise FileFormatError(f"sample in {path} is {_what(samples_N)}", _FORMAT)
    low, high = int(samples_N.min()), int(samples_N.max())
    if low < 0 or high >= published_size:
        raise FileFormatError(
            f"sample in {path} is {low:,} … {high:,}; there are {how_many(published_size, 'training images')}, counted from 0",
            "use it with the data set it was made for",
        )
    return samples_N.astype(np.int64)


def _checked_labels(labels_N: Array, num_samples: int, num_classes: int | None) -> Array:
    if labels_N.dtype.kind not in "iu" or labels_N.shape != (num_samples,):
        raise InputError(f"label is {_what(labels_N)} for {how_many(num_samples, 'samples')}", _FORMAT)
    most = int(labels_N.max(initial=0))
    if int(labels_N.min(initial=0)) < 0 or (num_classes is not None and most >= num_classes):
        raise InputError(
            f"label is {labels_N.min():,} … {most:,}; there are {num_classes or 'only positive'} classes, from 0",
            "use it with the data set it was made for",
        )
    return labels_N.astype(np.int64)


def _checked_probabilities(probability_NK: Array, num_samples: int, num_classes: int | None) -> Array:
    if probability_NK.dtype.kind != "f" or probability_NK.ndim != 2 or len(probability_NK) != num_samples:
        raise InputError(f"probability is {_what(probability_NK)} for {how_many(num_samples, 'samples')}", _FORMAT)
    if num_classes is not None and probability_NK.shape[1] != num_classes:
        raise InputError(
            f"probability has {how_many(probability_NK.shape[1], 'columns')}; there are {how_many(num_classes, 'classes')}",
            "use it with the data set it was made for",
        )
    sums = probability_NK.sum(axis=1, dtype=np.float64)
    is_wrong = ~((np.abs(sums - 1) <= _SUM_TOLERANCE) & (probability_NK >= 0).all(axis=1))
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        raise InputError(f"row {row:,} of probability sums to {sums[row]:g} or has entries below 0", _FORMAT)
    return probability_NK.astype(np.float32)


def _what(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"
