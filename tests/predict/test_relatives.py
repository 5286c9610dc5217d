"""Choice of a device's calibration, transfer from related devices, and packaged calibrations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError, NotFoundError
from chronograd.fit.device import MIN_SAMPLES
from chronograd.hardware import catalog, hosts
from chronograd.hardware.catalog import Device
from chronograd.job import changed, from_dict
from chronograd.predict.calibration import (
    CLASSES,
    COMPILED_TRAINING_ISSUES,
    DATASHEET_SIGMA,
    Calibration,
    ClassRate,
    calibrations,
    from_datasheet,
)
from chronograd.predict.prediction import predict
from chronograd.predict.relatives import assumed_for, calibration_for, fed
from chronograd.predict.setting import setting_of

# So old that no catalogue device is a close relative.
YEAR = 1991
TAUGHT = ClassRate(compute=0.123, bandwidth=0.234, weights=0.345, launch_s=4.5e-6)


def device(name: str, settings: list[Calibration] | None = None, speed: float = 1.0, **changes: Any) -> Device:
    """Return a GPU whose peaks and bandwidth are `speed` times a V100's."""
    base = catalog.device("v100")
    peaks = {k: speed * v for k, v in base.peak_flops_per_s.items()}
    bandwidth = speed * base.bandwidth_bytes_per_s
    kept = None if settings is None else {"settings": [c.to_table() for c in settings]}
    # Unknown power means a normal supply; no other device has its chip.
    base = base.model_copy(update={"tdp_w": None, "chip": None})
    update = {"name": name, "aliases": (), "year": YEAR, "peak_flops_per_s": peaks, "bandwidth_bytes_per_s": bandwidth}
    return base.model_copy(update={**update, "calibration": kept, **changes})


