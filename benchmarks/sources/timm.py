"""timm's tables: throughput of hundreds of image models on one device.

Every table in the folder is predicted in three ways. The first fits 25 of its rows, chosen by five seeds, with a prior of round
numbers. The second takes the prior from the table of the other layout, if there is one. The third also adds each network's
residual from that table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.sources import Row, row_of
from chronograd.calibrate.tables import TimedRow, family_of_model, fit_table, join, prior_of, ratios
from chronograd.errors import InputError, NotFoundError
from chronograd.fit.tables import ThroughputTable, read_table, shuffled
from chronograd.hardware import catalog
from chronograd.predict.calibration import Calibration
from chronograd.predict.carrying import Shown
from chronograd.predict.relatives import NEAR_SD
from chronograd.record import Z80

CALIBRATE, PREDICT, SEEDS = 25, 250, 5
# By (is training, kind of device): alone, with the other layout's prior, with residuals carried.
AIMS = {
    (False, "gpu"): (0.10, 0.085, 0.07),
    (True, "gpu"): (0.12, 0.12, None),
    (False, "cpu"): (0.15, None, None),
}


@dataclass(frozen=True)
class _Source:
    table: ThroughputTable
    device: catalog.Device
    timed: list[TimedRow]
    left_out: dict[str, str]

    @property
    def title(self) -> str:
        t = self.table
        layout = "" if self.device.kind == "cpu" else f", {t.layout}"
        return f"timm, {t.mode}, {self.device.name}{layout}" + (", compiled" if t.is_compiled else "")

    @property
    def key(self) -> tuple[object, ...]:
        """Return all properties that the two layouts share."""
        t = self.table
        return t.phase, t.precision, t.torch, t.device, t.is_compiled

    def prior(self) -> Calibration:
        return prior_of(self.table, self.device, "datasheet")[0]


def rows(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    sources = list(_sources(folder, say))
    found: list[Row] = []
    for source in sources:
        aims = AIMS.get((source.table.mode == "training", source.device.kind), (None, None, None))
        found.append(_scored(source, "fit on 25 rows, prior of round numbers", aims[0], source.prior(), None))
        other = next((s for s in sources if s.key == source.key and s.table.layout != source.table.layout), None)
        if other is None:
            continue
        taught = fit_table(other.table, other.timed, other.prior())
        carried = {
            t.row.key: Shown(1 / ratio, t.sample.work.sigma_log(taught))
            for t, ratio in zip(other.timed, ratios(other.timed, taught), strict=True)
        }
        found.append(_scored(source, f"fit on 25 rows, prior of {other.table.layout}", aims[1], taught, NEAR_SD))
        rule = f"network also timed in {other.table.layout}, fit on 25 rows"
        found.append(_scored(source, rule, aims[2], taught, NEAR_SD, carried))
    return found


def _sources(folder: Path, say: Callable[[str], None]) -> list[_Source]:
    found = []
    for path in sorted(folder.glob("timm/benchmark-*.csv")):
        table = read_table(path)
        try:
            device = catalog.device(table.device or "")
            device.peak(table.stated_precision)  # type: ignore[arg-type]
        except (NotFoundError, InputError) as error:
            say(f"{path.name} is left out: {error.message}")
            continue
        say(f"{path.name}: tracing {len(table.rows)} rows")
        joined = join(table, table.rows)
        if len(joined.timed) <= CALIBRATE:
            say(f"{path.name} is left out: {len(joined.timed)} rows could be traced")
            continue
        found.append(_Source(table, device, joined.timed, joined.left_out))
    return found


def _scored(
    source: _Source,
    rule: str,
    aim: float | None,
    prior: Calibration,
    prior_sd: float | None,
    carried: dict[str, Shown] | None = None,
) -> Row:
    """Fit on rows of each seed and predict the others; `carried` has the networks' residuals from a related table."""
    names: list[str] = []
    families: list[str] = []
    found, inside, by_seed = [], [], []
    for seed in range(SEEDS):
        order = shuffled(source.timed, seed)
        calibration = fit_table(source.table, order[:CALIBRATE], prior, prior_sd)
        scored = order[CALIBRATE:]
        if carried is not None:
            scored = [t for t in scored if t.row.key in carried]
        scored = scored[:PREDICT]
        sigma = np.array([t.sample.work.sigma_log(calibration) for t in scored])
        ratio = ratios(scored, calibration)
        if carried is not None:
            factors, sigma = np.array([carried[t.row.key].onto(s) for t, s in zip(scored, sigma, strict=True)]).T
            ratio = ratio * factors
        names += [t.row.key for t in scored]
        families += [family_of_model(t.row.model) for t in scored]
        found.append(ratio)
        inside.append(np.abs(np.log(ratio)) <= Z80 * sigma)
        by_seed.append(float(np.abs(ratio - 1).mean()))
    note = f"{len(source.left_out)} of {len(source.table.rows)} rows left out: {_why(source.left_out)}"
    return row_of(
        source.title,
        rule,
        aim,
        names,
        np.concatenate(found),
        np.concatenate(inside),
        by_seed=tuple(by_seed),
        note=note,
        groups={"family": _common(families)},
    )


def _common(families: list[str]) -> list[str]:
    """Return the families with all but the ten most frequent replaced by `other`."""
    most = [name for name, _ in Counter(families).most_common(10)]
    return [name if name in most else "other" for name in families]


def _why(left_out: dict[str, str]) -> str:
    """Return the number of rows left out, by reason."""
    params = sum("parameters here" in reason for reason in left_out.values())
    unknown = sum("unknown" in reason for reason in left_out.values())
    return f"{params} with other parameters, {unknown} not in this timm, {len(left_out) - params - unknown} others"
