"""The picture of asynchronous SGD matches the updates of the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from chronograd.errors import InputError
from chronograd.explain.agents import timeline_sections
from chronograd.figure import Figure, Push, Span
from chronograd.record import AtWork, Curve, Quantity, Record
from chronograd.report import lanes, plots
from chronograd.report.runs import generic_page
from chronograd.simulate.simulations import panel as lanes_of
from chronograd.simulate.staleness import Duration, Learner, of_pushes, simulate


def fixed(*parts: float) -> Learner:
    """Return a learner with fixed times of compute, pull, push and request."""
    return Learner(*(Duration("fixed", (seconds,)) for seconds in parts))


def texts(figure: Figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", plots.svg(figure))


def test_first_seconds_of_actors_and_learners() -> None:
    """The learner works 1 of 2 s and the actor 1.5 s, without a server. Report and explanation show the same section."""
    record = Record(kind="measured", title="apex on CartPole-v1")
    assert timeline_sections(record) == []
    spans = [("actor", 0, 0.0, 1.0), ("learner", 0, 1.0, 2.0), ("actor", 0, 1.5, 2.0)]
    record.tables.timeline = [AtWork(role=role, number=n, start=start, end=end) for role, n, start, end in spans]
    (section,) = timeline_sections(Record.model_validate_json(record.model_dump_json()))
    assert section.takeaway == "Share of the first 2 s in which each part worked: learner 0 50 %, actor 0 75 %."
    assert section.figure is not None
    assert section.figure.rows()[0] == {"part": "actor 0", "does": "actor", "time, s": 0.0, "until": 1.0}
    drawn = texts(section.figure)
    assert {"actor 0", "learner 0", "time, s"} <= set(drawn)
    assert "server's version" not in drawn
    record.put("step_time_s", Quantity(value=0.1, unit="s"))
    record.curves["loss"] = Curve(
        columns={"step": [1.0], "loss": [1.0]}, units={"step": "count", "loss": ""}, source=""
    )
    assert section.title in [one.title for one in generic_page({"run": record}).sections]
    many = [AtWork(role="actor", number=n, start=0, end=1) for n in range(40)]
    record.tables.timeline = many
    assert timeline_sections(record)[0].caption.endswith("The first 12 of 40 parts.")


def test_two_learner_exercise() -> None:
    panel = lanes_of(of_pushes([[1, 2, 3, 4], [2.5, 5]]), 2)
    assert panel.spans[0] == Span(0, "compute", 0.0, 1.0, "v0")
    assert [span.note for span in panel.spans if span.lane == 1] == ["v0", "v3"]
    assert panel.pushes[2] == Push(1, 2.5, 3, 2)
    assert [push.staleness for push in panel.pushes] == [0, 0, 2, 1, 0, 2]
    assert panel.versions == [(1, 1), (2, 2), (2.5, 3), (3, 4), (4, 5), (5, 6)]
    assert panel.data()[-1] == {"learner": "learner 2", "time, s": 5.0, "version": 6, "staleness": 2}
    drawn = texts(Figure([panel]))
    assert drawn.count("v0") == 2
    assert [text for text in drawn if text in "0123456"].count("2") == 4  # two of staleness, a version, a tick
    assert {"learner 1", "learner 2", "server's version", "time, s"} <= set(drawn)


def test_parts_of_a_cycle_and_their_unit() -> None:
    panel = lanes_of(simulate([fixed(0.010, 0.002, 0.003, 0.005)], 3), 1)
    assert panel.x_label == "time, ms"
    starts = [(span.part, pytest.approx(span.start), pytest.approx(span.end)) for span in panel.spans[:4]]
    assert starts == [("pull", 5, 7), ("compute", 7, 17), ("push", 17, 20), ("pull", 25, 27)]
    assert lanes.parts(panel) == ["pull", "compute", "push"]
    assert not any(span.is_beside for span in panel.spans)


def test_asynchronous_push_is_next_to_the_gradient() -> None:
    found = simulate([fixed(1, 0, 0.5)], 4, waits=False)
    assert [span.is_beside for span in lanes_of(found, 1).spans if span.part == "push"] == [True] * 4


def test_many_updates_are_cut_at_whole_updates() -> None:
    found = simulate([fixed(1)] * 20, 400, gradients_per_update=7)
    panel = lanes_of(found, 20)
    assert len(panel.lanes) == 12
    assert {push.lane for push in panel.pushes} == set(range(12))
    assert [version for _, version in panel.versions] == list(
        range(1, 10)
    )  # 9 complete updates of 7 include the 60th gradient
    end = panel.versions[-1][0]
    assert all(span.start < span.end <= end for span in panel.spans)


def test_crowded_versions_are_dropped() -> None:
    dense = texts(Figure([lanes_of(simulate([fixed(1)] * 3, 60), 3)]))
    assert "3" in dense
    assert "4" not in dense  # learners meet at 1 s, where version 4 is 1 of 3
    assert "60" in dense


def test_panel_as_image_files(tmp_path: Path) -> None:
    figure = Figure([lanes_of(simulate([fixed(1), fixed(2.5)], 20), 2, role="measured")])
    plots.save(figure, tmp_path / "a.svg")
    plots.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        plots.save(figure, tmp_path / "a.pdf")
    with pytest.raises(InputError, match="cannot write"):
        plots.save(figure, tmp_path / "none" / "a.svg")
    with pytest.raises(ValueError, match="no update"):
        lanes_of(of_pushes([[1.0]], gradients_per_update=2), 1)
