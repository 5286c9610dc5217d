"""The first epoch at which a DAWNBench entry reaches 75 % accuracy."""

from __future__ import annotations

from pathlib import Path

from benchmarks.dawnbench import entries


def test_first_epoch_at_the_target(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(
        "file,dataset,epoch,hours,acc\nImageNet/train/a.tsv,ImageNet,1,0.5,74.9\nImageNet/train/a.tsv,ImageNet,2,1.0,75.0\n"
        "ImageNet/train/a.tsv,ImageNet,3,1.5,76\nImageNet/train/b.tsv,ImageNet,1,0.5,60\nCIFAR10/train/c.tsv,CIFAR10,1,0.1,93\n"
    )
    assert entries(path) == {"a": (2.0, 1.0)}