def fitted_calibration(
    table: str = "a.csv", precision: str = "fp16", sigma: float = 0.1, **changes: Any
) -> Calibration:
    """Return a calibration that saw convolutions only."""
    sheet = from_datasheet(catalog.device("v100"), precision)
    provenance = {"table": table, "classes_seen": ["conv_3x3.forward"]}
    changes = {
        "mode": "inference",
        "channels_last": True,
        "host_launch_s": 7e-6,
        "host_sigma": 0.1,
        "cache_speedup": 1.7,
        **changes,
    }
    changes = {"classes": {"conv_3x3.forward": TAUGHT}, "provenance": provenance, **changes}
    return replace(sheet, origin="fitted", sigma=sigma, **changes)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], None]:
    """Return a function that saves a device among the user's devices."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return lambda device: device.save(catalog.user_device_path(device.name))


LIKE = {"mode": "inference", "channels_last": True}
MODES = ("inference", "training")


@pytest.mark.parametrize(
    ("precision", "wanted", "expected"),
    [
        ("fp32", {"mode": "training", "channels_last": False}, "fp32"),
        ("fp16", {"mode": "inference", "channels_last": True}, "infer nhwc"),
        ("fp16", {"mode": "inference", "channels_last": False}, "infer nchw"),
        ("fp16", {"mode": "training", "channels_last": True}, "train nhwc"),
        (
            "fp16",
            {"mode": "training", "channels_last": False},
            "train nhwc",
        ),  # the mode is more important than the layout
    ],
)
def test_own_calibration_is_chosen_by_setting(precision: str, wanted: dict[str, Any], expected: str) -> None:
    """Select by precision, then eager before compiled, then mode, then layout."""
    settings = [
        fitted_calibration("compiled", is_compiled=True),
        fitted_calibration("infer nchw", channels_last=False),
        fitted_calibration("infer nhwc"),
        fitted_calibration("train nhwc", mode="training"),
        fitted_calibration("fp32", "fp32", mode=None, channels_last=None),
    ]
    own = device("mine", settings)
    assert calibration_for(own, precision, **wanted).provenance["table"] == expected
    only_compiled = device("mine", settings[:1])
    # A calibration of compiled networks is only a relative for eager ones.
    lent = calibration_for(only_compiled, "fp16", **LIKE)
    assert (lent.origin, lent.provenance["relative"]) == ("relative", "mine, fp16, inference")


def test_relatives_supply_unseen_classes(known: Callable[[Device], None]) -> None:
    """The device was fitted to products only, and its sister to convolutions."""
    known(device("sister", [fitted_calibration(sigma=0.1)]))
    products = fitted_calibration("products.csv", mode=None, channels_last=None)
    products = replace(
        products, classes={"gemm.forward": TAUGHT}, provenance={"table": "p.csv", "classes_seen": ["gemm.forward"]}
    )
    mine = device("mine", [products])
    found = calibration_for(mine, "fp16", **LIKE)
    assert found.classes["gemm.forward"] == TAUGHT
    assert found.classes["conv_3x3.forward"] == assumed_for(mine, "fp16", **LIKE)[0].classes["conv_3x3.forward"]
    sigmas = dict(zip(CLASSES, found.sigmas(), strict=True))
    assert sigmas["gemm.forward"] == products.sigma < sigmas["conv_3x3.forward"] < sigmas["softmax.forward"]
    assert sigmas["softmax.forward"] == DATASHEET_SIGMA


def test_relative_lends_shares_not_peaks(known: Callable[[Device], None]) -> None:
    known(device("sister", [fitted_calibration(sigma=0.1)]))
    mine = device("mine", speed=2.0)
    found, prior_sd = assumed_for(mine, "fp16", **LIKE)
    assert (found.origin, found.provenance["relative"]) == ("relative", "sister, fp16, inference")
    assert found.peak_flops_per_s == mine.peak("fp16")
    assert found.bandwidth_bytes_per_s == mine.bandwidth_bytes_per_s
    # Another card of the same year and balance has distance 0.2, and spread is half of it. Prior values also count.
    sheet = from_datasheet(mine, "fp16").classes["conv_3x3.forward"]
    of_sister, of_sheet = (0.1**2 + 0.1**2) ** -2, DATASHEET_SIGMA**-4
    share = of_sister / (of_sister + of_sheet)
    for field in ("compute", "bandwidth", "weights", "launch_s"):
        expected = getattr(TAUGHT, field) ** share * getattr(sheet, field) ** (1 - share)
        assert getattr(found.classes["conv_3x3.forward"], field) == pytest.approx(expected), field
    assert found.classes["conv_3x3.forward"].depth == pytest.approx((1 - share) * sheet.depth)  # the sister has none
    assert found.class_sigma == {"conv_3x3.forward": pytest.approx(math.hypot(0.1, 0.1))}
    assert found.cache_speedup == 1.7
    assert found.classes["gemm.forward"] == from_datasheet(mine, "fp16").classes["gemm.forward"]  # never measured
    assert found.classes_seen == {"conv_3x3.forward"}
    assert found.sigma == pytest.approx(math.hypot(0.1, 0.5 * 0.2))
    assert prior_sd == pytest.approx(0.3 + 0.3 * 0.2)
    assert calibration_for(mine, "fp16", **LIKE) == found


def test_distant_relatives_widen_up_to_the_data_sheet(known: Callable[[Device], None]) -> None:
    known(device("sister", [fitted_calibration(sigma=0.1)]))
    devices = [device("mine", year=YEAR + years) for years in (0, 4, 8, 12)]
    found = [assumed_for(d, "fp16", **LIKE) for d in devices]
    sigmas = [c.sigma for c, _ in found]
    assert sigmas == sorted(set(sigmas))
    assert sigmas == pytest.approx([math.hypot(0.1, 0.5 * (0.2 + 0.03 * years)) for years in (0, 4, 8, 12)])
    widths = [sd for _, sd in found if sd is not None]
    assert widths == sorted(set(widths))
    assert len(widths) == 4
    stranger, prior_sd = assumed_for(device("mine", year=2090), "fp16", **LIKE)
    assert (stranger.origin, stranger.sigma, prior_sd) == ("datasheet", DATASHEET_SIGMA, None)


def test_low_power_card_misses_its_matrix_peak(known: Callable[[Device], None]) -> None:
    """Half of the power that its year's peak needs gives half of the share, in both directions."""
    half_fed = {"tdp_w": 10 * catalog.device("v100").peak("fp32") / 1e12, "year": 2016}
    assert fed(device("half", **half_fed)) == pytest.approx(0.5)
    assert fed(device("unknown", year=2016)) == 1.0
    # Cards for desktops exceed their boost clock. The same chip in a server has three quarters of the power that it needs.
    assert (fed(catalog.device("rtx4090")), round(fed(catalog.device("l40s")), 2)) == (1.0, 0.74)
    seen = {"classes": {"conv_3x3.forward": TAUGHT, "elementwise.forward": TAUGHT}}
    seen["provenance"] = {"table": "a.csv", "classes_seen": sorted(seen["classes"])}  # type: ignore[assignment]
    known(device("sister", [fitted_calibration(**seen)], year=2016))
    fine, poor = (assumed_for(d, "fp16", **LIKE)[0] for d in (device("fine", year=2016), device("poor", **half_fed)))
    ratio = {n: poor.classes[n].compute / fine.classes[n].compute for n in seen["classes"]}
    assert ratio == {"conv_3x3.forward": pytest.approx(0.5), "elementwise.forward": pytest.approx(1)}


