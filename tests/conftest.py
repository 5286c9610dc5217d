"""What tests share: a home of their own, and this machine calibrated once, in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Devices and links that this user has measured are not there: what is tested is the catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture(scope="session")
def calibrated_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that holds the device `local`, measured with the shortest clock."""
    from chronograd.calibrate.machine import Setup, calibrate, save_local

    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(home))
        save_local(calibrate([Setup(1, 1), Setup(2, 1)], seconds_per_block=0.005))
    return home


@pytest.fixture
def local_device(calibrated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` is a device, for this test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(calibrated_home))
