"""Real text as rows of tokens: a novel that is part of this package, or text files of the user.

    pride-and-prejudice   Jane Austen, 1813, 685 kB; in the public domain
    text:PATH             a file of UTF-8 text, or all *.txt files of a folder in the order of their names

The last tenth of the text is the test split, so no test sentence is in the training split. Tokens are bytes, or pairs that
`chronograd.data.tokenizer` learns from the training split. A sample is a row of T tokens, and its labels are the next tokens.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import files
from chronograd.data import labels, tokenizer
from chronograd.data.published import DatasetCard, data_folder
from chronograd.errors import FileFormatError, InputError
from chronograd.job import NOVEL, TEXT_PREFIX, Data, is_real_text
from chronograd.words import how_many

Array = np.ndarray[Any, Any]

_NOVEL_FILE = Path(__file__).with_name(f"{NOVEL}.txt.xz")
TEST_SHARE = 0.1
USUAL_LENGTH = 128
USUAL_VOCABULARY = {"bytes": tokenizer.NUM_BYTES, "pairs": 1024}
MAX_TEXT_BYTES = 500_000_000
names = (NOVEL, f"{TEXT_PREFIX}PATH")


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens (uint16): `train` and `test`, the bytes of each token of the vocabulary, and the SHA-256 of the text."""

    train: Array
    test: Array
    token_bytes: Array
    digest: str


def card(data: Data) -> DatasetCard:
    """Return the card of a job's text. Raises as `rows`."""
    train, test, corpus = rows(data)
    return DatasetCard(
        name=data.name,
        shape=(train.shape[1] - 1,),
        num_classes=data.classes or USUAL_VOCABULARY[data.tokenizer],
        class_names=(),
        train_size=data.epoch_samples or len(train),
        test_size=len(test),
        source="J. Austen, Pride and Prejudice, 1813" if data.name == NOVEL else data.name,
        bytes_per_token=float(corpus.token_bytes[test[:, 1:]].mean()),
        digest=f"sha256 {corpus.digest}",
    )


def rows(data: Data) -> tuple[Array, Array, Corpus]:
    """Return the rows of training and test, one token longer than a sample (int64 of shape (N, T + 1)), and their text.

    Raises: InputError for a missing, unreadable or too short text, a wrong vocabulary, and fields that only images have.
    """
    _check(data)
    corpus = _tokenised(_text(data.name), data.tokenizer, data.classes or USUAL_VOCABULARY[data.tokenizer])
    (length,) = data.shape or (USUAL_LENGTH,)
    train, test = _cut(corpus.train, length), _cut(corpus.test, length)
    for split, found in (("training", train), ("test", test)):
        if not len(found):
            raise InputError(
                f"{data.name} is too short: its {split} split has no row of {how_many(length + 1, 'tokens')}",
                "name a longer text, or write a smaller data.shape",
            )
    for field in ("samples", "epoch_samples"):
        if (asked := getattr(data, field) or 0) > len(train):
            rows_of = how_many(len(train), "training rows")
            raise InputError(f"data.{field} is {asked:,}, and {data.name} has {rows_of}", "ask for fewer")
    if data.samples is not None:
        train = train[labels.shuffled(len(train))[: data.samples]]
    return train, test[labels.choose_test(data, len(test))], corpus


def _check(data: Data) -> None:
    for name in ("image_size", "skip", "long_tail", "label_noise", "labels"):
        if getattr(data, name):
            raise InputError(f"data.{name} is {getattr(data, name)}; {data.name} is text", f"leave data.{name} out")
    if data.shape is not None and len(data.shape) != 1:
        raise InputError(f"data.shape is {data.shape}; a sample of text has a number of tokens", "such as [128]")
    vocabulary, most = data.classes, np.iinfo(np.uint16).max
    if data.tokenizer == "bytes" and vocabulary not in (None, tokenizer.NUM_BYTES):
        raise InputError(f"data.classes is {vocabulary}, and bytes have 256 values", "leave it out, or write data.tokenizer=pairs")  # fmt: skip
    if vocabulary is not None and not tokenizer.NUM_BYTES <= vocabulary <= most:
        raise InputError(f"data.classes is {vocabulary:,}", f"write a vocabulary from 256 to {most:,}")


def _cut(tokens: Array, length: int) -> Array:
    """Return rows of `length` + 1 tokens; the last token of each is the first of the next."""
    count = max(0, (len(tokens) - 1) // length)
    starts = np.arange(count)[:, None] * length
    return np.asarray(tokens[starts + np.arange(length + 1)], np.int64)


@functools.lru_cache(maxsize=4)
def _tokenised(text: bytes, kind: str, vocabulary: int) -> Corpus:
    until = round((1 - TEST_SHARE) * len(text))
    while until < len(text) and text[until] & 0xC0 == 0x80:  # within a character
        until += 1
    parts, digest = (text[:until], text[until:]), hashlib.sha256(text).hexdigest()
    if kind == "bytes":
        train, test = (np.frombuffer(part, np.uint8).astype(np.uint16) for part in parts)
        return Corpus(train, test, np.ones(tokenizer.NUM_BYTES), digest)
    merges = tokenizer.learn(parts[0].decode(), vocabulary)
    train, test = (np.array(tokenizer.encode(part.decode(), merges), np.uint16) for part in parts)
    return Corpus(train, test, np.array(tokenizer.token_bytes(merges)), digest)


def _text(name: str) -> bytes:
    """Return the text of a data set as UTF-8. Raises InputError."""
    assert is_real_text(name)
    if name == NOVEL:
        return lzma.decompress(_NOVEL_FILE.read_bytes())
    path = Path(os.path.expanduser(name.removeprefix(TEXT_PREFIX)))
    place = next((one for one in (path, data_folder() / path) if one.exists()), None)
    if place is None or not path.name:
        raise InputError(f"data.name is {name}, and there is no such file or folder", "name a text file, or a folder of *.txt files")  # fmt: skip
    found = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not found:
        raise InputError(f"{place} has no *.txt file", "name a text file, or a folder of *.txt files")
    try:
        text = b"\n".join(files.read_bytes(one, MAX_TEXT_BYTES) for one in found)
        text.decode()
    except OSError as error:
        raise FileFormatError(
            f"cannot read {os.fsdecode(error.filename)}: {error.strerror}", "name text files"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place} is not UTF-8 text (byte {error.start:,})", "convert it, for example with iconv"
        ) from None
    return text
