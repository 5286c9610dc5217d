"""The device catalogue: published figures, its own rules, and invalid files."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.hardware import catalog, instances
from chronograd.hardware.catalog import device, devices, link, links, prices
from chronograd.hardware.market import price_of

# Names of the packaged files only: `devices()` would add the user's own.
NAMES = sorted(path.stem for path in (Path(catalog.__file__).parent / "devices").glob("*.toml"))

COLUMNS = "vendor,instance,device,count,price_usd_per_hour,kind,includes_host,date,tag,source"
USERS_DEVICE = """
name = "mine"
title = "A machine of mine"
kind = "gpu"
memory_bytes = 8_000_000_000
bandwidth_bytes_per_s = 2e11
l2_bytes = 4_000_000
num_units = 20
[peak_flops_per_s]
fp32 = 5e12
[node]
devices_per_node = 1
intra_link = "pcie3"
inter_link = "ethernet-1g"
"""


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty data folder without user devices."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


class TestPublishedFigures:
    @pytest.mark.parametrize(
        ("name", "balance"),
        [("k80", 18.2), ("p100", 14.5), ("v100", 17.4), ("t4", 25.3), ("a100-40", 12.5), ("h100", 20.0)],
    )
    def test_fp32_machine_balance(self, name: str, balance: float) -> None:
        # Peak over bandwidth of the datasheets, such as 8.73e12 / 480e9 for the K80 board.
        assert device(name).machine_balance() == pytest.approx(balance, abs=0.05)

    @pytest.mark.parametrize(("name", "balance"), [("v100", 139), ("a100-40", 201), ("h100", 295), ("h200", 206)])
    def test_tensor_machine_balance(self, name: str, balance: float) -> None:
        assert device(name).machine_balance("fp16") == pytest.approx(balance, abs=0.5)

    def test_paleo_platforms(self) -> None:
        # Qi et al., PALEO, ICLR 2017, device files: Titan X 6144 GFLOPS, 336.5 GB/s; K80 5600 GFLOPS, 480 GB/s.
        assert device("titan-x").peak() == 6144e9
        assert device("titan-x").bandwidth_bytes_per_s == 336.5e9
        assert device("k80").base_peak_flops_per_s["fp32"] == 5600e9
        assert device("k80").bandwidth_bytes_per_s == 480e9

    def test_speedup_limits_over_k80_at_base_clock(self) -> None:
        base = device("k80").base_peak_flops_per_s["fp32"]
        assert [round(device(n).peak() / base, 1) for n in ("p100", "v100", "a100")] == [1.9, 2.8, 3.5]
        assert round(device("a100").peak("tf32") / base, 1) == 27.9

    def test_board_is_two_gpus(self) -> None:
        board, half = device("k80"), device("k80-gk210")
        for precision, peak in board.peak_flops_per_s.items():
            assert half.peak(precision) == pytest.approx(peak / 2)
        assert board.memory_bytes == 2 * half.memory_bytes
        assert board.bandwidth_bytes_per_s == 2 * half.bandwidth_bytes_per_s
        assert board.num_units == 2 * half.num_units

    @pytest.mark.parametrize(
        ("name", "both_directions_gb_per_s"), [("nvlink1", 160), ("nvlink2", 300), ("nvlink3", 600), ("nvlink4", 900)]
    )
    def test_links_are_per_direction(self, name: str, both_directions_gb_per_s: float) -> None:
        assert 2 * link(name).bandwidth_bytes_per_s == both_directions_gb_per_s * 1e9

    def test_loopback_matches_measured_all_reduce(self) -> None:
        # Gloo, 2 processes: 25 MB in 25 ms, 100 MB in 99 ms; a ring of two is 2 * latency + bytes / bandwidth.
        loopback = link("loopback")
        for size, time_s in ((25e6, 25e-3), (100e6, 99e-3)):
            ring_s = 2 * loopback.latency_s + size / loopback.bandwidth_bytes_per_s
            assert ring_s == pytest.approx(time_s, rel=1e-3)


# Device and the one before it in the same form, as people replace one by the other.
SUCCESSORS = [
    ("a100-40", "v100-32"), ("a100-80", "a100-40"), ("h100", "a100-80"), ("h200", "h100"), ("h20", "h100"), ("gh200", "h100"),
    ("b200", "h200"), ("b300", "b200"), ("gb200", "h200"), ("gb300", "gb200"),
    ("mi300x", "mi250"), ("mi325x", "mi300x"), ("mi355x", "mi325x"), ("mi210", "mi100"),
    ("v100", "p100"), ("v100-pcie", "p100-pcie"), ("a100-pcie", "v100-pcie"), ("a100-80-pcie", "a100-pcie"), ("h100-pcie", "a100-80-pcie"),
    ("h100-nvl", "h100-pcie"), ("l4", "t4"), ("a10", "t4"), ("l40s", "a40"),
]  # fmt: skip


class TestMemory:
    @pytest.mark.parametrize(
        ("name", "mib"),
        [
            # nvidia-smi, in modal-labs/modal-client, pull request 2797
            ("h100", 81559), ("a100-80", 81920), ("a100-40", 40960), ("a10", 23028), ("l40s", 46068), ("l4", 23034), ("t4", 15360),
            # the same and rocm-smi, in other listings
            ("a40", 46068), ("h200", 143771), ("b200", 183359), ("mi300x", 196592), ("k80-gk210", 11441),
        ],
    )  # fmt: skip
    def test_usable_memory_is_that_of_the_driver(self, name: str, mib: int) -> None:
        assert device(name).usable_bytes == mib * 2**20

    @pytest.mark.parametrize("name", NAMES)
    def test_error_correction_takes_at_most_a_sixteenth(self, name: str) -> None:
        # ECC of GDDR takes 1/16; an A10 has 23,028 of 24,576 MiB, and firmware takes up to 0.5 % of the others.
        d = device(name)
        assert 0.92 < d.usable_bytes / d.memory_bytes <= 1

    def test_without_a_report_the_capacity_as_sold_counts(self) -> None:
        d = device("titan-v")
        assert d.reported_bytes is None
        assert d.usable_bytes == d.memory_bytes == 12 * 2**30

    def test_board_has_twice_the_usable_memory_of_its_gpu(self) -> None:
        assert device("k80").usable_bytes == 2 * device("k80-gk210").usable_bytes
        assert device("mi250").usable_bytes == 2 * device("mi210").usable_bytes


class TestNetwork:
    @staticmethod
    def of_a_gpu(name: str) -> float:
        node = device(name).node
        network = link(node.inter_link)
        return network.bandwidth_bytes_per_s / (node.devices_per_node if network.per == "node" else 1)

    @pytest.mark.parametrize(("newer", "older"), SUCCESSORS)
    def test_network_of_a_gpu_is_near_that_of_its_predecessor(self, newer: str, older: str) -> None:
        """A node of eight B200 once had one network card, an eighth of an H100's network."""
        assert 1 / 4 <= self.of_a_gpu(newer) / self.of_a_gpu(older) <= 4

    def test_data_centre_gpus_have_a_predecessor(self) -> None:
        firsts = {"k80", "k80-gk210", "m40", "p4", "t4", "p100", "p100-pcie", "v100-32"}
        firsts |= {"mi25", "mi100", "mi250", "a30", "a40", "a6000"}
        desktop = {d.name for d in devices() if d.kind == "gpu" and (d.is_desktop or d.name.startswith("rtx"))}
        gpus = {d.name for d in devices() if d.kind == "gpu"} - desktop
        assert gpus == (firsts | {newer for newer, _ in SUCCESSORS}) - desktop

    @pytest.mark.parametrize("name", ["b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x", "a100-80"])
    def test_modules_have_a_network_card_each(self, name: str) -> None:
        assert link(device(name).node.inter_link).per == "device"


