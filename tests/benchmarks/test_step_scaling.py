"""Step times on more devices than the timed ones."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.step_scaling import StepModel, Steps, fit_step, scaled_step_s

from chronograd.errors import InputError


class TestScaledStep:
    def test_ring_in_one_node(self) -> None:
        # 2(n - 1)/n is 1 for two devices and 1.75 for eight: 0.1 s becomes 0.175 s.
        assert scaled_step_s(1.0, 1.1, 2, 8, across_nodes=False) == pytest.approx(1.175)

    def test_tree_across_nodes(self) -> None:
        # log2 64 is twice log2 8.
        assert scaled_step_s(1.0, 1.05, 8, 64, across_nodes=True) == pytest.approx(1.1)

    @pytest.mark.parametrize("across", [True, False])
    def test_timed_points_are_reproduced(self, across: bool) -> None:
        assert scaled_step_s(2.0, 2.5, 4, 4, across) == pytest.approx(2.5)
        assert scaled_step_s(2.0, 2.5, 4, 1, across) == 2.0

    def test_noise_never_makes_exchange_negative(self) -> None:
        assert scaled_step_s(1.0, 0.98, 2, 8, across_nodes=False) == 1.0

    def test_tensorflow_inception_on_64_gpus(self) -> None:
        """TensorFlow's benchmark page, May 2017: 29.7, 229 and 1783 images/s on 1, 8 and 64 K80 GPUs, batch 64."""
        one, eight, measured = 64 / 29.7, 8 * 64 / 229, 64 * 64 / 1783
        assert scaled_step_s(one, eight, 8, 64, across_nodes=True) == pytest.approx(measured, rel=0.02)

    def test_wrong_input_is_refused(self) -> None:
        with pytest.raises(InputError, match="step times are 0"):
            scaled_step_s(0.0, 1.0, 2, 4, across_nodes=True)
        with pytest.raises(InputError, match="1 timed"):
            scaled_step_s(1.0, 1.0, 1, 4, across_nodes=True)


def grid(most_nodes: int, most_per_node: int) -> Steps:
    rows = [
        (batch, nodes, nodes * m, m)
        for batch in (16, 32, 64, 128)
        for nodes in range(1, most_nodes + 1)
        for m in range(1, most_per_node + 1)
    ]
    batch, nodes, replicas, most = (np.array(c, dtype=float) for c in zip(*rows, strict=True))
    return Steps(batch, nodes, replicas, most, np.ones(len(rows)))


TRUE = StepModel(c0=-3.0, c1=-5.5, e=0.03, gamma=0.7, l0=-4.0, l1=-1.0, s0=-2.0, s1=-1.0, s2=-2.0, pair=-0.7)


class TestStepModel:
    def test_one_replica_only_computes(self) -> None:
        one = Steps(*(np.array([v]) for v in (10.0, 1.0, 1.0, 1.0, 1.0)))
        model = StepModel(np.log(0.1), np.log(0.02), 0, 0, 0, 0, 0, 0, 0, 0)
        assert model.seconds(one).item() == pytest.approx(0.1 + 0.02 * 10)

    def test_gamma_adds_or_hides(self) -> None:
        two = Steps(*(np.array([v]) for v in (10.0, 1.0, 2.0, 2.0, 1.0)))
        # compute 0.3 s, sync 0.2 s: their sum for γ = 1, the longer for a large γ.
        numbers = {"c0": np.log(0.1), "c1": np.log(0.02), "e": 0, "l0": np.log(0.2), "l1": 0}
        rest = {"s0": 0.0, "s1": 0.0, "s2": 0.0, "pair": 0.0}
        assert StepModel(**numbers, **rest, gamma=-40).seconds(two).item() == pytest.approx(0.5)
        assert StepModel(**numbers, **rest, gamma=6).seconds(two).item() == pytest.approx(0.3, rel=1e-3)

    def test_small_placements_predict_large_ones(self) -> None:
        small, large = grid(4, 2), grid(16, 4)
        noise = np.exp(np.random.default_rng(0).normal(0, 0.03, len(small.nodes)))
        timed = Steps(small.local_batch, small.nodes, small.replicas, small.most_per_node, TRUE.seconds(small) * noise)
        groups = [f"{n:g} {m:g}" for n, m in zip(small.nodes, small.most_per_node, strict=True)]
        model = fit_step(timed, groups)
        error = np.abs(model.seconds(large) / TRUE.seconds(large) - 1)
        assert error.mean() < 0.08
        # Linear scaling with the batch would have several times this error.
        linear = timed.seconds[0] * large.local_batch / timed.local_batch[0]
        assert error.mean() < 0.2 * np.abs(linear / TRUE.seconds(large) - 1).mean()
        assert 0.01 < model.half_width80 < 0.15

    def test_too_few_steps_are_refused(self) -> None:
        with pytest.raises(InputError, match="8 steps"):
            fit_step(grid(1, 2))
