"""Hours that larger experiments would need: the list covers every job without running it, and pages print the hours."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.evening import core_hours, hours_on_a_gpu, jobs, steps
from tests.lab.studies.test_reports import FOLDER

from chronograd_lab.common.results import Results
from chronograd_lab.common.study import MISSING, NotRun, Study
from chronograd_lab.studies import find, studies

NOT_RUN = [(study, one) for study in studies().values() for one in study.not_run]


@pytest.mark.parametrize("name", sorted({study.name for study, _ in NOT_RUN}))
def test_job_list_at_the_run_size_equals_the_runs(name: str) -> None:
    """Equal numbers of jobs and updates, so the list for the larger size omits no job."""
    results = Results.load(FOLDER / name / "results.json")
    rows = results.rows["runs"]
    listed = jobs(find(name), find(name).published)
    assert len(listed) == len(rows)
    if "updates" in rows[0]:
        assert Counter(map(steps, listed)) == Counter(row["updates"] for row in rows)


@pytest.mark.parametrize(("study", "one"), NOT_RUN, ids=[f"{study.name}-{one.size}" for study, one in NOT_RUN])
def test_hours_are_the_sum_of_the_jobs(study: Study, one: NotRun) -> None:
    """`python -m benchmarks.evening` updates them."""
    assert one.hours(study.name) == pytest.approx(core_hours(study, one.size) / 2, rel=0.01)
    if gpu_hours := one.gpu_hours(study.name):
        assert gpu_hours == pytest.approx(hours_on_a_gpu(study, one.size), rel=0.3)


def test_hours_of_the_evening_sizes_by_hand() -> None:
    """Hours of one core, at 4.8 ms for an image with resnet44 and 2 ms with resnet20, in bf16.

    Batch augmentation has two runs of resnet44 and, for two seeds, runs in 1, 2, 4 and 8 copies and a longer one in one copy.
    Epochs have whole batches only.
    """
    crop_and_flip = 2 * 30 * 49_984 * 4.8e-3 / 3600
    copies = 2 * 40 * 9_984 * (1 + 2 + 4 + 8 + 2) * 2e-3 / 3600
    assert core_hours(find("batch-augmentation"), "evening") == pytest.approx(crop_and_flip + copies, rel=1e-3)


@pytest.mark.parametrize("name", sorted({study.name for study, _ in NOT_RUN}))
def test_page_states_missing_runs_and_the_command(name: str) -> None:
    page = find(name).page(Results.load(FOLDER / name / "results.json"))
    (section,) = [section for section in page.sections if section.title == MISSING]
    for one in find(name).not_run:
        command = f"“chronograd study run {name} --size {one.size}” takes about {one.cells(name)[1]} hours on two cores"
        assert command in section.takeaway
