"""Ranks on other hosts: real processes in network namespaces if the machine allows them, and refused hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import network as networks
from chronograd import job as jobs
from chronograd.backends.plan import RankPlan
from chronograd.calibrate.links import measure_links
from chronograd.cli.main import main
from chronograd.errors import ChronogradError, InputError, NotFoundError, RunError
from chronograd.hardware import catalog
from chronograd.launch import hosts
from chronograd.launch import jobs as launch
from chronograd.launch.hosts import Host
from chronograd.rundir import RunDir

needs_network = pytest.mark.netns
FAR = [Host(f"ssh:n{i}", f"10.0.0.{i}", "eth0", ("ssh", f"n{i}")) for i in (1, 2)]


@pytest.fixture
def two_hosts() -> Iterator[str]:
    with networks.network(("h1", "h2"), 300) as text:
        yield text


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def started(text: str, tmp_path: Path, code: str, ranks: int = 2, **options: int) -> Callable[[], None]:
    run = RunDir.create(out=tmp_path / "run")
    plan = RankPlan((sys.executable, "-c", code), ranks, {"GREETING": "hello"}, **options)
    return lambda: hosts.launch(plan, run, hosts.parse(text))


# -- in namespaces -------------------------------------------------------------------------------------


@needs_network
def test_ranks_are_placed_on_hosts_in_blocks(two_hosts: str, tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "GREETING")
    code = f"""import os, subprocess
