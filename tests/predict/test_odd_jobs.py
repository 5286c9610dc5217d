"""Forty unusual jobs: each gets a meaningful prediction or one clear error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import chronograd
from chronograd.errors import ChronogradError
from chronograd.record import DOES_NOT_FIT, Record

NETWORKS = """
from torch import nn

def one_layer():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))

def without_weights():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

def unread():
    raise RuntimeError("not today")

one_layer.input_shape = without_weights.input_shape = unread.input_shape = (3, 8, 8)
"""
# Work that exceeds any machine: 8 layers of 69 G parameters.
HUGE = ("network.options.layers=8", "network.options.width=65536", "network.options.heads=512", "network.options.ffn=262144",
        "data.shape=[128]", "data.samples=100000")  # fmt: skip
IMAGES = ("data.name=synthetic", "data.shape=[3,32,32]", "data.classes=10")
MANY = (*IMAGES, "data.samples=100000000")


@dataclass(frozen=True)
class Odd:
    """Unusual job with its outcome: `predicted`, `too large` for the memory, or part of the error message."""

    name: str
    network: str
    overrides: tuple[str, ...] = ()
    on: str = "v100"
    comes: str = "predicted"


ODD = [
    Odd("batch-1", "resnet20", (*IMAGES, "training.batch=1")),
    Odd("one-sample", "resnet20", (*IMAGES, "data.samples=1", "training.batch=1")),
    Odd("batch-of-a-million", "resnet20", (*MANY, "training.batch=1000000"), comes="too large"),
    Odd("batch-beyond-the-data", "resnet20", (*IMAGES, "data.samples=1000", "training.batch=1000000"), comes="no batch is full"),
    Odd("batch-0", "resnet20", (*IMAGES, "training.batch=0"), comes="training.batch"),
    Odd("4096-ranks", "resnet20", (*MANY, "training.batch=4096"), "4096xh100"),
    Odd("100000-ranks", "resnet20", (*MANY, "training.batch=200000"), "100000xh100"),
    Odd("100001-ranks", "resnet20", (*MANY, "training.batch=200000"), "100001xh100", "cluster.count"),
    Odd("more-ranks-than-samples-of-a-step", "resnet20", (*IMAGES, "training.batch=2"), "3xv100", "fewer than cluster.count"),
    Odd("uneven-shares", "resnet20", (*IMAGES, "training.batch=7"), "3xv100"),
    Odd("one-layer", "odd.py:one_layer"),
    Odd("no-weights", "odd.py:without_weights", ("data.classes=3",)),
    Odd("a-network-that-raises", "odd.py:unread", comes="not today"),
    Odd("550-G-parameters", "llama-7b", (*HUGE, "training.batch=1"), "h100", "too large"),
    Odd("550-G-parameters-shared-out", "llama-7b", (*HUGE, "training.batch=1024", "training.zero_stage=3"), "1024xh100", "too large"),
    Odd("550-G-parameters-asked", "llama-7b", (*HUGE, "training.batch=1", "mode=inference"), "h200", "too large"),
    Odd("no-such-link", "resnet20", (*IMAGES, "cluster.link=string"), "16xv100", "string"),
    Odd("a-link-that-is-not-crossed", "resnet20", (*IMAGES, "cluster.link=ethernet-10g"), "1xv100"),
    Odd("nodes-of-one", "resnet20", (*IMAGES, "cluster.per_node=1"), "8xv100"),
    Odd("a-node-of-64", "resnet20", (*IMAGES, "cluster.per_node=64", "training.batch=64"), "64xv100"),
    Odd("more-memory-than-there-is", "resnet50", ("training.batch=4096",), "t4", "too large"),
    Odd("an-image-of-400-megapixels", "resnet20", ("data.shape=[3,20000,20000]", "data.classes=10", "training.batch=1"), "h100", "too large"),
    Odd("an-image-of-one-pixel", "resnet20", ("data.name=synthetic", "data.shape=[3,1,1]", "data.classes=10")),
    Odd("a-million-classes", "resnet20", ("data.name=synthetic", "data.shape=[3,32,32]", "data.classes=1000000")),
    Odd("a-billion-epochs", "resnet20", (*IMAGES, "training.epochs=1000000000")),
    Odd("for-nothing", "resnet20", (*IMAGES, "cluster.price_usd_per_hour=0")),
    Odd("a-starved-input", "resnet20", (*IMAGES, "cluster.input_samples_per_s=0.000001")),
    Odd("the-widest-spread", "resnet20", (*IMAGES, "cluster.step_sigma_log=1"), "8xv100"),
    Odd("a-spread-beyond", "resnet20", (*IMAGES, "cluster.step_sigma_log=2"), "8xv100", "step_sigma_log"),
    Odd("no-such-precision", "resnet20", (*IMAGES, "training.precision=bf16"), "p100", "bf16"),
    Odd("no-such-device", "resnet20", IMAGES, "v1000", "v1000"),
    Odd("parts-of-one-sample", "resnet20", (*IMAGES, "training.batch=64", "training.accumulation=64")),
    Odd("blocks-where-there-are-none", "lenet5", ("data.name=synthetic", "data.shape=[1,28,28]", "data.classes=10", "training.activation_checkpointing=blocks"), comes="block"),
    Odd("zero-of-one-rank", "resnet20", (*IMAGES, "training.zero_stage=3")),
    Odd("zero-of-horovod", "resnet20", (*IMAGES, "training.zero_stage=1", "backend=horovod"), "2xv100", "zero_stage"),
    Odd("a-parameter-server", "resnet20", (*IMAGES, "backend=parameter_server"), "2xv100", "parameter_server"),
    Odd("32-copies", "resnet20", (*IMAGES, "training.augmentation.copies=32")),
    Odd("inference-in-parts", "resnet20", (*IMAGES, "mode=inference", "training.accumulation=2"), comes="no gradients"),
    Odd("one-token", "gpt2-small", ("data.shape=[1]",)),
    Odd("text-for-a-network-of-images", "resnet20", ("data.name=tokens", "data.shape=[64]", "data.classes=100"), comes="images"),
    Odd("images-for-a-network-of-text", "gpt2-small", IMAGES, comes="tokens"),
    Odd("buckets-of-a-byte", "resnet20", (*IMAGES, "communication.bucket_bytes=1"), "8xv100"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create a folder with custom networks, and a cache for all these jobs."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.py").write_text(NETWORKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.name)
def test_unusual_job_is_predicted_or_clearly_refused(odd: Odd) -> None:
    if odd.comes not in ("predicted", "too large"):
        with pytest.raises(ChronogradError) as raised:
            chronograd.predict(odd.network, *odd.overrides, on=odd.on)
        assert odd.comes in f"{raised.value.message} {raised.value.hint}"
        assert len(raised.value.message) < 500
        return
    answer = chronograd.predict(odd.network, *odd.overrides, on=odd.on)
    (record,) = answer.records.values()
    does_not_fit = any(note.startswith(DOES_NOT_FIT) for note in record.notes)
    assert odd.comes == ("too large" if does_not_fit else "predicted")
    check_meaning(record)


def check_meaning(record: Record) -> None:
    """Check that figures are finite, not negative, inside their intervals, and that parts add up to the step."""
    assert record.value("step_time_s") > 0
    for name, q in record.quantities.items():
        if q.value is None:
            assert q.reason, name
            continue
        assert 0 <= q.value < math.inf, name
        if q.low is not None and q.high is not None:
            assert q.low <= q.value * (1 + 1e-12), name
            assert q.value <= q.high * (1 + 1e-12), name
    parts = [q.value or 0.0 for name, q in record.quantities.items() if name in PARTS]
    assert math.isclose(sum(parts), record.value("step_time_s"), rel_tol=1e-9)


PARTS = ("input_s", "transfer_s", "forward_s", "backward_s", "communication_exposed_s", "update_s")


def test_there_are_forty_jobs() -> None:
    assert len({odd.name for odd in ODD}) >= 40


def test_file_of_networks_is_read(tmp_path: Path) -> None:
    answer = chronograd.predict("odd.py:one_layer", on="v100")
    (record,) = answer.records.values()
    assert record.job.network.name == "odd.py:one_layer"
