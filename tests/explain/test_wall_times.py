"""Wall times without traces: published times of a report, and possible patterns of times."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.errors import FileFormatError
from chronograd.explain.wall_times import explain, read

DOCS = Path(__file__).parent.parent.parent / "docs"
# The report's minutes and seconds on 1, 2 and 3 nodes.
PUBLISHED = {
    "small CNN": (451.5, 754.0, 462.1),
    "EfficientNet-B0": (474.1, 472.0, 473.4),
    "ResNet-50": (1015.1, 1009.6, 503.1),
}


def test_report_times_are_explained_as_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    table = DOCS / "hpc-report.csv"
    times = {network: tuple(run.wall_s for run in runs) for network, runs in read(table).items()}
    assert times == {name: pytest.approx(walls) for name, walls in PUBLISHED.items()}
    assert main(["explain", str(table)]) == 0
    assert capsys.readouterr().out.rstrip() in (DOCS / "explaining.md").read_text()
    small, efficient, resnet = explain(table)
    assert efficient.causes[:2] == ("no_sharding", "work_scaled")
    assert "0.4 %" in efficient.fits[0]
    assert "slow_worker" in small.causes
    assert "slow_link" not in small.causes
    # With a shared part p and a fixed part s, s + p = 1015.1 and s + p/3 = 503.1: p = 768, s = 247.1, and 631.1 on two.
    assert "10 min 31 s" in resnet.does_not_fit[0]
    for account in (small, efficient, resnet):
        assert "no_accelerator" in account.causes
        assert any("repeat" in text for text in account.never_measured)


def written(folder: Path, *rows: str) -> Path:
    path = folder / "times.csv"
    path.write_text("\n".join(("network,nodes,wall", *rows)))
    return path


def test_ideal_scaling_has_no_cause(tmp_path: Path) -> None:
    (account,) = explain(written(tmp_path, "a,1,100", "a,2,52", "a,4,26"))
    assert account.causes == ()
    assert "shared" in account.fits[0]


def test_times_rising_with_nodes_are_communication(tmp_path: Path) -> None:
    (account,) = explain(written(tmp_path, "a,1,100", "a,2,130", "a,4,170"))
    assert account.causes == ("slow_link", "small_batch")


@pytest.mark.parametrize(
    ("row", "said"),
    [("a,x,1", "nodes is 'x'"), ("a,1,soon", "wall is 'soon'"), ("a,1,0", "wall is '0'"), ("a,1", "wall is ''")],
)
def test_bad_row_is_reported(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(FileFormatError, match=said):
        explain(written(tmp_path, "a,1,2", row))


def test_file_without_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text in ("", "a,b\n1,2\n", "\0"):
        path.write_text(text)
        with pytest.raises(FileFormatError):
            explain(path)
    with pytest.raises(FileFormatError, match="there is no file"):
        explain(tmp_path / "none.csv")


def test_repeated_rows_use_the_median(tmp_path: Path) -> None:
    (account,) = explain(written(tmp_path, "cnn,1,100", "cnn,1,110", "cnn,1,90", "cnn,2,50"))
    assert "3 runs on 1 node differ by 20.0 %; their median is used" in account.seen
    assert account.causes == ()
    assert "the work is shared" in account.fits[0]
    assert not any("repeat" in text for text in account.never_measured)


@pytest.mark.parametrize(
    ("head", "writer"),
    [
        ("==2047== NVPROF is profiling process 2047, command: python main.py\n==2047== Profiling result:\n", "nvprof"),
        ("Time (%),Total Time (ns),Instances,Avg (ns),Name\n", "Nsight Systems"),
        ('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n', "rocprof"),
    ],
)
def test_totals_of_a_profiler_are_refused_with_its_name(head: str, writer: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(f'{head}"GPU activities",31.42,4.182311,93120\n')
    with pytest.raises(FileFormatError, match=rf"totals of kernels over a whole run \({writer}\)") as refusal:
        read(path)
    assert "torch.profiler" in str(refusal.value.hint)