own = subprocess.run(["ip", "-br", "-4", "addr", "show", "eth0"], capture_output=True, text=True).stdout.split()[2]
print(own, *(os.environ[name] for name in {names}))"""
    started(two_hosts, tmp_path, code, ranks=4)()
    printed = [(tmp_path / "run" / f"output.{rank}.txt").read_text() for rank in range(4)]
    # The namespaces share the machine's cores and GPUs, so local ranks are counted together.
    assert printed == [f"10.9.0.{1 + rank // 2}/24 {rank} 4 {rank} 4 10.9.0.1 eth0 hello\n" for rank in range(4)]


@needs_network
def test_all_reduce_reaches_most_of_the_bandwidth(two_hosts: str) -> None:
    """Send 16 MB at 300 Mbit/s; headers alone take 4 %. Other work delays some of the eight repeats, so the fast ones count."""
    (row,) = measure_links((2,), ("all_reduce",), (2**24,), seats=hosts.seats(2, hosts.parse(two_hosts)))
    assert 0.8 < row.busbw * row.seconds / row.low * 8 / 300e6 < 1.0


@needs_network
def test_job_over_a_calibrated_link(two_hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18 sends 45 MB: over a second here, and far less over loopback."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    command = ["calibrate", "links", "--hosts", two_hosts, "--name", "slow-here", "--collective", "all_reduce"]
    assert main([*command, "--seconds", "0.02"]) == 0
    link = catalog.link("slow-here")
    assert 0.7 < link.bandwidth_bytes_per_s * 8 / 300e6 < 1.1
    assert "netns:" in link.source[0].source
    words = ["network.name=resnet18-cifar", "training.batch=4", "backend=ddp", "cluster.count=2", "cluster.threads=1"]
    job = ["examples/digits.yaml", *words, "--hosts", two_hosts, "--steps", "2", "--warmup", "1"]
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    assert main(["measure", *job, "--out", str(tmp_path / "run")]) == 0
    measured = RunDir.open(tmp_path / "run").record()
    assert measured.value("communication_exposed_s") > 0.5


@needs_network
def test_failed_rank_stops_the_others_and_names_its_host(two_hosts: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"""import os, time
if os.environ["RANK"] == "0":
    open({str(pid)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
while not os.path.exists({str(pid)!r}): time.sleep(0.01)
raise SystemExit("alas")"""
    with pytest.raises(RunError, match=r"rank 1 on netns:\S+-h2 ended with exit status 1") as caught:
        started(two_hosts, tmp_path, code)()
    assert "alas" in str(caught.value)
    assert not Path(f"/proc/{pid.read_text()}").exists()


@needs_network
def test_restarts_follow_the_plan(two_hosts: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"""import os
print("at", os.environ["MASTER_PORT"])
if os.environ["RANK"] == "1" and not os.path.exists({str(mark)!r}):
    raise SystemExit(open({str(mark)!r}, "w").write("x"))"""
    started(two_hosts, tmp_path, code, max_restarts=1)()
    assert len((tmp_path / "run" / "output.1.txt").read_text().splitlines()) == 2


# -- refused hosts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a,,b", "netns:", "a b", "-oProxyCommand=x", "docker:a"])
def test_invalid_hosts(text: str) -> None:
    with pytest.raises(InputError, match="cannot read the hosts"):
        hosts.parse(text)


def test_duplicate_host() -> None:
    with pytest.raises(InputError, match="host netns:a is named twice"):
        hosts.parse("netns:a,netns:a")


@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no ip on this machine")
def test_unknown_namespace() -> None:
    with pytest.raises(NotFoundError, match="network namespace 'no-such'"):
        hosts.parse("netns:no-such")


@needs_network
def test_namespace_without_address_shows_the_command(two_hosts: str) -> None:
    name = two_hosts.split(",")[1].removeprefix("netns:")
    subprocess.run(["ip", "-n", name, "addr", "flush", "dev", "eth0"], check=True)
    with pytest.raises(RunError, match="no address") as caught:
        hosts.parse(two_hosts)
    assert f"ip -n {name} addr add" in caught.value.hint


@needs_network
def test_namespace_needs_root(two_hosts: str) -> None:
    code = f"""import os
from chronograd.launch import hosts
os.setuid(65534)
hosts.parse({two_hosts!r})"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RunError" in done.stderr
    assert "needs root" in done.stderr


def test_unreachable_ssh_host_reports_the_ssh_error() -> None:
    with pytest.raises(RunError) as caught:
        hosts.parse("ssh:no-such-host.invalid")
    assert "no-such-host.invalid" in caught.value.message
    assert caught.value.hint


def test_missing_ssh_or_ip_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for text, command in (("node1", "ssh"), ("netns:h1", "ip")):
        with pytest.raises(RunError, match=f"no `{command}` on this machine"):
            hosts.parse(text)


def test_every_host_gets_a_rank() -> None:
    assert [host.name for host in hosts.blocks(3, FAR)] == ["ssh:n1", "ssh:n1", "ssh:n2"]
    for ranks, count in ((1, 2), (4, 3)):
        with pytest.raises(InputError, match="without any"):
            hosts.blocks(ranks, (FAR * 2)[:count])


def test_local_ranks_are_counted_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCAL_RANK selects the GPU of a rank. A local shell replaces ssh, through which the first host gives a port."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    found = [tuple(seat.environment[name] for name in names) for seat in hosts.seats(3, FAR)]
    assert found == [("0", "0", "2", "10.0.0.1"), ("1", "1", "2", "10.0.0.1"), ("2", "0", "1", "10.0.0.1")]
    here = [Host(f"netns:h{i}", f"10.9.0.{i}", "eth0", ("env",)) for i in (1, 2)]
    assert [seat.environment["LOCAL_RANK"] for seat in hosts.seats(3, here)] == ["0", "1", "2"]


def test_ssh_command_has_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the last word in a local shell, as a login shell on the host would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/a folder")
    monkeypatch.setenv("SECRET", "stays")
    code = "import os; print(os.getcwd(), os.environ['PYTHONPATH'], os.environ['RANK'], os.environ.get('SECRET'))"
    *prefix, line = FAR[0].command((sys.executable, "-c", code), {"RANK": "it's 1"})
    assert prefix == ["ssh", "n1"]
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, env=clean, cwd="/")
    assert done.stdout == f"{tmp_path} /a folder it's 1 None\n"


def test_incompatible_options(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["measure", "examples/digits.yaml", "--hosts", "a,b"]
    for words, message in (
        ([*job, "--launcher", "local"], "leave --launcher out"),
        ([*job, "--world", "1,2"], "No such option '--hosts'"),
        (["calibrate", "links", "--hosts", "a,b"], "--hosts and --name go together"),
        (["calibrate", "links", "--hosts", "a,b", "--name", "x", "--world", "2"], "leave --world out"),
        (["calibrate", "links", "--hosts", "a,b", "--name", "../x"], "not a valid link name"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_unknown_hosts_leave_no_files(tmp_path: Path) -> None:
    job = jobs.from_dict(
        {
            "network": {"name": "lenet5"},
            "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10},
            "cluster": {"count": 2},
            "backend": "ddp",
        }
    )
    with pytest.raises(ChronogradError):
        launch.measure(job, out=tmp_path / "run", launcher="hosts:netns:no-such-1,netns:no-such-2")
    assert not (tmp_path / "run").exists()


# -- the test network ----------------------------------------------------------------------------------


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@needs_network
def test_namespaces_are_removed_also_after_a_kill() -> None:
    code = """import time
from benchmarks.network import network
with network(("h1", "h2"), 100) as hosts:
    print(hosts, flush=True)
    time.sleep(60)"""
    root = Path(__file__).parent.parent.parent
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)
    assert holder.stdout is not None
    left = holder.stdout.readline().strip().replace("netns:", "").split(",")
    with networks.network(("h1", "h2"), 100) as text:
        own = text.replace("netns:", "").split(",")
        assert not set(own) & set(left)
        assert all(name in namespaces() for name in own + left)
    assert not any(name in namespaces() for name in own)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert all(name in namespaces() for name in left)
    networks.remove_leftovers()
    assert not any(name in namespaces() for name in left)
    deadline = time.monotonic() + 600  # the kernel removes a namespace and its cables later
    while f"cg{holder.pid}" in (links := subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout):
        assert time.monotonic() < deadline, links
        time.sleep(0.1)
