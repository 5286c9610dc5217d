"""Tables of throughputs: what is inferred, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.errors import FileFormatError
from chronograd.fit.tables import Table, read_table, shuffled


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_timm_names_and_columns_are_read(tmp_path: Path) -> None:
    name = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"
    text = (
        "model,infer_img_size,infer_samples_per_sec,infer_batch_size,param_count\na,224,1000,256.0,5.5\nb,160,,256,1\n"
    )
    table = read_table(write(tmp_path / name, text))
    assert (table.phase, table.precision, table.layout, table.device) == ("inference", "fp16", "nhwc", "rtx3090")
    assert (len(table.rows), table.skipped, table.is_compiled) == (1, 1, False)
    row = table.rows[0]
    assert (row.model, row.image_size, row.batch, row.seconds, row.params_m) == ("a", 224, 256, 0.256, 5.5)
    assert table.stated(precision="fp32", layout=None).precision == "fp32"


def test_a_compiled_training_table(tmp_path: Path) -> None:
    name = "benchmark-train-fp32-nchw-pt291-cpu-i7_12700h-dynamo.csv"
    table = read_table(write(tmp_path / name, "model,train_samples_per_sec,train_batch_size\na,10,5\n"))
    assert (table.phase, table.device, table.is_compiled) == ("training", "i7_12700h", True)


@pytest.mark.parametrize(
    ("words", "precision", "device", "is_compiled"),
    [
        ("amp-nchw-pt291-cu130-5090", "fp16", "5090", False),
        ("amp_bf16-nchw-pt291-cu130-pro6000maxq-dynamo", "bf16", "pro6000maxq", True),
        ("bf16-nchw-pt291-cu130-pro6000maxq-dynamo", "bf16", "pro6000maxq", True),
        ("fp32-nchw-pt221-cpu-i9_10940x-dynamo", "fp32", "i9_10940x", True),
    ],
)
def test_every_form_of_timm_s_names(tmp_path: Path, words: str, precision: str, device: str, is_compiled: bool) -> None:
    path = write(tmp_path / f"benchmark-infer-{words}.csv", "model,infer_samples_per_sec\na,10\n")
    table = read_table(path)
    assert (table.precision, table.device, table.is_compiled) == (precision, device, is_compiled)
    assert (table.phase, table.layout) == ("inference", "nchw")


def test_any_table_with_a_step_time(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "mine.csv", "network,batch,step_time_ms\nresnet20,64,12.5\n"))
    assert table.rows[0].seconds == pytest.approx(0.0125)
    assert table.phase is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("net,batch\na,1\n", "no column for the model"),
        ("model,batch\na,1\n", "no throughput or step time"),
        ("model,throughput\na,fast\n", "line 2: throughput is 'fast'"),
        ("model,throughput\na,-3\n", "line 2: throughput is '-3'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_table(write(tmp_path / "t.csv", text))


def test_rows_are_chosen_by_the_seed_alone(tmp_path: Path) -> None:
    lines = "".join(f"m{i},{i + 1}\n" for i in range(50))
    rows = read_table(write(tmp_path / "t.csv", "model,throughput\n" + lines)).rows
    first = shuffled(rows, 3)
    assert first == shuffled(rows, 3)
    assert first != shuffled(rows, 4)
    assert sorted(r.model for r in first) == sorted(r.model for r in rows)
    # What is shuffled does not matter, so that the same rows are chosen whatever they were joined with.
    assert [rows.index(row) for row in first] == shuffled(range(50), 3)


@pytest.mark.parametrize(
    ("digits", "torch", "has_fused_attention"),
    [("112", "1.12", False), ("113", "1.13", False), ("210", "2.1.0", True), ("240", "2.4.0", True)],
)
def test_torch_and_what_follows_from_it(tmp_path: Path, digits: str, torch: str, has_fused_attention: bool) -> None:
    """`scaled_dot_product_attention` came with PyTorch 2.0."""
    name = f"benchmark-infer-amp-nchw-pt{digits}-cu113-rtx3090.csv"
    table = read_table(write(tmp_path / name, "model,infer_samples_per_sec\na,10\n"))
    assert (table.torch, table.has_fused_attention) == (torch, has_fused_attention)
    assert (table.device, table.mode, table.channels_last, table.name) == ("rtx3090", "inference", False, name)


def test_what_is_stated_wins_and_what_nobody_says_is_assumed() -> None:
    table = Table("somewhere/t.csv", ())
    assert (table.mode, table.channels_last, table.is_compiled, table.has_fused_attention, table.torch) == (
        *("inference", False, False, True, None),
    )
    stated = table.stated(phase="training", layout="nhwc", torch="1.13.1", device=None)
    assert (stated.mode, stated.channels_last, stated.has_fused_attention, stated.device) == (
        *("training", True, False, None),
    )