def test_fp32_matrix_units_borrow_no_shares_of_vector_units(known: Callable[[Device], None]) -> None:
    """AMD's products run on matrix units at their own peak; convolutions gain nothing from Winograd's algorithm there."""
    known(device("sister", [fitted_calibration(precision="fp32")]))
    vector = device("vector")
    matrix = device("matrix", fp32_matrix_flops_per_s=2 * vector.peak("fp32"))
    on_vector, on_matrix = (assumed_for(d, "fp32", **LIKE)[0] for d in (vector, matrix))
    assert on_matrix.peak_flops_per_s == 2 * on_vector.peak_flops_per_s
    assert on_matrix.vector_flops_per_s == on_vector.vector_flops_per_s
    name = "conv_3x3.forward"
    assert on_vector.classes[name].compute == pytest.approx(TAUGHT.compute, rel=0.05)
    assert on_matrix.classes[name].compute == from_datasheet(matrix, "fp16").classes[name].compute == 0.7


def test_class_learns_most_from_the_nearest_device(known: Callable[[Device], None]) -> None:
    known(device("near", [fitted_calibration(classes={"conv_3x3.forward": replace(TAUGHT, compute=0.2)})]))
    mine = device("mine")
    alone = assumed_for(mine, "fp16", **LIKE)[0]
    known(
        device("far", [fitted_calibration(classes={"conv_3x3.forward": replace(TAUGHT, compute=0.9)})], year=YEAR + 9)
    )
    both = assumed_for(mine, "fp16", **LIKE)[0]
    assert alone.classes["conv_3x3.forward"].compute < both.classes["conv_3x3.forward"].compute < math.sqrt(0.2 * 0.9)
    # A less certain relative does not reduce the spread.
    assert both.class_sigma["conv_3x3.forward"] == alone.class_sigma["conv_3x3.forward"]


def test_same_chip_teaches_nearly_everything(known: Callable[[Device], None]) -> None:
    """Convolutions come from it with any error of its fit. A card with halved tensor cores is another chip."""
    known(device("other", [fitted_calibration(sigma=0.1)], year=YEAR))
    mate = replace(fitted_calibration("b.csv", sigma=0.6), classes={"conv_3x3.forward": replace(TAUGHT, compute=0.4)})
    known(device("mate", [mate], year=YEAR + 3, chip="gx1"))
    asked = device("asked", speed=1.5, chip="gx1")
    found, _ = assumed_for(asked, "fp16", **LIKE)
    rate = found.classes["conv_3x3.forward"]
    assert rate.compute == pytest.approx(0.4, rel=0.02)
    # The other board's fit is off by 60 %, but at most a data sheet's error counts.
    assert found.class_sigma["conv_3x3.forward"] == DATASHEET_SIGMA
    halved = {**asked.peak_flops_per_s, "fp16": asked.peak("fp16") / 2}
    far, _ = assumed_for(asked.model_copy(update={"peak_flops_per_s": halved}), "fp16", **LIKE)
    assert far.classes["conv_3x3.forward"].compute < 0.2


