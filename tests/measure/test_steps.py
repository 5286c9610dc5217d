"""Timed steps and their quantities: steps of known length, then lines with known times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from chronograd.errors import InputError
from chronograd.measure.result import Method, Timing, achieved_flops, step_quantities
from chronograd.measure.steps import time_steps
from chronograd.record import Quantity
from chronograd.rundir import Line, StepLine

METHOD = Method("step clock", "part clock")


class Sleeping:
    """Step whose parts take known times, plus 10 ms of backward if ranks exchange gradients."""

    device = torch.device("cpu")

    def __init__(self, exchanges: bool) -> None:
        self.exchanges = exchanges
        self.is_apart = False
        self.waited_s: float | None = None
        self.calls: list[str] = []

    def parts(self, index: int, is_updated: bool = True) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield two forward and backward passes, as with gradient accumulation."""
        yield "input", lambda: self.calls.append(f"input {index}")
        yield "transfer", self.transfer
        yield "forward", self.forward
        yield "backward", self.backward
        yield "forward", self.forward
        yield "update", self.update if is_updated else self.drop_gradients

    def transfer(self) -> None:
        self.calls.append("transfer")

    def forward(self) -> None:
        time.sleep(0.002)

    def backward(self) -> None:
        time.sleep(0.004 + (0.010 if self.exchanges and not self.is_apart else 0))

    def update(self) -> None:
        self.calls.append("update")

    def drop_gradients(self) -> None:
        self.calls.append("drop")

    def no_sync(self) -> AbstractContextManager[None] | None:
        return self._apart() if self.exchanges else None

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        self.is_apart = True
        yield
        self.is_apart = False


def timed(step: Sleeping, timing: Timing, agree: Callable[[int], int] = lambda n: n) -> list[StepLine]:
    lines: list[Line] = []
    time_steps(step, timing, lines.append, agree)
    assert [line.event for line in lines if not isinstance(line, StepLine)] == ["ready"]
    return [line for line in lines if isinstance(line, StepLine)]


def test_warmup_is_excluded_and_steps_have_parts() -> None:
    step = Sleeping(exchanges=False)
    lines = timed(step, Timing(warmup=2, num_steps=5))
    assert [line.step for line in lines] == [3, 4, 5, 6, 7]
    assert step.calls.count("update") == 7
    for line in lines:
        parts = [getattr(line, f"{p}_s") for p in ("input", "transfer", "forward", "backward", "update")]
        assert line.step_time_s == pytest.approx(sum(parts))
        assert line.forward_s >= 2 * 0.002
        assert line.backward_s >= 0.004


def test_seconds_limit_the_steps_and_ranks_agree() -> None:
    assert len(timed(Sleeping(False), Timing(warmup=2, num_steps=50, seconds=0.04))) <= 6
    assert len(timed(Sleeping(False), Timing(num_steps=50), agree=lambda number: 3)) == 3


@pytest.mark.parametrize("wrong", [{"warmup": 0}, {"num_steps": 0}, {"seconds": 0.0}])
def test_timing_without_steps_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot time"):
        Timing(**wrong)


def test_exposed_communication_is_the_added_time() -> None:
    step = Sleeping(exchanges=True)
    lines = timed(step, Timing(warmup=1, num_steps=8))
    assert [line.mode for line in lines] == ["parts", "no_exchange"] * 8
    assert step.calls.count("update") == step.calls.count("drop") == 9
    found = step_quantities({0: lines}, 32, METHOD)
    assert found["communication_exposed_s"].value == pytest.approx(0.010, abs=0.004)
    assert found["backward_s"].value == pytest.approx(0.004, abs=0.003)
    assert found["step_time_s"].n == 8


def line(step: int, mode: str = "parts", **parts: float) -> StepLine:
    whole = {"input_s": 0.0, "transfer_s": 0.0, "forward_s": 0.1, "backward_s": 0.2, "update_s": 0.0} | parts
    timed_whole = {} if mode == "no_exchange" else {"step_time_s": sum(whole.values())}
    return StepLine(step=step, mode=mode, **timed_whole, **whole)


def test_step_time_is_that_of_the_slowest_rank() -> None:
    ranks = {0: [line(1), line(2, forward_s=0.5)], 1: [line(1, update_s=0.3), line(2)]}
    found = step_quantities(ranks, 12, METHOD)
    assert found["step_time_s"].value == pytest.approx((0.6 + 0.7) / 2)
    assert found["forward_s"].value == pytest.approx((0.1 + 0.5) / 2)
    assert found["update_s"].value == pytest.approx((0.3 + 0.0) / 2)
    assert found["throughput_samples_per_s"].value == pytest.approx(12 / 0.65)
    assert "slowest of 2 ranks" in found["step_time_s"].source
    assert found["communication_exposed_s"].value is None


def test_exposed_communication_is_a_nonnegative_median() -> None:
    exchanging = [0.30, 0.20, 0.21, 0.22, 0.20]  # backward with exchange; 0.2 without
    lines = []
    for number, backward_s in enumerate(exchanging):
        lines += [line(2 * number, backward_s=backward_s), line(2 * number + 1, mode="no_exchange")]
    quantity = step_quantities({0: lines}, None, METHOD)["communication_exposed_s"]
    assert quantity.value == pytest.approx(0.01)
    assert (quantity.low, quantity.n) == (pytest.approx(0.0), 5)
    below = [line(0, backward_s=0.1), line(1, mode="no_exchange")]
    assert step_quantities({0: below}, None, METHOD)["communication_exposed_s"].value == 0


def test_buffer_broadcast_counts_as_communication_if_known() -> None:
    """Forward is that of one rank, as in a prediction. A loop without such steps reports what forward includes."""
    paired = [line(0, forward_s=0.14), line(1, mode="no_exchange")]
    found = step_quantities({0: paired, 1: paired}, None, METHOD)
    assert found["forward_s"].value == pytest.approx(0.1)
    assert found["communication_exposed_s"].value == pytest.approx(0.04)
    alone = [line(0, forward_s=0.14, exchange_wait_s=0.01)]
    found = step_quantities({0: alone, 1: alone}, None, METHOD)
    assert found["forward_s"].value == pytest.approx(0.14)
    assert "with the broadcast of buffers" in found["forward_s"].source
    assert found["communication_exposed_s"].value == pytest.approx(0.01)


def test_unmeasured_quantities_have_a_reason() -> None:
    found = step_quantities({0: [StepLine(step=1, mode="parts", step_time_s=0.1, input_s=0.01)]}, None, METHOD)
    assert found["step_time_s"].value == 0.1
    for name in ("forward_s", "throughput_samples_per_s", "communication_overlapped_s", "mfu"):
        assert found[name].value is None
        assert found[name].reason
    empty = step_quantities({}, 4, METHOD)
    assert all(q.value is None for q in empty.values())


def test_achieved_rate_is_flops_over_time() -> None:
    time_s = step_quantities({0: [line(1)]}, 1, METHOD)["step_time_s"]
    assert achieved_flops(time_s, 6e9).value == pytest.approx(6e9 / 0.3)
    assert "were not given" in achieved_flops(time_s, None).reason


def test_lowest_rate_matches_the_longest_step() -> None:
    rate = achieved_flops(Quantity(value=0.2, unit="s", low=0.1, high=0.4), 6e9)
    assert (rate.low, rate.value, rate.high) == pytest.approx((1.5e10, 3e10, 6e10))
