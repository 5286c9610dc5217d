"""Model FLOPs utilisation of a measurement: FLOPs of a step over its time, over the peak of the device."""

from __future__ import annotations

from chronograd.errors import ChronogradError, InputError
from chronograd.hardware import catalog
from chronograd.measure import result
from chronograd.predict.relatives import calibration_for
from chronograd.record import Quantity, Record
from chronograd.rundir.steps import Start
from chronograd.units import si


def put_utilisation(
    record: Record, step_time: Quantity, flops: float | None, start: Start | None, precision: str, why_not: str = ""
) -> None:
    """Put the achieved rate of matrix FLOPs and the utilisation into a record, or why they are missing.

    Args:
        flops: matrix FLOPs of one rank's step; None if they were not counted, for a reason such as `why_not`.
        start: the start line of rank 0. precision: of the arithmetic; each precision has its own peak.
    """
    achieved = result.achieved_flops(step_time, flops, why_not)
    record.put("achieved_flops_per_s", achieved)
    if flops is not None:
        record.provenance.flops_per_step_per_rank = flops
    if achieved.value is None:
        record.put("mfu", Quantity.missing("1", achieved.reason))
        return
    try:
        peak = peak_of(start, precision, record.world)
    except ChronogradError as error:
        record.put("mfu", Quantity.missing("1", f"{error.message}; {error.hint}" if error.hint else error.message))
        return
    record.provenance.peak_flops_per_s = peak
    bounds = {name: None if (bound := getattr(achieved, name)) is None else bound / peak for name in ("low", "high")}
    source = f"of {si(peak, 'FLOP/s')}, {precision}"
    record.put("mfu", Quantity(value=achieved.value / peak, unit="1", n=achieved.n, source=source, **bounds))


def peak_of(start: Start | None, precision: str, ranks: int) -> float:
    """Return the peak FLOP/s of a rank's device, as a prediction uses it. Raises InputError if it is unknown.

    For a GPU it is the data sheet's, by the name in its driver. For a processor, `chronograd calibrate` measured it.
    """
    if start is None or start.device is None:
        raise InputError("the device is unknown")
    name, hint = start.device_name or "", "`chronograd calibrate` measures it"
    if start.device.startswith("cuda"):
        gpu = catalog.of_driver_name(name)
        if gpu is None:
            raise InputError(f"the peak of {name or 'this GPU'} is not in the catalogue", hint)
        return calibration_for(gpu, precision, mode="training").peak_flops_per_s
    try:
        calibration = calibration_for(catalog.device("local"), precision, start.threads, ranks, mode="training")
    except InputError:
        raise InputError("the peak of this processor is not known", hint) from None
    if calibration.provenance.get("processor") != name:
        raise InputError(f"the peak of this processor is not known: the device 'local' is another than {name}", hint)
    return calibration.peak_flops_per_s
