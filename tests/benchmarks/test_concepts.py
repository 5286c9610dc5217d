"""Concept pages: one screen each, figures equal to the command's output, numbers computed or with a source."""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.concepts import (
    CLASSES,
    FIGURES,
    FOLDER,
    GRADIENT_BYTES,
    LINK,
    OPTIMUS_RESNET50,
    UNLABELLED,
    mean_payouts,
    selection,
    whole_and_sum_us,
)
from tests.lab.studies.derived import numbers

from chronograd.count.cached import cached_trace
from chronograd.count.layers import layers, summary
from chronograd.figure import Bars, Lines
from chronograd.hardware import catalog
from chronograd.predict import collectives
from chronograd.predict.speed import SpeedModel
from chronograd.reinforce import dqn
from chronograd.reinforce.agent import epsilon_ladder
from chronograd.report import plots
from chronograd.simulate.staleness import of_pushes
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import spread
from chronograd_lab.exercises.pages import Concept, without_links
from chronograd_lab.studies.cutout import study as cutout
from chronograd_lab.studies.dqn_ablation import study as dqn_ablation
from chronograd_lab.studies.gorila_and_apex.study import (
    BATCH,
    BATCHES_PER_S,
    FRAMES_PER_S,
    FRAMES_PER_TRANSITION,
    PUBLISHED_ACTORS,
)
from chronograd_lab.studies.teacher_student import study as teacher_student
from chronograd_lab.studies.weak_labels import study as weak_labels

STUDIES = FOLDER.parent / "studies"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def text_of(name: str) -> str:
    return " ".join((FOLDER / f"{name}.md").read_text().split())


def test_each_figure_has_a_page_in_the_index() -> None:
    assert {path.stem for path in PAGES} == set(FIGURES)
    index = (FOLDER / "README.md").read_text()
    assert [p.stem for p in PAGES] == sorted(re.findall(r"^\| \[[^\]]+\]\(([\w-]+)\.md\)", index, re.M))
    for path in PAGES:
        assert f"[{Concept.read(path).title}]({path.name})" in index


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_page_fits_a_screen_with_figure_and_papers(path: Path) -> None:
    page = Concept.read(path)
    assert len(path.read_text().splitlines()) <= 60
    assert page.opening
    assert page.figure == FOLDER / f"{path.stem}.svg"
    assert re.search(r"\b(19|20)\d\d\b", page.sources)
    assert len(page.sections) >= 4


NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figure_equals_the_commands_output(name: str, tmp_path: Path) -> None:
    plots.save(FIGURES[name](), tmp_path / "made.svg")
    # Compression libraries differ, and processors differ in the last digit of a coordinate.
    made, stored = (
        re.sub(r"base64,[^\"]+", "", path.read_text()) for path in (tmp_path / "made.svg", FOLDER / f"{name}.svg")
    )
    again = f"run `python -m benchmarks.concepts {name}`"
    assert NUMBER.sub("0", made) == NUMBER.sub("0", stored), again
    places = [[float(number) for number in NUMBER.findall(text)] for text in (made, stored)]
    assert places[0] == pytest.approx(places[1], rel=1e-6, abs=2e-6), again


# -- figures in the text ---------------------------------------------------------------------------


def numbers_of_all_reduce() -> Iterator[str]:
    link = catalog.link(LINK)
    ring_s = collectives.ring(GRADIENT_BYTES, 16, link.latency_s, link.bandwidth_bytes_per_s)
    yield f"16 ranks over {8 * link.bandwidth_bytes_per_s / 1e9:g} Gbit/s Ethernet"
    yield f"with {1e6 * link.latency_s:g} µs a message"
    yield f"16 ranks need {1e3 * ring_s:.0f} ms for ResNet-50's {GRADIENT_BYTES / 1e6:.0f} MB"


def numbers_of_cutout_and_dropout() -> Iterator[str]:
    gains = [without - with_ for without, with_ in cutout.PUBLISHED.values()]
    least = 100 - max(without for without, _ in cutout.PUBLISHED.values())
    yield f"{min(gains):.1f} to {max(gains):.1f} percentage points, for networks with {math.floor(least)} % and more"
    for name, (without, with_) in cutout.PUBLISHED.items():
        yield f"| {name.replace('2x96d', '2×96d')} | {without} | {with_} |"