def test_same_chip_does_not_outrank_a_better_relative(known: Callable[[Device], None]) -> None:
    """Products come from the better relative if the fit of the same chip is worse than a data sheet."""

    def of(sigma: float, compute: float) -> Calibration:
        seen = {"classes": {"gemm.forward": replace(TAUGHT, compute=compute)}}
        return fitted_calibration(sigma=sigma, provenance={"table": "a.csv", "classes_seen": ["gemm.forward"]}, **seen)

    known(device("sister", [of(0.1, 0.8)]))
    asked = device("asked", chip="gx1")
    shares = []
    for sigma in (0.2, 0.6):
        known(device("mate", [of(sigma, 0.4)], chip="gx1"))
        found, _ = assumed_for(asked, "fp16", **LIKE)
        shares.append(found.classes["gemm.forward"].compute)
        assert found.sigma < DATASHEET_SIGMA
    assert shares == pytest.approx([0.4, 0.8], rel=0.05)


@pytest.mark.parametrize(
    ("network", "precision"),
    [(n, p) for n in ("torchvision:resnet50", "torchvision:vgg16") for p in ("fp32", "bf16")]
    + [("gpt2-small", "bf16")],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_h100_is_not_faster_than_h200(network: str, mode: str, precision: str) -> None:
    """Both have the same chip; the H200 has more memory and bandwidth, and measured rows. Its fp32 products lend nothing."""
    shape = [1024] if network == "gpt2-small" else [3, 224, 224]
    data = {"name": "synthetic", "shape": shape, "classes": 50257 if network == "gpt2-small" else 1000}
    training = {"batch": 64, "precision": precision, "channels_last": False}
    job = from_dict({"network": {"name": network}, "data": data, "mode": mode, "training": training})
    trace = trace_job(job)
    of = {name: predict(trace, job, device=catalog.device(name)).value("step_time_s") for name in ("h100", "h200")}
    assert of["h100"] > 0.95 * of["h200"]


def test_streaming_work_transfers_across_precisions(known: Callable[[Device], None]) -> None:
    """Half precision predicts norms in single precision well, but products poorly."""
    classes = {"batch_norm.forward": TAUGHT, "conv_3x3.forward": TAUGHT}
    provenance = {"table": "a.csv", "classes_seen": sorted(classes)}
    mine = device("mine", [fitted_calibration(sigma=0.05, classes=classes, provenance=provenance)])
    found = assumed_for(mine, "fp32", **LIKE)[0].class_sigma
    assert found["batch_norm.forward"] == pytest.approx(math.hypot(0.05, 0.5 * 0.1))
    assert found["conv_3x3.forward"] == pytest.approx(math.hypot(0.05, 0.5 * 0.7))


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({}, 0.0),
        ({"precision": "bf16"}, 0.0),  # like fp16
        ({"channels_last": False}, 0.1),
        ({"mode": "training"}, 0.3),
        ({"is_compiled": True}, 0.5),
        ({"precision": "fp32"}, 0.7),
    ],
)
def test_own_other_setting_is_a_near_relative(
    known: Callable[[Device], None], changes: dict[str, Any], distance: float
) -> None:
    peaks = {**catalog.device("v100").peak_flops_per_s, "bf16": 1e14}
    mine = device("mine", [fitted_calibration(sigma=0.05)], peak_flops_per_s=peaks)
    known(mine)
    wanted = {"precision": "fp16", "mode": "inference", "channels_last": True, **changes}
    found, prior_sd = assumed_for(mine, **wanted)
    assert found.sigma == pytest.approx(math.hypot(0.05, 0.5 * distance))
    assert prior_sd == pytest.approx(0.3 + 0.3 * distance)
    assert (found.precision, found.mode, found.is_compiled) == (
        *(wanted["precision"], wanted["mode"], wanted.get("is_compiled", False)),
    )


