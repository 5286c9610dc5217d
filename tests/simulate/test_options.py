"""The command lines of `simulate`: impossible options are refused in one sentence, and long tables end."""

import time

import pytest
from click.testing import CliRunner

import chronograd
from chronograd.cli.main import command, main


@pytest.mark.parametrize(
    "words",
    [
        *("staleness --compute 1 --seed -1", "staleness --compute 1 --seed x", "staleness --compute 1 --softsync 0"),
        *("staleness --compute 1 --learners 0", "staleness --compute 1 --learners 1e9", "staleness --compute 1 --updates x"),
        *("speed --batch 0", "speed --batch -1", "speed --servers 0", "speed --workers 0", "speed --workers 1:20000"),
        *("speed --steps 0", "speed --steps -1", "speed --coefficients x"),
    ],
)  # fmt: skip
def test_an_impossible_option_is_refused(words):
    result = CliRunner().invoke(command, ["simulate", *words.split()])
    assert result.exit_code == 2
    assert result.output.count("Error: ") == 1


@pytest.mark.parametrize(
    "words",
    [
        *("staleness --compute 1 --updates 0", "staleness --compute 1 --updates -5", "staleness --compute 1 --updates 2000000"),
        *("staleness --compute 1e-12", "staleness --compute exponential:1e-300", "staleness --compute 1e9"),
        *("staleness --compute nan", "staleness --compute 1 --push inf", "staleness --pushes 1,1", "staleness --pushes 1e300"),
        *("speed --steps inf", "speed --batch nan", "speed --steps 1e308", "speed --coefficients 1e-320,0,0,0,0 --batch 1"),
        "speed --coefficients 1,2,3",
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused(words, capsys):
    start = time.process_time()
    assert main(["simulate", *words.split()]) == 2
    assert "np.float64" not in capsys.readouterr().err
    assert time.process_time() - start < 2


def test_the_figures_of_each_learner_are_those_of_its_gradients():
    found = chronograd.simulate_staleness(compute=["0.5", "1", "10"], updates=30).result
    for one in found.learners:
        own = [update.staleness for update in found.updates if update.learner == one.learner]
        assert one.gradients == len(own)
        assert one.mean_staleness == (sum(own) / len(own) if own else None)
        assert one.max_staleness == (max(own) if own else None)


def test_five_thousand_learners_are_answered_in_seconds():
    start = time.process_time()
    found = chronograd.simulate_staleness(compute="1", learners=5_000, updates=50_000).result
    assert len(found.learners) == 5_000
    assert time.process_time() - start < 5