def numbers_of_fine_tuning_or_frozen() -> Iterator[str]:
    assert 1.96 * 100 * math.sqrt(0.9 * 0.1 / 150) > 4
    yield "With 150 test images, one percentage point means nothing."


def numbers_of_inception() -> Iterator[str]:
    traces = {name: cached_trace(f"inception-{name}") for name in ("naive", "reduced")}
    naive, reduced = (trace.macs() for trace in traces.values())
    depths = [trace.tensors[trace.outputs[0]].shape_at(1)[1] for trace in traces.values()]
    yield "The naive module gives 32×32×{} and the one with reductions 32×32×{}.".format(*depths)
    for depth, widths in zip(depths, ((128, 192, 96, 256), (128, 192, 96, 64)), strict=True):
        assert sum(widths) == depth
        yield " + ".join(map(str, widths))
    yield f"The 5×5 convolution of the next module then has {depths[0]} input channels instead of 256"
    yield f"takes {naive:,} MACs and the one with reductions {reduced:,}"
    yield f"save {100 * (1 - reduced / naive):.1f} % of the MACs, a factor of {naive / reduced:.2f}"
    yield f"At 28×28 the same sum is {round(reduced * 28 * 28 / 32 / 32):,}"
    branches: dict[str, list[list[int]]] = {}
    for place, trace in enumerate(traces.values()):
        for row in layers(trace):
            if row.macs:
                branches.setdefault(row.name.split(".")[0], [[], []])[place].append(row.macs)
    for name in ("one", "three", "five", "pool"):
        yield " | ".join(" + ".join(f"{n:,}" for n in side) or "0" for side in branches[name])
    yield f"| sum | {naive:,} | {reduced:,} |"
    yield f"for {branches['three'][1][0] / 1e6:.1f} M MACs"
    (panel,) = FIGURES["inception"]().panels
    assert isinstance(panel, Bars)
    assert [round(1e6 * sum(bar.segments.values())) for bar in panel.bars] == [naive, reduced]


def numbers_of_layer_timings() -> Iterator[str]:
    default = {name: p.default for name, p in inspect.signature(whole_and_sum_us).parameters.items()}
    yield (
        f"{default['count']} equal layers: the host takes {default['launch_us']:g} µs to launch one, and "
        f"{default['wait_us']:g} µs to notice"
    )


def numbers_of_macs_and_flops() -> Iterator[str]:
    vgg = summary(cached_trace("vgg19"))
    dense = sum(row.weights for row in layers(cached_trace("vgg19")) if row.kind == "gemm")
    yield f"{vgg.macs / 1e9:.2f} G MACs, or {2 * vgg.macs / 1e9:.2f} GFLOPs, for an image of 224×224"
    yield f"Convolutions have {100 * vgg.conv_share:.2f} % of them"
    yield f"{100 * (1 - vgg.conv_share):.2f} % of the MACs and {100 * dense / vgg.weights:.0f} % of the {vgg.weights:,} weights"
    yield f"It has {summary(cached_trace('alexnet')).params:,}"
    yield f"{summary(cached_trace('torchvision:alexnet')).params / 1e6:.1f} M is torchvision's"
    yield f"{summary(cached_trace('alexnet', {'groups': 1})).params / 1e6:.1f} M is what"


def numbers_of_optimus_models() -> Iterator[str]:
    model = SpeedModel("synchronous", OPTIMUS_RESNET50, 128)
    yield "At a batch of 128 that is {} workers on 2 servers and {} on 4".format(
        *(model.best_workers(p, range(1, 41)) for p in (2, 4))
    )
    yield f"Published for ResNet-50: {', '.join(f'{c:.2f}' for c in OPTIMUS_RESNET50)}."


def numbers_of_parameter_servers_and_staleness() -> Iterator[str]:
    updates = of_pushes(((1.0, 2.0, 3.0, 4.0), (2.5, 5.0)))
    pushes = zip(updates.pushed_ns / 1e9, updates.learner, updates.staleness, strict=True)
    for before, (time_s, learner, staleness) in enumerate(pushes):
        yield f"| {time_s:g} | {learner} | {before - staleness} | {before} | {staleness} |"
    own = [", ".join(str(s) for s in updates.staleness[updates.learner == n]) for n in (1, 2)]
    yield "Learner 1 has staleness {} and learner 2 has {}.".format(*own)
    yield f"The mean is {updates.staleness.sum()}/{len(updates.staleness)}."
    yield f"the last gradient would have {of_pushes(((1.0, 2.0, 3.0, 4.0, 5.0), (2.5, 5.0))).staleness[-1]}"