def test_held_out_tables_are_not_used(known: Callable[[Device], None]) -> None:
    known(device("sister", [fitted_calibration("near.csv"), fitted_calibration("far.csv", channels_last=False)]))
    mine = device("mine")
    near, _ = assumed_for(mine, "fp16", **LIKE)
    far, _ = assumed_for(mine, "fp16", without_table="near.csv", **LIKE)
    assert near.sigma == pytest.approx(math.hypot(0.1, 0.5 * 0.2))
    assert far.sigma == pytest.approx(math.hypot(0.1, 0.5 * 0.3))
    none, prior_sd = assumed_for(mine, "fp16", without_table="near.csv", mode="training")
    assert none.sigma > far.sigma
    known(device("sister", [fitted_calibration("near.csv")]))
    none, prior_sd = assumed_for(mine, "fp16", without_table="near.csv", **LIKE)
    assert (none.origin, prior_sd) == ("datasheet", None)


def test_local_machine_does_not_affect_others(known: Callable[[Device], None]) -> None:
    """`local` is a different card on each machine, so predictions for other cards must not use it."""
    known(device("local", [fitted_calibration()]))
    found, prior_sd = assumed_for(device("mine"), "fp16", **LIKE)
    assert (found.origin, prior_sd) == ("datasheet", None)


def test_data_sheet_is_the_last_resort(known: Callable[[Device], None]) -> None:
    mine = device("mine", year=2090)
    found = calibration_for(mine, "fp32", mode="training", channels_last=True)
    assert found == replace(from_datasheet(mine, mode="training"), channels_last=True)
    with pytest.raises(InputError, match="no bf16 arithmetic"):
        calibration_for(mine, "bf16")


SHIPPED = sorted(path.stem for path in (Path(catalog.__file__).parent / "calibrations").glob("*.toml"))


@pytest.mark.parametrize(
    ("name", "host"),
    [("v100", "xeon-e5-2698-v4"), ("a100", "epyc-7742"), ("rtx4090", "desktop-2022"), ("b200", "xeon-8570")],
)
def test_usual_host_issues_the_operators(name: str, host: str) -> None:
    """The faster the processor and the newer its software, the shorter; gradients take longer to record."""
    usual = hosts.host(host)
    of_mode = {
        mode: calibration_for(catalog.device(name), "bf16" if name == "b200" else "fp16", mode=mode) for mode in MODES
    }
    if name != "v100":  # its own rows show another value
        assert {m: c.host_launch_s for m, c in of_mode.items()} == {m: usual.launch_s(m) for m in MODES}
    assert of_mode["inference"].host_launch_s <= of_mode["training"].host_launch_s
    assert of_mode["training"].host_sigma == usual.sigma_log
    assert usual.inference_us <= hosts.host("xeon-e5-2698-v4").inference_us


def test_timed_host_replaces_the_listed_one(known: Callable[[Device], None]) -> None:
    """The newest server up to the device's year counts if the device names no host."""
    h100, h200 = (calibration_for(catalog.device(n), "bf16", mode="inference").host_launch_s for n in ("h100", "h200"))
    assert h100 == pytest.approx(h200, rel=0.1)
    node = catalog.device("v100").node
    on = {host: node.model_copy(update={"host": host}) for host in ("grace", "epyc-9654", None)}
    known(device("sister", [fitted_calibration(host_launch_s=200e-6)], chip="gx1", node=on["grace"]))
    other, mate = (
        assumed_for(device("mine", chip="gx1", node=on[host]), "fp16", **LIKE)[0].host_launch_s
        for host in ("epyc-9654", "grace")
    )
    assert (other, mate) == (hosts.host("epyc-9654").launch_s("inference"), pytest.approx(200e-6))
    years = [
        assumed_for(device("mine", year=y, node=on[None]), "fp16", **LIKE)[0].host_launch_s
        for y in (1985, 2018, 2020, 2090)
    ]
    assert years == [hosts.host(n).launch_s("inference") for n in ("xeon-e5-2698-v4",) * 2 + ("epyc-7742", "xeon-8570")]


