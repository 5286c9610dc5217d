"""Make `.venv` and install Chronograd with everything `make` needs. Standard library only; a second run does nothing.

Uses PyTorch's small CPU builds if there is no NVIDIA driver and PyTorch's own index answers. Otherwise it uses the builds of
the package index, which include CUDA and also run on CPUs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed.sha256"
INPUTS = ("pyproject.toml", "constraints.txt", "tools/install.py")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MIN_PYTHON = (3, 11)
NEEDED_BYTES = {"cpu": 3e9, "cuda": 9e9}


def main() -> int:
    if sys.version_info < MIN_PYTHON:
        print(f"Python {sys.version.split()[0]} is too old; Chronograd needs 3.11 or newer.", file=sys.stderr)
        return 2
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    start = time.monotonic()
    kind = "cpu" if not has_nvidia_driver() and answers(CPU_INDEX + "/torch/") else "cuda"
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES[kind]:
        print(f"{free / 1e9:.1f} GB are free; {NEEDED_BYTES[kind] / 1e9:.0f} GB are needed.", file=sys.stderr)
        return 2
    if kind == "cpu":
        say("installing into .venv: PyTorch for CPUs and all else, about 0.5 GB to download, 2 GB on disk")
    else:
        say("installing into .venv: PyTorch with CUDA and all else, about 3.5 GB to download, 7 GB on disk")
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True)
    index = ["--index-url", CPU_INDEX] if kind == "cpu" else []
    say("step 1 of 2: torch and torchvision (1 to 3 minutes)")
    pip("torch", "torchvision", *index)
    say("step 2 of 2: everything else (about a minute)")
    pip("--editable", f"{ROOT}[dev]")
    STAMP.write_text(wanted)
    say(f"installed in {time.monotonic() - start:.0f} s")
    return 0


def pip(*arguments: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "constraints.txt"), *arguments]
    done = subprocess.run(command, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "1"}, check=False)
    if done.returncode:
        say("pip failed; the lines above show the reason. Fix it and run the same command again.")
        raise SystemExit(1)


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=8) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def say(text: str) -> None:
    print(f"chronograd: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