class TestNames:
    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ("V100", "v100"),
            ("a100", "a100-40"),
            ("Tesla K80", "k80-gk210"),  # CUDA's name for one GPU of the board
            ("NVIDIA GeForce RTX 3090", "rtx3090"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("titan_x", "titan-x"),
        ],
    )
    def test_upper_case_and_aliases(self, asked: str, found: str) -> None:
        assert device(asked).name == found

    def test_near_names(self) -> None:
        with pytest.raises(NotFoundError, match=r"did you mean .*h100.*chronograd devices"):
            device("h10")

    def test_unknown_link(self) -> None:
        with pytest.raises(NotFoundError, match="nvlink"):
            link("nvlink9")

    def test_missing_precision_lists_available_ones(self) -> None:
        with pytest.raises(InputError, match=r"k80 has no fp16(.|\n)*fp64, fp32"):
            device("k80").peak("fp16")


class TestCatalogueFiles:
    @pytest.mark.parametrize("name", NAMES)
    def test_every_figure_has_a_source(self, name: str) -> None:
        d = device(name)
        tables = ("peak_flops_per_s", "base_peak_flops_per_s", "peak_8bit_ops_per_s", "node")
        figures = {"memory_bytes", "bandwidth_bytes_per_s", "l2_bytes", "num_units", "year"}
        figures |= {"tdp_w"} if d.tdp_w else set()
        figures |= {"reported_bytes"} if d.reported_bytes else set()
        figures |= {"issued_share"} if d.issued_share != 1 else set()
        figures |= {name for name in ("chip", "fp32_matrix_flops_per_s") if getattr(d, name)}
        figures |= {f"{table}.{key}" for table in tables for key, value in dict(getattr(d, table)).items() if value}
        named = [name for source in d.source for name in source.of]
        covered = {f for f in figures if f in named or f.partition(".")[0] in named}
        assert figures == covered
        assert not [n for n in named if n not in figures and n not in tables], "a source for a figure that is not there"
        assert all(source.source and source.date for source in d.source)

    @pytest.mark.parametrize("name", [k.name for k in links()])
    def test_every_link_has_sources(self, name: str) -> None:
        assert {of for source in link(name).source for of in source.of} == {"latency_s", "bandwidth_bytes_per_s"}

    @pytest.mark.parametrize("folder", ["devices", "links"])
    def test_file_names_match_contents(self, folder: str) -> None:
        found = sorted(p.stem for p in (Path(catalog.__file__).parent / folder).glob("*.toml"))
        assert found == sorted(entry.name for entry in (devices() if folder == "devices" else links()))

    def test_peaks_rise_as_precision_falls(self) -> None:
        for d in devices():
            peaks = [d.peak_flops_per_s[p] for p in ("fp64", "fp32", "tf32", "fp16") if p in d.peak_flops_per_s]
            assert peaks == sorted(peaks), d.name

    def test_8_bit_peaks_are_dense_and_no_precision_of_a_job(self) -> None:
        # NVIDIA H100 datasheet: 3,958 TOPS with 2:4 sparsity. Blackwell Ultra has next to no int8.
        assert device("h100").peak_8bit_ops_per_s == {"fp8": 3958e12 / 2, "int8": 3958e12 / 2}
        assert device("b300").peak_8bit_ops_per_s["int8"] < device("b300").peak("fp16")
        for d in devices():
            if "fp8" in d.peak_8bit_ops_per_s and d.name != "trainium2":  # 1,299 and 667
                assert d.peak_8bit_ops_per_s["fp8"] == pytest.approx(2 * d.peak("fp16"), rel=0.015), d.name
        with pytest.raises(InputError, match="h100 has no fp8 arithmetic"):
            device("h100").peak("fp8")  # type: ignore[arg-type]

    def test_every_device_has_a_note(self) -> None:
        assert all(d.note for d in devices())


