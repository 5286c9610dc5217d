"""Text data: its card, its tokens, and jobs that use it."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd import ask
from chronograd import job as jobs
from chronograd.data import catalogue, datasets
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError, RunError
from chronograd.job import Data

TINY = {"layers": 2, "width": 32, "heads": 2}


def data(**fields: object) -> Data:
    return Data.model_validate({"name": "tokens", "shape": [12], "classes": 50, "samples": 40, **fields})


def test_targets_are_the_next_tokens() -> None:
    found = datasets.load(data())
    inputs = found.train[:40]  # type: ignore[index]  # a tensor
    assert inputs.shape == (40, 12)
    assert found.train_labels.shape == (40, 12)
    assert (inputs[:, 1:] == found.train_labels[:, :-1]).all()
    assert found.test_labels_N.shape == (10, 12)
    again, other = datasets.load(data()), datasets.load(data(), seed=1)
    assert (again.train_labels == found.train_labels).all()
    assert (other.train_labels != found.train_labels).any()


def test_token_frequencies_follow_zipf() -> None:
    labels = datasets.load(data(samples=4000)).train_labels.flatten().numpy()
    counts = np.bincount(labels, minlength=50) / len(labels)
    expected = 1 / np.arange(1, 51)
    assert counts == pytest.approx(expected / expected.sum(), abs=0.005)


def test_catalogue_text_is_cut_into_rows() -> None:
    listed = catalogue.sets()["openwebtext"]
    card = datasets.card(data(name="openwebtext", shape=[1024], classes=50257, samples=None))
    assert listed.tokens is not None
    assert card.train_size == listed.tokens // 1024
    with pytest.raises(InputError, match="for planning only: its text"):
        datasets.load(data(name="openwebtext"))
    with pytest.raises((InputError, RunError)):
        datasets.fetch(data(name="openwebtext"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": None}, "data.shape or data.classes is not given"),
        ({"classes": None}, "data.shape or data.classes is not given"),
        ({"shape": [3, 32, 32]}, "a number of tokens"),
        ({"image_size": 32}, "data.image_size"),
        ({"long_tail": 1.0}, "data.long_tail"),
        ({"name": "wikitext-103", "samples": 10**9}, "has 8,602,251 rows"),
    ],
)
def test_invalid_text_options(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        datasets.card(data(**fields))


def test_token_rows_make_a_language_job() -> None:
    assert jobs.from_dict({"network": {"name": "gpt2-small"}, "data": {"name": "tokens"}}).task == "language"
    images = jobs.from_dict({"network": {"name": "resnet20"}, "data": {"name": "cifar10"}})
    assert images.task == "classification"
    wrong = jobs.changed(images, ["task=language"])
    with pytest.raises(InputError, match="cifar10 is images"):
        trace_job(wrong)


def test_language_model_name_makes_a_job() -> None:
    job = ask.job_of("gpt2-small", short={"input": (64,), "mode": "inference"})
    assert (job.task, job.mode, job.data.name) == ("language", "inference", "tokens")
    assert (job.data.shape, job.data.classes) == ((64,), 50_257)
    named = ask.job_of("gpt2-small", short={"data": "openwebtext"})
    assert (named.data.name, named.data.shape, named.data.classes) == ("openwebtext", (1024,), 50_257)
    short = ask.job_of("gpt2-small", ["data.shape=[32]"])
    assert (short.data.shape, short.data.classes) == ((32,), 50_257)


def test_custom_network_takes_tokens(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "mine.py").write_text(
        "from torch import nn\n\ndef net(vocab):\n    return nn.Sequential(nn.Embedding(vocab, 8), nn.Linear(8, vocab))\n"
    )
    monkeypatch.chdir(folder)
    job = ask.job_of("mine.py:net", short={"input": (20,), "classes": 30})
    trace = trace_job(job)
    assert trace.tensors[trace.inputs[0]].dtype == "int64"
    # 8 x 30 multiply-adds for each of 20 positions; the embedding is a lookup.
    assert trace.macs(1) == 20 * 8 * 30
    with pytest.raises(InputError, match="write --classes"):
        ask.job_of("mine.py:net", short={"input": (20,)})


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("network", ["gpt2-small", "llama-7b"])
def test_attention_is_fused_or_eager_on_request(network: str, mode: str) -> None:
    options = {**TINY, "ffn": 64} if network == "llama-7b" else TINY
    job = jobs.from_dict(
        {
            "mode": mode,
            "network": {"name": network, "options": options},
            "data": {"name": "tokens", "shape": [16], "classes": 50},
        }
    )
    fused, eager = trace_job(job), trace_job(jobs.changed(job, ["network.options.attention=eager"]))
    assert len(fused.select("forward", ["attention"])) == 2
    assert not eager.select("forward", ["attention"])
    assert len(eager.select("forward", ["softmax"])) >= 2
    assert fused.params == eager.params
    # Eager attention multiplies every pair of positions; a fused kernel may skip some.
    assert eager.macs(1) >= fused.macs(1)