def test_hosts_follow_from_the_two_that_were_timed() -> None:
    """Time · score is constant in training, and falls evenly from 2018 to 2023 in inference."""
    old, new = hosts.host("xeon-e5-2698-v4"), hosts.host("xeon-8480c")
    for name in (
        "epyc-7742",
        "xeon-8275cl",
        "epyc-7r13",
        "desktop-2017",
        "desktop-2022",
        "desktop-2025",
        "xeon-e5-2686-v4",
    ):
        host = hosts.host(name)
        newer = min(max((host.year - old.year) / (new.year - old.year), 0), 1)
        for mode in MODES:
            before, after = (h.launch_s(mode) * h.score for h in (old, new))
            assert host.launch_s(mode) * host.score == pytest.approx(before ** (1 - newer) * after**newer, rel=0.05)


@pytest.mark.parametrize(("stated", "seconds"), [("desktop-2022", 15e-6), (80, 80e-6), (None, 36e-6)])
def test_host_of_the_job_is_stated_in_the_answer(stated: str | float | None, seconds: float) -> None:
    cluster = {"device": "a100", "host": stated}
    data = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000}
    job = from_dict(
        {"network": {"name": "torchvision:resnet50"}, "data": data, "mode": "inference", "cluster": cluster,
         "training": {"batch": 1, "precision": "fp16"}}
    )  # fmt: skip
    assert setting_of(job).calibration.host_launch_s == pytest.approx(seconds)
    notes = predict(trace_job(job), job).notes
    (note,) = (n for n in notes if "cluster.host" in n)
    assert f"{seconds * 1e6:.0f} µs ({'as stated' if stated else 'assumed: AMD EPYC 7742'}" in note
    large = changed(job, ["training.batch=256"])
    assert not any("cluster.host" in n for n in predict(trace_job(large), large).notes)


def test_unknown_host_names_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"did you mean .*epyc-7742"):
        hosts.host("epyc-7743")