def numbers_of_percent_of_peak() -> Iterator[str]:
    device = catalog.device("k80")
    flops = [2 * summary(cached_trace(name)).macs for name in ("vgg16", "googlenet", "resnet50-v1")]
    base, boost = device.base_peak_flops_per_s["fp32"], device.peak("fp32")
    memory = device.bandwidth_bytes_per_s
    yield f"a K80 at base clock, with {base / 1e12:g} TFLOP/s and {memory / 1e9:g} GB/s"
    yield f"Below about {base / memory:.0f} FLOPs per byte the K80's memory is the limit."
    yield f"{boost / 1e12:g} TFLOP/s become {base / 1e12:g}."
    yield f"At base clock the board has {base / 1e12:g} TFLOP/s."
    yield "takes {:.1f} ms through VGG-16, {:.2f} ms through GoogLeNet and {:.1f} ms".format(
        *(1e3 * f / base for f in flops)
    )
    yield "at most {:,.0f}, {:,.0f} and {:,.0f} images".format(*(base / f for f in flops))
    yield f"At boost clock, {boost / 1e12:g} TFLOP/s, it is {', '.join(f'{boost / f:,.0f}' for f in flops[:2])} and {boost / flops[2]:,.0f}."


def numbers_of_receptive_fields() -> Iterator[str]:
    side = 3 * 5 - 3 + 1
    yield f"see {side}×{side}: 3·5 − 3 + 1 = {side}."
    yield f"have {3 * 3**2}·C² weights, one 7×7 has {7**2}·C²"


def numbers_of_resampling() -> Iterator[str]:
    (panel,) = FIGURES["resampling"]().panels
    assert isinstance(panel, Lines)
    yield f"{len(panel.series[0].x):,} classes whose sizes follow Zipf's law"
    yield "{:g} to {:g} percentage points better".format(*weak_labels.PUBLISHED_GAIN)


def numbers_of_strong_and_weak_scaling() -> Iterator[str]:
    panel = FIGURES["strong-and-weak-scaling"]().panels[1]
    assert isinstance(panel, Lines)
    weak, strong = (float(series.y[-1] or 0) for series in panel.series)
    yield f"over {8 * catalog.link(LINK).bandwidth_bytes_per_s / 1e9:g} Gbit/s"
    yield f"{panel.series[0].x[-1]:g} devices keep {weak:.0f} % of their throughput weakly, and {strong:.1f} % strongly"
    inside, between = (
        [catalog.link(name).bandwidth_bytes_per_s / 1e9 for name in names]
        for names in (("pcie3", "nvlink2"), ("ethernet-10g", "infiniband-edr"))
    )
    assert 10 <= inside[0] < inside[1] <= 150
    assert 1 <= between[0] < between[1] < 13
    yield "at 10 to 150 GB/s; the network card gives 1 to 12 GB/s"


def numbers_of_teacher_and_student() -> Iterator[str]:
    label, kept = FIGURES["teacher-and-student"]().panels
    assert isinstance(label, Lines)
    assert isinstance(kept, Lines)
    yield f"{UNLABELLED:,} images of {CLASSES} classes"
    yield f"On the left P = {kept.series[0].x[-1]:g}, on the right K = {label.series[0].x[-1]:,.0f}."


def numbers_of_weakly_and_semi_supervised() -> Iterator[str]:
    alone, student, hashtags = (
        teacher_student.PUBLISHED_ALONE, teacher_student.PUBLISHED_STUDENT, teacher_student.PUBLISHED_HASHTAGS
    )  # fmt: skip
    yield f"ResNet-50 trained on ImageNet alone has {alone} %."
    yield f"For ResNet-50 on ImageNet {alone} % became {student} %"
    yield f"and {hashtags} % with the billion"


def numbers_of_dqn_line_by_line() -> Iterator[str]:
    """Return the numbers of the algorithm's lines; another test checks the code next to them."""
    yield from (f"| {number} |" for number in range(1, 14))


def numbers_of_episodic_and_continuing_tasks() -> Iterator[str]:
    discount = 0.99
    yield f"With γ = {discount}, as in deep Q-learning, that is {1 / (1 - discount):.0f} steps"


def numbers_of_exploration_and_exploitation() -> Iterator[str]:
    ladder = [f"{value:.4f}".rstrip("0") for value in epsilon_ladder(8)]
    yield f"With 8 that is {', '.join(ladder[:-1])} and {ladder[-1]}"


