"""Jobs with many ranks, changed jobs, and values read exactly as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.errors import JobError
from chronograd.files import parse_yaml
from chronograd.launch.slurm import array
from chronograd.predict.setting import setting_of
from chronograd.train.order import rank_slice


def job(count: int = 1, **training: Any) -> jobs.Job:
    return jobs.from_dict(
        {
            "network": {"name": "alexnet"},
            "data": {"name": "digits"},
            "training": training,
            "cluster": {"count": count},
        }
    )


class TestMoreRanksThanTheDefaultBatch:
    """The recipe's batch of 64 is smaller than the number of ranks; the job's batch is not."""

    @pytest.mark.parametrize("recipe", ["sgd", "sgd-momentum", "adamw"])
    def test_overrides_change_the_job(self, recipe: str) -> None:
        many = job(100, recipe=recipe, batch=200, momentum=0.5)
        other = jobs.changed(many, ["cluster.device=v100"])
        assert (other.cluster.device, other.cluster.count) == ("v100", 100)
        assert (other.training.batch, other.training.momentum) == (200, 0.5)
        assert jobs.changed(many, ["training.recipe=cutout"]).training.batch == 200

    def test_learning_rate_is_scaled(self) -> None:
        many = job(100, batch=200, learning_rate=0.5, epochs=250, scale_by_ranks=["learning_rate", "epochs"])
        assert (jobs.scaled(many).training.learning_rate, jobs.scaled(many).training.epochs) == (50.0, 3)

    def test_rank_without_a_sample_is_one_clear_error(self) -> None:
        with pytest.raises(JobError, match="each rank needs at least one sample"):
            jobs.changed(job(batch=64), ["cluster.count=100"])


class TestNumbers:
    @pytest.mark.parametrize("text", ["batch: true", "epochs: false", "learning_rate: true", "milestones: [true]"])
    def test_true_is_not_a_number(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "job.yaml"
        path.write_text(f"network: {{name: alexnet}}\ndata: {{name: digits}}\ntraining: {{{text}}}\n")
        with pytest.raises(JobError, match=rf"training\.{text.partition(':')[0]}: this field cannot be true or false"):
            jobs.load(path)

    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("large.offload=true", "large.offload: this field takes none, optimizer or all, got True"),
            ("large.recompute=no", "large.recompute: this field takes none, selective or full, got False"),
            ("large.gradient_dtype=true", "large.gradient_dtype: this field takes fp32 or bf16, got True"),
        ],
    )
    def test_true_is_answered_with_the_values_of_a_field(self, word: str, message: str) -> None:
        with pytest.raises(JobError, match=re.escape(message)):
            jobs.changed(job(), [word])

    def test_true_is_a_valid_flag(self) -> None:
        overrides = ["training.compile=true", "network.options={bias: false, blocks: [true]}"]
        changed = jobs.changed(job(), overrides)
        assert changed.training.compile
        assert changed.network.options == {"bias": False, "blocks": [True]}

    @pytest.mark.parametrize("text", ["1:30", "-12:30:45", "1:30.5", "0100", "-010", "089", "0_1"])
    def test_ambiguous_yaml_numbers_are_refused(self, text: str, tmp_path: Path) -> None:
        """Job files, overrides and sweeps refuse them; files of other programs keep them as text."""
        path = tmp_path / "job.yaml"
        path.write_text(f"network: {{name: alexnet}}\ndata: {{name: digits}}\ntraining: {{batch: {text}}}\n")
        with pytest.raises(JobError, match=rf"{re.escape(text)} in line 3 is ambiguous, because YAML also reads"):
            jobs.load(path)
        for override in (f"training.batch={text}", f"network.options.width={text}", f"data.class_names=[{text}]"):
            with pytest.raises(JobError, match=rf"{re.escape(text)} is ambiguous.* or put text in quotes"):
                jobs.changed(job(), [override])
        with pytest.raises(JobError, match=rf"{re.escape(text)} is ambiguous"):
            array.grid(job(), [f"training.batch=32,{text}"])
        assert parse_yaml(f"[{text}, '{text}']", is_ours=False) == [text, text]

    @pytest.mark.parametrize("text", ["1:30", "0100", "089", "2001-01-01", "00.5", "1_0"])
    def test_quoted_text_stays_text(self, text: str) -> None:
        changed = jobs.changed(job(), [f"data.class_names=[a, '{text}']"])
        assert changed.data.class_names == ("a", text)
        assert jobs.from_dict(parse_yaml(jobs.to_yaml(changed))) == changed

    def test_yaml_reads_numbers(self) -> None:
        numbers = {"0": 0, "-7": -7, "1_000": 1000, "0x10": 16, "0.5": 0.5, "00.5": 0.5, "1.0e-3": 0.001}
        assert {text: parse_yaml(text) for text in numbers} == numbers


class TestImagesPerRank:
    @pytest.mark.parametrize(("batch", "count", "copies"), [(9, 2, 3), (9, 2, 1), (64, 3, 4), (8, 8, 2)])
    def test_ranks_split_samples_with_all_their_copies(self, batch: int, count: int, copies: int) -> None:
        """The split equals `rank_slice`: nine samples on two ranks are at most five, or 15 images in three copies."""
        asked = job(count, batch=batch, augmentation={"copies": copies})
        shares = [rank_slice(batch, rank, count) for rank in range(count)]
        assert asked.images_per_rank == copies * max(share.stop - share.start for share in shares)

    def test_data_parallel_splits_images(self) -> None:
        """torch.chunk splits 27 images on two devices into 14 and 13."""
        asked = jobs.changed(job(2, batch=9, augmentation={"copies": 3}), ["backend=data_parallel"])
        assert asked.images_per_rank == 14

    def test_prediction_uses_the_rank_with_most_images(self) -> None:
        asked = jobs.changed(job(2, batch=9, augmentation={"copies": 3}), ["cluster.device=v100"])
        assert setting_of(asked).batch_per_rank == 15


class TestAccumulation:
    def test_each_accumulation_part_has_an_image(self) -> None:
        """Nine samples on two ranks: one rank has four samples, in two copies eight images."""
        for parts, copies in ((4, 1), (8, 2)):
            assert job(2, batch=9, accumulation=parts, augmentation={"copies": copies}).training.accumulation == parts
            with pytest.raises(JobError, match=f"only {parts} images per step"):
                job(2, batch=9, accumulation=parts + 1, augmentation={"copies": copies})
        with pytest.raises(JobError, match="only 64 images"):
            job(accumulation=4 * 10**18)


def test_next_line_character_round_trips() -> None:
    job = jobs.from_dict({"network": {"name": "a\x85b", "options": {"\x85": "ü"}}, "data": {"name": "digits"}})
    assert jobs.from_dict(parse_yaml(jobs.to_yaml(job))) == job


@pytest.mark.parametrize("value", ["default", 3, [1]])
def test_a_field_of_several_types_has_one_line(value: object) -> None:
    """Each type had a line with a place that no file has, such as `training.compile.bool`."""
    with pytest.raises(JobError) as error:
        jobs.from_dict(
            {"network": {"name": "resnet20"}, "data": {"name": "digits"}, "training": {"compile": value, "batch": 0}}
        )
    lines = [line.strip() for line in error.value.message.splitlines()[1:]]
    assert lines == [
        "training.batch: should be greater than or equal to 1, got 0",
        f"training.compile: takes true or false or cuda-graphs, got {value!r}",
    ]
