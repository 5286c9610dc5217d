"""The platform comparison: every cell has a source, and the names of packages' options exist in the packages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError
from tools import vendors

from chronograd.cli.main import main
from chronograd.clouds import comparing, registry
from chronograd.clouds.comparing import COMPARED, CRITERIA, VENDORS, Cell, is_found, offered

# The environment with a platform's package, which defines the names; SLURM's names are in its manual.
ENVIRONMENTS = {
    "sagemaker": "aws",
    "vertex": "google",
    "azureml": "azure",
    "watsonx": "ibm",
    "skypilot": "skypilot",
    "kubernetes": "kubernetes",
}
# Names of the same form that no package has.
WRONG = {
    "sagemaker": ("CreateNothing", "shape:ProfilerConfig.Nothing", "TrainingInstanceType=ml.p99.xlarge"),
    "vertex": ("services.nothing_service", "types.CustomJobSpec.nothing", "AcceleratorType=NVIDIA_H900"),
    "azureml": ("MLClient.nothing", "entities.NothingJob"),
    "watsonx": ("NothingParams", "TrainingStatus.nothing"),
    "skypilot": ("serve.nothing", "schema:resources.nothing"),
    "kubernetes": ("pod-v1:spec.containers.nothing",),
}


def names(platform: str) -> list[str]:
    return [name for cell in offered(platform).cells.values() for name in cell.has]


def test_every_cell_has_a_dated_source_or_is_unknown() -> None:
    cells = comparing.offers()
    assert len(cells) == len(COMPARED) * len(CRITERIA)
    for cell in cells:
        assert bool(cell["source"]) == is_found(cell), cell
        assert cell["date"] >= "2026-11"
        for source in filter(None, cell["source"].split("; ")):
            assert re.search(r"\([^()]*\b20\d\d", source) or source.startswith("SLURM 22"), source
    with pytest.raises(ValidationError, match="has no source"):
        Cell(says="everything")


def test_vendors_name_frameworks_and_accelerators() -> None:
    for name in VENDORS:
        cells = offered(name).cells
        assert {"PyTorch", "TensorFlow"} <= set(cells["frameworks"].items)
        assert all(re.match(r"(to )?\d+\.\d+", versions) for versions in cells["frameworks"].items.values())
        assert "V100" in cells["accelerators"].items


def test_accelerators_are_those_that_the_package_has() -> None:
    """Every accelerator type that is looked up in a package has its row, and the reverse."""
    cell = offered("vertex").cells["accelerators"]
    shown = {one for names in cell.items.values() for one in re.findall(r"[A-Z]+_[A-Z0-9_]+", names)}
    assert shown == {name.removeprefix("AcceleratorType=") for name in cell.has}


def test_table_instances_equal_the_selectable_ones() -> None:
    rows = comparing.rented()
    assert {row["platform"] for row in rows} == set(VENDORS)
    for row in rows:
        types = [one for one in registry.platform(row["platform"]).catalogue.instance if one.device == row["device"]]
        assert {one.count for one in types} == set(row["counts"])
        assert max(one.memory_gib or 0 for one in types) == (row["host_gib"] or 0)


def test_more_than_ten_cells_are_checked() -> None:
    assert sum(bool(cell.has) for name in ENVIRONMENTS for cell in offered(name).cells.values()) > 10
    assert set(COMPARED) - set(ENVIRONMENTS) == {"slurm"}
    assert names("slurm") == []


@pytest.mark.vendors
@pytest.mark.parametrize("platform", ENVIRONMENTS)
def test_cell_names_exist_in_the_package(platform: str) -> None:
    name = ENVIRONMENTS[platform]
    if name not in vendors.NAMES:
        pytest.skip(f"{name} is not among the vendors' software that is installed")
    asked = [*names(platform), *WRONG[platform]]
    told = vendors.ask(name, "symbols", {"platform": platform, "names": asked})
    assert dict(zip(asked, told, strict=True)) == {
        **dict.fromkeys(names(platform), True),
        **dict.fromkeys(WRONG[platform], False),
    }


def test_comparison_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["platforms", "--compare"]) == 0
    assert "Model registry" in capsys.readouterr().out
    assert main(["platforms", "--compare", "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {row["criterion"] for row in data["offers"]} == {title for _, title, _ in CRITERIA}
