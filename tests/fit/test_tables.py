"""Throughput tables: inferred values and errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError, InputError
from chronograd.fit.tables import ThroughputTable, read_table, shuffled


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


def test_compiled_training_table(tmp_path: Path) -> None:
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
def test_all_forms_of_timm_file_names(
    tmp_path: Path, words: str, precision: str, device: str, is_compiled: bool
) -> None:
    path = write(tmp_path / f"benchmark-infer-{words}.csv", "model,infer_samples_per_sec,infer_batch_size\na,10,5\n")
    table = read_table(path)
    assert (table.precision, table.device, table.is_compiled) == (precision, device, is_compiled)
    assert (table.phase, table.layout) == ("inference", "nchw")


def test_names_of_a_spreadsheet(tmp_path: Path) -> None:
    """Names in capitals with blanks and strokes, and thousands with commas."""
    text = 'Model,Batch Size,Images/sec\nvgg16,64,"1,312.4"\nresnet50,"1,024",845\n'
    first, second = read_table(write(tmp_path / "mine.csv", text)).rows
    assert (first.model, first.batch, first.seconds) == ("vgg16", 64, pytest.approx(64 / 1312.4))
    assert (second.batch, second.seconds) == (1024, pytest.approx(1024 / 845))
    with pytest.raises(FileFormatError, match="1,31"):
        read_table(write(tmp_path / "mine.csv", text.replace("1,312.4", "1,31")))


def test_any_table_with_a_step_time(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "mine.csv", "network,batch,step_time_ms\nresnet20,64,12.5\n"))
    assert table.rows[0].seconds == pytest.approx(0.0125)
    assert table.phase is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("net,batch\na,1\n", "no column for the model"),
        ("model,batch\na,1\n", "no throughput or step time"),
        ("model,batch,throughput\na,1,fast\n", "line 2: throughput is 'fast'"),
        ("model,batch,throughput\na,1,-3\n", "line 2: throughput is '-3'"),
        ("model,samples_per_sec\na,9\n", "no column for the batch"),
        ("model,latency_ms\na,9\n", "no column for the batch"),
        ("model,batch,samples_per_sec\na,,9\n", "line 2: batch is ''"),
        ("model,batch,samples_per_sec,phase\na,1,9,later\n", "line 2: phase is 'later'"),
        ("model,infer_samples_per_sec,train_samples_per_sec,batch\na,9,3,1\n", "for inference and training"),
    ],
)
def test_unreadable_tables_are_reported(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_table(write(tmp_path / "t.csv", text))


def test_row_choice_depends_on_the_seed_only(tmp_path: Path) -> None:
    lines = "".join(f"m{i},1,{i + 1}\n" for i in range(50))
    rows = read_table(write(tmp_path / "t.csv", "model,batch,throughput\n" + lines)).rows
    first = shuffled(rows, 3)
    assert first == shuffled(rows, 3)
    assert first != shuffled(rows, 4)
    assert sorted(r.model for r in first) == sorted(r.model for r in rows)
    # The choice depends on positions only, so it is equal for any joined data.
    assert [rows.index(row) for row in first] == shuffled(range(50), 3)


@pytest.mark.parametrize(
    ("digits", "torch", "has_fused_attention"),
    [("112", "1.12", False), ("113", "1.13", False), ("210", "2.1.0", True), ("240", "2.4.0", True)],
)
def test_torch_version_implies_fused_attention(
    tmp_path: Path, digits: str, torch: str, has_fused_attention: bool
) -> None:
    """PyTorch 2.0 introduced `scaled_dot_product_attention`."""
    name = f"benchmark-infer-amp-nchw-pt{digits}-cu113-rtx3090.csv"
    table = read_table(write(tmp_path / name, "model,infer_samples_per_sec,infer_batch_size\na,10,5\n"))
    assert (table.torch, table.has_fused_attention) == (torch, has_fused_attention)
    assert (table.device, table.mode, table.channels_last, table.name) == ("rtx3090", "inference", False, name)


def test_stated_values_win_and_missing_ones_are_assumed() -> None:
    table = ThroughputTable("somewhere/t.csv", ())
    assert (table.channels_last, table.is_compiled, table.has_fused_attention, table.torch) == (
        False,
        False,
        True,
        None,
    )
    with pytest.raises(
        InputError, match=r"t\.csv does not state whether its times are for inference or training"
    ) as error:
        table.mode  # noqa: B018
    assert "--phase" in (error.value.hint or "")
    stated = table.stated(phase="training", layout="nhwc", torch="1.13.1", device=None)
    assert (stated.mode, stated.channels_last, stated.has_fused_attention, stated.device) == (
        *("training", True, False, None),
    )


def test_phase_is_inferred_from_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", "model,train_samples_per_sec,train_batch_size\na,10,5\n")
    assert read_table(path).mode == "training"
    with pytest.raises(FileFormatError, match=r"figures for training .*, not for inference"):
        read_table(path, "inference")
    both = "model,infer_samples_per_sec,infer_batch_size,train_samples_per_sec,train_batch_size\na,40,8,10,5\n"
    path = write(tmp_path / "both.csv", both)
    for phase, seconds in (("inference", 8 / 40), ("training", 5 / 10)):
        (row,) = read_table(path, phase).rows
        assert row.seconds == pytest.approx(seconds)


MIXED = """model,phase,gpu,num_gpus,precision,channels_last,batch_per_device,samples_per_s
a,inference,Tesla V100-SXM2-16GB,1,amp,,16,100
b,train,v100,1,amp,1,16,50
c,inference,T4,1,amp,,16,40
d,inference,v100,1,fp32,,16,60
e,inference,v100,8,amp,,16,800
f,inf,V100,,fp16,0,32,110
"""


def test_rows_with_other_settings_are_skipped_and_reported(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", MIXED))
    assert table.rows[4].seconds == pytest.approx(8 * 16 / 800)
    asked = table.stated(device="v100", precision="fp16", phase="inference").matched()
    assert [row.model for row in asked.rows] == ["a", "f"]
    assert dict(asked.unmatched) == {"on 8 devices": 1, "device t4": 1, "phase training": 1, "precision fp32": 1}
    (note,) = asked.notes
    assert note.startswith("4 rows of t.csv ran under other conditions and are left out")
    trained = table.stated(device="v100", phase="training").matched()
    assert (trained.precision, trained.layout, [row.model for row in trained.rows]) == ("fp16", "nhwc", ["b"])
    assert table.stated(device="v100", phase="training", layout="nhwc").matched().rows == trained.rows


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({}, "more than one device: v100, t4"),
        ({"device": "v100"}, "more than one phase: inference, training"),
        ({"device": "v100", "phase": "inference"}, "more than one precision: fp16, fp32"),
        ({"device": "p100"}, "no row of t.csv has device p100"),
        ({"device": "t4", "phase": "training"}, "no row of t.csv has device t4, phase training"),
    ],
)
def test_mixed_rows_need_a_stated_setting(tmp_path: Path, stated: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / "t.csv", MIXED)).stated(**stated).matched()


def test_common_setting_of_all_rows_applies_to_the_table(tmp_path: Path) -> None:
    text = "model,phase,device,precision,batch,step_time_s\na,train,a100,tf32,8,0.1\nb,train,a100,tf32,8,0.2\n"
    table = read_table(write(tmp_path / "t.csv", text))
    assert (table.phase, table.precision, table.device) == ("training", "tf32", "a100-40")
    assert table.matched().rows == table.rows
    several = write(tmp_path / "t.csv", "model,devices,batch,step_time_s\na,8,8,0.1\n")
    with pytest.raises(InputError, match="on one device: on 8 devices"):
        read_table(several).matched()


@pytest.mark.published
@pytest.mark.skipif(not os.environ.get("CHRONOGRAD_MEASURED"), reason="needs published tables")
def test_published_rows_of_one_execution_mode() -> None:
    path = Path(os.environ["CHRONOGRAD_MEASURED"]) / "nvidia_deeplearningexamples" / "resnet50.csv"
    table = read_table(path).stated(device="v100", precision="fp16", phase="inference").matched()
    assert len(table.rows) == 18
    assert {row.batch for row in table.rows} == {2**k for k in range(9)}
