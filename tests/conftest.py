"""Shared test fixtures: a separate home folder, one fast calibration of this machine, and forked ranks."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import hypothesis
import pytest
from tests import parts
from tests.fork_server import Server
from tests.hiding import sitecustomize as hiding

pytest_collection_modifyitems = parts.pytest_collection_modifyitems
SERVER = pytest.StashKey[Server]()


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's devices and links before the collection of tests, so only the catalogue remains."""
    # Waiting threads of a rank sleep; spinning would take cores from other test processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # The time to draw and run an example depends on the machine and its load.
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("any-machine", deadline=None, suppress_health_check=too_slow)
    hypothesis.settings.load_profile("any-machine")
    config.stash[SERVER] = Server()
    _hide_in_children()
    config.pluginmanager.register(Examples())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=0):
        gc.disable()  # until this process has collected the tests: nearly all objects made until then stay
    if hasattr(config, "workerinput"):  # an xdist worker uses its parent's home and reports to its parent
        return
    home = tempfile.mkdtemp(prefix="chronograd-tests-")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_DATA_HOME", home)
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(parts.Account(parts.required()))


def _hide_in_children() -> None:
    """Put the folder that hides packages on PYTHONPATH: interpreters that tests start read it."""
    folder = str(Path(hiding.__file__).parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Hide the packages of extras from the top of a file of tests, unless all its tests are marked."""
    if isinstance(collector, pytest.Module):
        hiding.installed().hide(parts.hidden_from(parts.parts_of_module(collector.path)))
    return (yield)


class Examples:
    """A plugin for all paths: hooks of this file alone hold in its folder, and examples are elsewhere."""

    @staticmethod
    def pytest_ignore_collect(collection_path: Path) -> bool | None:
        """Leave out files with examples that import packages of extras: while these are hidden, they would stay half imported."""
        is_examples = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "conftest"))
        return True if is_examples and parts.imports_an_extra(collection_path) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude collected tests from garbage collection, and use one thread per test process, as more would spin for cores."""
    if not session.config.option.collectonly:
        gc.collect()
    gc.freeze()  # each full collection would scan two million objects of tests and modules, for more than a second
    gc.enable()
    # PyTorch imports Triton at its first trace, and Triton's library crashes if TensorFlow is loaded by then.
    if all(PathFinder.find_spec(name) for name in ("triton", "tensorflow")):
        importlib.import_module("triton")
    if hasattr(session.config, "workerinput"):
        import threadpoolctl
        import torch

        torch.set_num_threads(1)
        threadpoolctl.threadpool_limits(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Run before any fixture of the test, which may start ranks for a whole module."""
    hiding.installed().hide(parts.hidden_from(parts.parts_of(item)))
    parts.skip_missing_parts(item)
    item.config.stash[SERVER].is_used = item.get_closest_marker("real_exec") is None


@pytest.fixture(scope="session", autouse=True)
def fork_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """Fork ranks from a process that has imported their library, except in tests marked `real_exec`."""
    with pytest.MonkeyPatch.context() as patch, pytestconfig.stash[SERVER] as server:
        patch.setattr("chronograd.launch.processes.Popen", server.popen)
        patch.setattr("chronograd.calibrate.workers.Popen", server.popen)
        yield server


@pytest.fixture(scope="session")
def calibrated_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the device `local`, measured with the shortest clock, once for all test processes."""
    from chronograd.calibrate.machine import Setup, calibrate, save_local

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    home = shared / "calibrated-home"
    with (shared / "calibrated-home.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            patch.setenv("XDG_DATA_HOME", str(home))
            device = calibrate([Setup(1, 1), Setup(2, 1), Setup(1, 1, True)], seconds_per_block=0.005)
            assert device.calibration is not None
            # Mark the machine as quiet; otherwise tests on a busy machine would repeat the calibration with the longest clock.
            quiet = {"others_cores": 0.0, "pace_s": 0.5 * device.calibration["pace_s"]}
            save_local(device.model_copy(update={"calibration": device.calibration | quiet}))
    return home


@pytest.fixture
def local_device(calibrated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `local` a device for this test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(calibrated_home))
