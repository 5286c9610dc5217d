"""`doctor` and `plan` agree on which jobs fit a GPU, at any batch and on any device."""

from __future__ import annotations

import pytest

from chronograd import job as jobs
from chronograd.data.trace_job import trace_job
from chronograd.doctor import job as doctor_job
from chronograd.hardware import catalog
from chronograd.plan.settings import evaluate, largest_batch
from chronograd.predict.memory import may_not_fit


def state(job: jobs.Job, free_bytes: int) -> str:
    needs = {"problems": [], **doctor_job._predicted(job, ["a GPU"], [], 1)}
    rows = doctor_job.findings(job, needs, {"rows": [{"free_bytes": free_bytes}]})
    return next(row.state for row in rows if row.what == "GPU memory")


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", ["k80-gk210", "v100", "t4", "rtx3090", "h100"])
def test_doctor_and_plan_agree(name: str, mode: str) -> None:
    device = catalog.device(name)
    plain = jobs.from_dict({"network": {"name": "resnet20"}, "data": {"name": "digits"}, "mode": mode,
                            "cluster": {"device": name}})  # fmt: skip
    traced = trace_job(plain)
    found = largest_batch(traced, plain)
    seen = set()
    for batch in (1, 64, found.start_at // 2, found.start_at, (found.start_at + found.batch) // 2, found.batch,
                  found.batch + 1, 2 * found.batch):  # fmt: skip
        job = jobs.changed(plain, [f"training.batch={batch}"])
        table = evaluate(traced, job, [device], [1], [batch])
        is_tight = bool(may_not_fit(device, mode, int(table["memory_bytes"][0])))
        expected = "obstacle" if not table["fits"][0] else "warning" if is_tight else "fine"
        assert state(job, device.usable_bytes) == expected, batch
        seen.add(expected)
    assert seen == {"fine", "warning", "obstacle"}