def numbers_of_prioritised_replay() -> Iterator[str]:
    priorities = np.array([4.0, 2, 1, 1])
    share = priorities / priorities.sum()
    weights = (1 / share) / (1 / share).max()
    yield f"with α = 1 the four have P = {_listed(share)}"
    yield f"the four transitions of the figure have the weights {_listed(weights)}"


def _listed(values: np.ndarray) -> str:
    words = [f"{value:g}" for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def numbers_of_q_learning_and_deep_q_learning() -> Iterator[str]:
    yield f"a maze of 16 cells has {16 * 4} values"
    yield f"Four numbers in 10 bins have {2 * 10**4:,} values, in 100 bins {2 * 100**4 // 10**6} million"


def numbers_of_why_a_target_network() -> Iterator[str]:
    yield f"multiplies w by 1 + 0.1 (2γ − 1) = {1 + 0.1 * (2 * 0.99 - 1):.3f}"
    known = dqn_ablation.values(Results.load(STUDIES / "dqn-ablation" / "results.json"))
    without, with_ = (known[name]["q"] for name in ("without_target_network", "both"))
    assert without["above"] == without["rising"] == without["seeds"]
    yield f"diverges in all {without['seeds']} seeds without the copy"
    yield "ends between {least:.1f} and {most:.1f} million".format(**{k: v / 1e6 for k, v in without["last"].items()})
    yield "ends between {least:.0f} and {most:.0f}".format(**with_["last"])
    yield f"no discounted return exceeds {known['bound']:.0f}"


def numbers_of_why_replay() -> Iterator[str]:
    yield f"with a minibatch of 32 every 4 steps each is drawn {32 / 4:.0f} times on average"
    frames_gb = 10**6 * 84 * 84 / 1e9
    yield f"a million frames of 84 × 84 are {frames_gb:.1f} GB"
    yield f"as transitions of two stacks of four they would be {8 * frames_gb:.0f} GB"
    rows = Results.load(STUDIES / "dqn-ablation" / "results.json").rows["runs"]
    without, with_ = (spread(rows, "last_return", agent=agent) for agent in (dqn_ablation.NO_REPLAY, dqn_ablation.BOTH))
    assert with_ > without
    yield f"returns {without.mean:.3g} at the end and the agent with it {with_.mean:.3g}, each from {with_.n} seeds"


def numbers_of_gorila_and_ape_x() -> Iterator[str]:
    results = Results.load(STUDIES / "gorila-and-apex" / "results.json")

    def mean(name: str, agent: str) -> float:
        values = [row[name] for row in results.rows["runs"] if row["agent"] == agent]
        return sum(values) / len(values)

    age, steps, minibatches, kb, top, draws = (
        [mean(f"agents_{name}", agent) for agent in ("Gorila", "Ape-X")]
        for name in (
            "parameter_age_updates", "steps_per_s", "batches_per_s", "bytes_per_update", "draws_of_top_tenth", "drawn_per_s"
        )
    )  # fmt: skip
    added = [mean("agents_added_per_s", agent) for agent in ("Gorila", "Ape-X")]
    gorila, ape_x = (f"{drawn / made:.1f}" for drawn, made in zip(draws, added, strict=True))
    settings = results.settings
    yield f"an update every {settings['agent']['update_every']} steps"
    yield f"of {settings['seeds']} seeds"
    assert (settings["actors"], settings["learners"]) == (2, 2)
    yield f"{age[0]:.1f} updates behind in Gorila, {age[1]:.1f} in Ape-X"
    yield f"{steps[0]:.0f} steps and {minibatches[0]:.0f} minibatches a second in Gorila, {steps[1]:.0f} and {minibatches[1]:.0f} in Ape-X"
    yield f"draws each transition {gorila} times in Gorila, {ape_x} in Ape-X"
    yield f"so a gradient is {mean('staleness', 'Gorila'):.2f} updates old"
    yield f"exchanges parameters and gradients, {kb[0] / 1e3:.1f} kB for an update, and Ape-X transitions, {kb[1] / 1e3:.1f} kB."
    yield f"gets {100 * top[0]:.0f} % of Gorila's draws and {100 * top[1]:.0f} % of Ape-X's"
    params = mean("trained_params", "Gorila")
    yield f"twice 4 · {params:,.0f} bytes, {2 * 4 * params / 1e3:.1f} kB of the {kb[0] / 1e3:.1f}"
    yield f"its minibatch of {settings['batch']} transitions"
    yield f"{BATCHES_PER_S * BATCH / (PUBLISHED_ACTORS * FRAMES_PER_S / FRAMES_PER_TRANSITION):.2f} times each in the paper"


@cache
def checked_words(name: str) -> tuple[str, ...]:
    """Return the words of a page with computed numbers or with a source in concept_sources.toml."""
    computed = globals().get(f"numbers_of_{name.replace('-', '_')}")
    cited = tomllib.loads((Path(__file__).parent / "concept_sources.toml").read_text()).get(name, {})
    return (*(computed() if computed else ()), *cited)


def unchecked_numbers(name: str, text: str) -> list[str]:
    """Return numbers of a page without a check or source, and checked words that the page lacks.

    Skips 0, 1 and 2, kernel sizes, years, and numbers in code.
    """
    words = checked_words(name)
    gone = [f"gone: {one}" for one in words if one not in text]
    for one in sorted(words, key=len, reverse=True):
        text = text.replace(one, " ; ")
    left = re.sub(r"`[^`]*`|\b\d×\d\b|\d+×\d+d|\b(19|20)\d\d\b", " ", text)
    return gone + [left[max(0, n.start - 30) : n.start + 30] for n in numbers(left) if n.value not in (0, 1, 2)]


def prose_of(name: str) -> str:
    """Return the text of a page as one line, without sources, pictures, and link targets."""
    text = (FOLDER / f"{name}.md").read_text().partition("## Sources")[0]
    return " ".join(without_links(text).split())


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_number_is_computed_or_has_a_source(name: str) -> None:
    assert unchecked_numbers(name, prose_of(name)) == []


def test_wrong_number_is_detected() -> None:
    """Increase the first digit of each number of each page."""
    seen = missed = 0
    for name in FIGURES:
        text = prose_of(name)
        for number in numbers(re.sub(r"\b\d×\d\b|\d+×\d+d|\b(19|20)\d\d\b", lambda m: "x" * len(m[0]), text)):
            if number.value in (0, 1, 2):
                continue
            place = number.start + re.search(r"\d", number.text).start()  # type: ignore[union-attr]
            wrong = f"{text[:place]}{int(text[place]) % 9 + 1}{text[place + 1 :]}"
            seen, missed = seen + 1, missed + (unchecked_numbers(name, wrong) == [])
    assert seen > 150
    assert missed == 0


def test_layer_synchronisation_costs_most_for_short_layers() -> None:
    ratios = {kernel: float(np.divide(*whole_and_sum_us(kernel)[::-1])) for kernel in (1.0, 5.0, 2000.0)}
    assert ratios[5.0] > ratios[1.0] > 2
    assert ratios[2000.0] == pytest.approx(1, abs=0.01)


def test_label_quality_falls_with_k_and_p_fills_small_classes() -> None:
    right, smallest = selection([100, 800, 3200], [1, 3])
    assert right[0] > 99
    assert right == sorted(right, reverse=True)
    assert smallest[1] < smallest[3] == 3200


def test_algorithm_lines_match_the_code_lines() -> None:
    source = Path(dqn.__file__).read_text().splitlines()
    rows = re.findall(r"^\| (\d+) \| .* \| `(.*)` \|$", (FOLDER / "dqn-line-by-line.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 14))
    for number, code in rows:
        (marked,) = (line for line in source if line.endswith(f" 2013 {number}"))
        assert marked.strip().startswith(code)
    assert "`self.target.load_state_dict(self.network.state_dict())`" in text_of("dqn-line-by-line")
    assert any("self.target.load_state_dict(self.network.state_dict())" in line for line in source)


def test_savings_of_levers_match_the_page() -> None:
    paid = {name: payouts[-1] for name, payouts in mean_payouts().items()}
    text = text_of("exploration-and-exploitation")
    assert f"{paid['ε = 0.1']:.2f} with ε = 0.1 and {paid['ε = 0.01']:.2f} with ε = 0.01" in text
    assert f"ends at {paid['ε = 1/√t']:.2f}" in text
    assert max(paid, key=lambda name: paid[name]) == "ε = 1/√t"
    *rest, last = (f"{epsilon:.4f}".rstrip("0") for epsilon in epsilon_ladder(8))
    assert f"{', '.join(rest)} and {last}" in text
