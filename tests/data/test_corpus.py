"""Real text: its splits, its tokens, and errors of files that are not text."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.data import corpus, datasets, tokenizer
from chronograd.errors import InputError
from chronograd.job import NOVEL, Data


def written(folder: Path, text: str = "The cat sat on the mat. " * 200) -> str:
    (folder / "cat.txt").write_text(text, encoding="utf-8")
    return f"text:{folder / 'cat.txt'}"


def test_novel_is_split_by_position_and_predicts_next_bytes() -> None:
    card, found = datasets.card(Data(name=NOVEL)), datasets.load(Data(name=NOVEL))
    assert (card.shape, card.num_classes, card.bytes_per_token) == ((128,), 256, 1.0)
    # 684,768 bytes: rows of 128 targets in the first nine tenths and in the last.
    assert (card.train_size, card.test_size) == ((616_291 - 1) // 128, (68_477 - 1) // 128)
    rows: Any = found.train
    assert (rows[:, 1:] == found.train_labels[:, :-1]).all()
    assert bytes(rows[0].tolist()).startswith(b"PRIDE AND PREJUDICE")
    assert card.digest.startswith("sha256 dfc684d4f857fa93")


def test_card_names_the_source_of_its_text(tmp_path: Path) -> None:
    name = written(tmp_path)
    assert datasets.card(Data(name=name)).source == name
    assert datasets.card(Data(name=NOVEL)).source == "J. Austen, Pride and Prejudice, 1813"


def test_pairs_are_learned_from_training_text_and_lose_no_byte(tmp_path: Path) -> None:
    name = written(tmp_path, "The cät sat on the mat.\n" * 200 + "Zebras" * 80)
    data = Data.model_validate({"name": name, "tokenizer": "pairs", "classes": 300, "shape": [4]})
    train, test, tokens = corpus.rows(data)
    bytes_of = tokens.token_bytes
    assert len(bytes_of) <= 300
    assert max(bytes_of) > 2
    whole = (tmp_path / "cat.txt").read_bytes()
    assert bytes_of[tokens.train].sum() + bytes_of[tokens.test].sum() == len(whole)
    assert datasets.card(data).bytes_per_token == pytest.approx(bytes_of[test[:, 1:]].mean())
    assert train.shape[1] == 5
    merges = tokenizer.learn("the then they", 258)
    assert merges == [(ord("h"), ord("e")), (ord("t"), 256)]
    assert tokenizer.encode("the é", merges) == [257, ord(" "), 0xC3, 0xA9]


def test_bytes_of_a_character_stay_in_one_split(tmp_path: Path) -> None:
    data = Data(name=written(tmp_path, "ä" * 1001), shape=(8,))
    _, _, tokens = corpus.rows(data)
    for split in (tokens.train, tokens.test):
        assert split.astype(np.uint8).tobytes().decode("utf-8")


def test_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "a.txt").write_text("first " * 50)
    (tmp_path / "b.md").write_text("not read")
    train, _, _ = corpus.rows(Data(name=f"text:{tmp_path}", shape=(5,)))
    assert bytes(train[0].tolist()) == b"first "


def test_samples_choose_rows_and_epoch_samples_a_length(tmp_path: Path) -> None:
    name = written(tmp_path)
    few = datasets.load(Data(name=name, shape=(16,), samples=10, test_samples=3))
    assert (len(few.train), len(few.test_labels_N)) == (10, 3)
    part = Data(name=name, shape=(16,), epoch_samples=10)
    assert datasets.card(part).train_size == 10
    assert len(datasets.load(part).train) == (4320 - 1) // 16


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "text:nowhere.txt"}, "no such file or folder"),
        ({"name": "text:"}, "no such file or folder"),
        ({"shape": (3, 32, 32)}, "a number of tokens"),
        ({"shape": (600,)}, "test split has no row of 601 tokens"),
        ({"image_size": 8}, "data.image_size"),
        ({"classes": 300}, "bytes have 256 values"),
        ({"classes": 100, "tokenizer": "pairs"}, "from 256 to 65,535"),
        ({"samples": 10**6}, "data.samples is 1,000,000"),
        ({"epoch_samples": 10**6}, "data.epoch_samples is 1,000,000"),
    ],
)
def test_wrong_text_is_refused(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    data = Data.model_validate({"name": written(tmp_path), **fields})
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        datasets.card(data)


def test_files_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(InputError, match="not UTF-8 text"):
        datasets.card(Data(name=f"text:{tmp_path / 'latin.txt'}"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no \*\.txt file"):
        datasets.card(Data(name=f"text:{tmp_path / 'empty'}"))


def test_real_text_makes_a_language_job_with_targets_in_bits() -> None:
    job = jobs.from_dict({"network": {"name": "small-llama"}, "data": {"name": NOVEL}})
    assert job.task == "language"
    assert jobs.changed(job, ["training.target_bits_per_byte=2"]).training.target_bits_per_byte == 2
    with pytest.raises(InputError, match=r"write training\.target_bits_per_byte"):
        jobs.changed(job, ["training.target_accuracy=0.9"])
    with pytest.raises(InputError, match=r"write training\.target_accuracy"):
        jobs.changed(job, ["data.name=digits", "task=classification", "training.target_bits_per_byte=2"])


@pytest.mark.parametrize("letters", ["acgt", "a", "acgt☃"])
def test_text_without_blanks_is_learned_in_linear_time(letters: str) -> None:
    """DNA and base64 are one word. In the square of their length, 100,000 letters would take minutes."""
    text = "".join(random.Random(0).choices(letters, k=100_000))
    start = time.process_time()
    merges = tokenizer.learn(text, 400)
    tokens = tokenizer.encode(text, merges)
    assert time.process_time() - start < 10
    sizes = tokenizer.token_bytes(merges)
    assert sum(sizes[token] for token in tokens) == len(text.encode())
    assert len(tokens) < len(text) / 2


def test_long_words_are_cut_and_short_ones_are_not() -> None:
    """A word of 32 letters becomes one token; one of 64 letters becomes the same token twice."""
    word = "abcdefghijklmnopqrstuvwxyzäöü"[:29] + "ABC"
    merges = tokenizer.learn(f"{word} " * 3, 256 + 40)
    once, twice = (tokenizer.encode(text, merges) for text in (word, 2 * word))
    assert len(once) == 1
    assert twice == 2 * once


def test_rare_words_of_a_long_text_teach_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " zz zz" + " ab" * 5 + " cd" * 4
    for letters, taught in ((100, {"ab", "cd", "zz"}), (6, {"ab", "cd"})):
        monkeypatch.setattr(tokenizer, "LEARNED_LETTERS", letters)
        second = {right for _, right in tokenizer.learn(text, 300)}
        assert {word for word in ("ab", "cd", "zz") if ord(word[1]) in second} == taught
