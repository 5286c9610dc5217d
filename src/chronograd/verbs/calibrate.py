"""`calibrate`: measure this machine as the device `local`; `calibrate links`: measure its links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, COUNTS
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import progress

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.calibrate.answer import MeasuredLinks, ReadLink
    from chronograd.hardware.catalog import Device


@dataclass(frozen=True, kw_only=True)
class Calibrate(Request):
    """Measure this machine's GPU, or its CPU, in about a minute per precision and layout.

    The result is the device `local`. --on and cluster.device accept it like any other. `calibrate links` measures links.
    """

    verb = "calibrate"

    precision: tuple[Literal["fp32", "tf32", "bf16", "fp16"], ...] = ("fp32",)
    """Precision to calibrate; may be given several times."""
    layout: tuple[Literal["nchw", "nhwc"], ...] = ("nchw",)
    """Memory layout of images: nhwc for training.channels_last, and on a CPU for training.compile. Give it twice for both."""
    out: Annotated[Path | None, FILE] = None
    """Also save the device file (.toml)."""

    def answer(self) -> Answer[Device]:
        from chronograd.calibrate.answer import calibrate

        with progress("calibrating") as report:
            return calibrate(self.precision, layouts=self.layout, out=self.out, progress=report)


@dataclass(frozen=True, kw_only=True)
class CalibrateLinks(Request):
    """Time collectives between processes of one or several machines, and fit the link that predict uses.

    It times all-reduce, all-gather, reduce-scatter and broadcast over sizes and numbers of processes, and shows time, algorithm
    and bus bandwidth. α and β of the all-reduces become the link `loopback`; between hosts they become the link with the given
    name, for cluster.link. If something limits the rate, that link also has the size of the initial burst in bytes.

    With --from nothing is timed: the link is fitted to the rows of a file. The rows are all-reduces (columns ranks, bytes,
    seconds), or steps on one rank and on several (ranks, network, batch_per_rank, device, precision, samples_per_s). All rows
    use one device and library. One row of all-reduces is enough.
    """

    verb = "calibrate links"
    examples = (
        "chronograd calibrate links",
        "chronograd calibrate links --world 2,4 --collective all_reduce",
        "chronograd calibrate links --hosts node1,node2 --name ethernet-here",
        "chronograd calibrate links --from all-reduce.csv --name pcie-here",
    )

    world: Annotated[tuple[int, ...] | None, COUNTS] = None
    """Numbers of processes, such as 2,4; 2 by default, with --hosts one on each."""
    collective: tuple[str, ...] = ()
    """Collective to time; all by default. May be given several times."""
    seconds: Annotated[float, ABOVE_0] = 0.4
    """Seconds to time one collective at one size."""
    hosts: str | None = None
    """Hosts of the ranks, in blocks: names for ssh, or namespaces such as netns:h1,netns:h2."""
    rows: Annotated[Path | None, FILE, Spelling(("--from",))] = None
    """A CSV file of measured all-reduces, or of scaling, to fit the link to."""
    like: str | None = None
    """With --from: the link whose latency is used if the rows do not determine it; pcie3 by default."""
    name: str | None = None
    """With --hosts and --from: name of the new link, such as ethernet-here. Names of the catalogue are not allowed."""

    def answer(self) -> Answer[MeasuredLinks | ReadLink]:
        from chronograd.calibrate import answer, link_rows, links

        if self.rows is not None:
            if self.name is None or self.hosts is not None or self.world is not None:
                raise InputError("--from needs --name, and times nothing", "leave out --hosts and --world")
            return answer.link_from_rows(self.rows, self.name, self.like or link_rows.LIKE)
        if self.like is not None:
            raise InputError("--like needs --from: a timed link has its own latency", "leave --like out")
        if (self.hosts is None) != (self.name is None):
            raise InputError("--hosts and --name go together: the link between those hosts gets that name",
                             "give both, or neither")  # fmt: skip
        if self.hosts is not None and self.world is not None:
            raise InputError("--hosts has one process on each host", "leave --world out")
        with progress("timing collectives") as report:
            return answer.calibrate_links(
                self.world or (2,),
                self.collective or links.COLLECTIVES,
                seconds_each=self.seconds,
                hosts=self.hosts,
                name=self.name or links.LOOPBACK,
                progress=report,
            )


REQUESTS = (Calibrate, CalibrateLinks)