@pytest.mark.parametrize("name", SHIPPED)
def test_packaged_calibration_states_its_error(name: str) -> None:
    """Each has its table, its error on left-out networks, and achievable shares."""
    device = catalog.device(name)
    found = calibrations(device)
    assert found
    for c in found:
        assert c.origin == "fitted"
        assert str(c.provenance["table"]).endswith((".csv", ".json"))
        error = c.provenance.get("error_of_whole_networks", c.provenance["error_left_out"])
        assert 0.03 <= c.sigma == pytest.approx(max(error, 0.03), rel=1e-3)
        # A few steps of two or three networks reveal more error than a data sheet states.
        assert c.sigma < DATASHEET_SIGMA or c.provenance["samples"] <= 10
        assert c.provenance["samples"] >= MIN_SAMPLES
        assert set() < c.classes_seen <= set(CLASSES)
        assert c.peak_flops_per_s == pytest.approx(device.peak(c.precision), rel=1e-3)  # type: ignore[arg-type]
        for seen in c.classes_seen:
            rate = c.classes[seen]
            assert min(rate.compute, rate.bandwidth, rate.weights) > 0, seen
            assert min(rate.depth, rate.width, rate.rows, rate.relayout, rate.launch_s) >= 0, seen
    settings = [(c.precision, c.mode, c.channels_last, c.is_compiled, c.provenance.get("torch")) for c in found]
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_precision_and_compiler_preserve_measured_parts(mode: str) -> None:
    """A CPU was calibrated in eager mode. Compiled, its input and optimizer keep their time, and a pass starts later."""
    cpu = catalog.device("cpu")
    sheet = from_datasheet(cpu)
    update = replace(sheet.classes["update.backward"], bandwidth=0.123)
    measured = replace(
        sheet,
        origin="measured",
        mode=mode,
        update_launch_s=2e-5,
        input_launch_s=3e-4,
        pass_s=4e-4,
        threads=2,
        processes=1,
        classes={"update.backward": update, "gemm.forward": TAUGHT},
        provenance={"classes_seen": ["gemm.forward"]},
    )
    of_two = replace(measured, update_launch_s=9e-5, threads=1, processes=2)
    own = cpu.model_copy(
        update={"name": "mine", "calibration": {"settings": [c.to_table() for c in (measured, of_two)]}}
    )
    for processes, kept in ((1, measured), (2, of_two)):
        compiled = calibration_for(own, mode=mode, processes=processes, is_compiled=True)
        assert compiled.is_compiled
        assert (compiled.update_launch_s, compiled.input_launch_s) == (kept.update_launch_s, 3e-4)
        assert (compiled.threads, compiled.processes) == (kept.threads, processes)
        assert compiled.classes["update.backward"] == update
        added_s = COMPILED_TRAINING_ISSUES * kept.update_launch_s if mode == "training" else 0.0
        assert compiled.pass_s == pytest.approx(4e-4 + added_s)
    older = replace(measured, pass_s=0.0)  # saved before the pass overhead was a separate value
    own = own.model_copy(update={"calibration": {"settings": [older.to_table()]}})
    assert calibration_for(own, mode=mode).pass_s == 0.0
    assert calibration_for(own, mode=mode, is_compiled=True).pass_s >= sheet.pass_s
    # A GPU's queue hides it, so nothing is added.
    assert calibration_for(catalog.device("v100"), mode=mode, is_compiled=True).pass_s == 0.0


def test_compiled_cpu_code_uses_channels_last_calibration() -> None:
    """CPU compilers use channels last for convolutions regardless of the job, and launch operators sooner."""
    cpu = catalog.device("cpu")
    first = replace(
        from_datasheet(cpu),
        origin="measured",
        mode="inference",
        channels_last=False,
        classes={"conv_3x3.forward": TAUGHT},
    )
    last = replace(first, channels_last=True, classes={"conv_3x3.forward": replace(TAUGHT, compute=0.9, launch_s=4e-5)})
    of_both = cpu.model_copy(
        update={"name": "mine", "calibration": {"settings": [c.to_table() for c in (first, last)]}}
    )
    eager, compiled = (
        calibration_for(of_both, mode="inference", is_compiled=is_compiled) for is_compiled in (False, True)
    )
    assert (eager.classes["conv_3x3.forward"], eager.is_compiled) == (TAUGHT, False)
    assert (compiled.classes["conv_3x3.forward"].compute, compiled.is_compiled) == (0.9, True)
    assert 0 < compiled.classes["conv_3x3.forward"].launch_s < 4e-5
    assert compiled.sigma > last.sigma
    told = [
        note
        for settings in ((first,), (first, last))
        for note in _predicted_compiled(
            cpu.model_copy(update={"name": "local", "calibration": {"settings": [c.to_table() for c in settings]}})
        )
        if "compiled code" in note
    ]
    (note,) = told  # the first has no such calibration
    assert "--layout nhwc" in note
    # In another precision, or on a GPU, it is only a relative.
    on_gpu = catalog.device("v100").model_copy(update={"calibration": of_both.calibration})
    for device, precision in ((of_both, "bf16"), (on_gpu, "fp32")):
        if precision in device.peak_flops_per_s:
            assert calibration_for(device, precision, mode="inference", is_compiled=True).origin != "measured"


def _predicted_compiled(device: Device) -> list[str]:
    """Return the notes of a small compiled network's inference."""
    job = from_dict(
        {
            "mode": "inference",
            "network": {"name": "lenet5"},
            "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 4},
            "training": {"batch": 2, "compile": True},
        }
    )
    return predict(trace_job(job), job, device=device).notes