class TestUserDevices:
    def test_save_and_read_back(self, tmp_path: Path) -> None:
        fitted = {"utilisation": {"conv_3x3": 0.8, "gemm": [0.7, 0.9]}, "launch_s": 5e-6, "notes": {"a": {"b": 1}}}
        d = device("v100").model_copy(update={"calibration": fitted, "provenance": {"date": "2026-11-21", "n": 25}})
        d.save(tmp_path / "new" / "v100.toml")
        assert device(tmp_path / "new" / "v100.toml") == d

    @pytest.mark.parametrize("name", NAMES)
    def test_every_device_round_trip(self, name: str, tmp_path: Path) -> None:
        device(name).save(tmp_path / "d.toml")
        assert device(tmp_path / "d.toml") == device(name)

    def test_local_before_and_after_calibration(self, data_home: Path) -> None:
        with pytest.raises(InputError, match="chronograd calibrate"):
            device("local")
        path = catalog.user_device_path("local")
        assert path == data_home / "chronograd" / "devices" / "local.toml"
        device("cpu").model_copy(update={"name": "local", "title": "this machine", "aliases": ()}).save(path)
        assert device("Local").title == "this machine"
        assert devices()[-1].name == "local"
        assert price_of("local") is None

    def test_user_file_cannot_replace_a_catalogue_device(self) -> None:
        device("cpu").save(catalog.user_device_path("h100"))
        assert device("h100").kind == "gpu"
        assert [d.name for d in devices()].count("cpu") == 1

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("memory_bytes = 8_000_000_000", "memory_bytes = -3", r"memory_bytes: .*greater than 0, got -3"),
            ("num_units = 20", 'num_units = "20"', r"num_units: .*integer, got '20'"),
            ("bandwidth_bytes_per_s = 2e11", "bandwidth_bytes_per_s = nan", r"bandwidth_bytes_per_s: .*got nan"),
            ("bandwidth_bytes_per_s = 2e11", "bandwidth_bytes_per_s = true", r"bandwidth_bytes_per_s: .*got True"),
            ("l2_bytes = 4_000_000", "", r"l2_bytes: is required"),
            ("l2_bytes = 4_000_000", "l2_byte = 4_000_000", r"l2_byte: there is no such field; did you mean l2_bytes"),
            ("fp32 = 5e12", "fp32 = 0", r"peak_flops_per_s\.fp32: .*got 0"),
            ("fp32 = 5e12", "fp31 = 5e12", r"peak_flops_per_s\.fp31: "),
            ('kind = "gpu"', 'kind = "abacus"', r"kind: .*'abacus'"),
            ('"pcie3"', '"pcie33"', r"node\.intra_link is 'pcie33'(.|\n)*pcie3"),
            ("[node]", "[node", "not valid TOML"),
        ],
    )
    def test_invalid_file_names_field_and_value(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        path = tmp_path / "bad.toml"
        assert old in USERS_DEVICE
        path.write_text(USERS_DEVICE.replace(old, new))
        with pytest.raises(FileFormatError, match=message) as caught:
            device(path)
        assert str(path) in caught.value.message

    def test_valid_missing_and_binary_files(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(USERS_DEVICE)
        assert device(str(path)).machine_balance() == 25
        with pytest.raises(FileFormatError, match=r"no device file at .*gone\.toml"):
            device(tmp_path / "gone.toml")
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(FileFormatError, match="cannot read"):
            device(path)


class TestPrices:
    def test_boards_in_an_instance(self) -> None:
        assert {p.instance: p.count for p in prices("k80") if p.vendor == "AWS"} == {
            "p2.xlarge": 0.5,
            "p2.8xlarge": 4,
            "p2.16xlarge": 8,
        }

    def test_instance_details_have_one_source(self) -> None:
        """Instance files define device and count. Prices of known instances omit them; other prices state them."""
        for path in (catalog.resources.files("chronograd.hardware") / "prices").iterdir():
            for line in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
                is_known = instances.priced(line["vendor"], line["instance"]) is not None
                stated = [line["device"], line["count"], *([line["vcpus"]] if is_known else [])]
                assert any(stated) != is_known, (path.name, line)

    def test_price_of_known_instance_may_omit_details(self, tmp_path: Path) -> None:
        path = tmp_path / "p.csv"
        path.write_text(f"{COLUMNS},region\nAWS,p5.48xlarge,,,50,spot,true,2026-11,assumed,me,us-west-2\n")
        (row,) = catalog.read_prices(path)
        assert (row.device, row.count, row.vcpus, row.region) == ("h100", 8, 192, "us-west-2")
        path.write_text(f"{COLUMNS}\nAWS,p99.48xlarge,,,50,spot,true,2026-11,assumed,me\n")
        with pytest.raises(FileFormatError, match=r"p\.csv, line 2(.|\n)*device"):
            catalog.read_prices(path)

    def test_latest_first_and_undated_last(self, data_home: Path) -> None:
        path = catalog.user_prices_path()
        path.parent.mkdir(parents=True)
        path.write_text(f"{COLUMNS}\nMine,x,v100,1,1,on-demand,true,,assumed,me\n")
        dates = [p.date for p in prices("v100")]
        assert dates == sorted(dates, reverse=True)
        assert dates[-1] == ""

    def test_every_price_belongs_to_a_catalogue_device(self) -> None:
        """Guards against h100-nvl, which was only in the price table."""
        assert {p.device for p in prices()} <= set(NAMES)
        assert [p.instance for p in prices("H100 NVL") if p.vendor == "Azure"] == [
            "NC40ads H100 v5",
            "NC80adis H100 v5",
        ]
        with pytest.raises(NotFoundError):
            prices("h1000000")

    def test_prices_are_finite_dated_and_have_a_source(self) -> None:
        for p in prices():
            assert math.isfinite(p.usd_per_device_hour)
            assert p.source
            assert p.date
            assert p.most_devices >= p.count

    def test_invalid_calendar_date(self, tmp_path: Path) -> None:
        path = tmp_path / "p.csv"
        path.write_text(f"{COLUMNS}\nMine,x,v100,1,1,on-demand,true,2026-13,assumed,me\n")
        with pytest.raises(FileFormatError, match=r"p\.csv, line 2(.|\n)*date"):
            catalog.read_prices(path)


@pytest.mark.parametrize(
    ("driver_name", "name"),
    {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA H100 NVL": "h100-nvl",
        "Tesla V100-SXM2-32GB": "v100-32",
        "NVIDIA B200": "b200",
        "NVIDIA GH200 480GB": "gh200",
        "NVIDIA A10": "a10",
        "NVIDIA A10G": None,
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-80GB": "a100-80",
        "NVIDIA A100-SXM4-40GB": "a100-40",
        "NVIDIA A100 80GB PCIe": "a100-80-pcie",
        "NVIDIA A100-PCIE-40GB": "a100-pcie",
        "Tesla V100-SXM2-16GB": "v100",
        "Tesla V100-PCIE-32GB": "v100-pcie",
        "Tesla P100-PCIE-16GB": "p100-pcie",
        "Tesla P100-SXM2-16GB": "p100",
        "Tesla T4": "t4",
        "NVIDIA L4": "l4",
        "NVIDIA L40S": "l40s",
        "Quadro RTX 8000": "rtx8000",
        "Quadro RTX 6000": None,
        "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti",
        "NVIDIA TITAN V": "titan-v",
        "AMD Instinct MI300X": "mi300x",
        "NVIDIA GeForce RTX 3090": "rtx3090",
        "NVIDIA GeForce RTX 3090 Ti": None,
        "NVIDIA GeForce GTX 1080 Ti": "gtx1080ti",
        "NVIDIA TITAN X (Pascal)": "titan-x-pascal",
        "NVIDIA TITAN Xp": "titan-xp",
        "NVIDIA RTX 6000 Ada Generation": "rtx6000-ada",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000-max-q",
        "AMD Instinct MI210": "mi210",
    }.items(),
)
def test_catalogue_name_of_driver_name(driver_name: str, name: str | None) -> None:
    found = catalog.of_driver_name(driver_name)
    assert (found.name if found else None) == name
