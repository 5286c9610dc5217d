"""The vendors' software, each in a separate environment because their requirements conflict: `make vendors`.

    python tools/vendors.py            all of them, about 1.3 GB in 8 minutes, in the user's cache: chronograd/vendors/NAME
    python tools/vendors.py aws ibm    some

Tests pass documents to `tools/vendor_checks/NAME.py`, many documents per process. No check uses a network: they check the shape
of a job, not whether a vendor would accept it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import platformdirs

# Newest versions when the platforms were written, each with its build time on two cores.
PACKAGES = {
    "aws": ("boto3==1.44.5", "moto[sagemaker]==5.2.5", "awscli==1.46.3"),  # 30 s
    "google": ("google-cloud-aiplatform==2.7.0",),  # 138 s
    "kubernetes": ("kubernetes-validate==1.37.0", "kubeflow-training==1.9.4", "kubernetes==35.0.0"),  # 64 s
    "skypilot": ("skypilot==0.14.1",),  # 143 s
    "azure": ("azure-ai-ml==1.35.2", "azure-identity==1.27.0"),  # 104 s
}
NODE_PACKAGES = {"ibm": ("@ibm-cloud/watsonx-ai@1.7.16", "typescript@5", "@types/node@22")}  # 13 s
WANTED = {**PACKAGES, **NODE_PACKAGES}
NAMES = tuple(WANTED)
CHECKS = Path(__file__).parent / "vendor_checks"
READY = "ready"
MARK = "RESULT "


def folder(name: str) -> Path:
    """Return the folder of a vendor's software."""
    return Path(platformdirs.user_cache_path("chronograd")) / "vendors" / name


def is_ready(name: str) -> bool:
    """Return whether the installed versions are the required ones."""
    mark = folder(name) / READY
    return mark.exists() and mark.read_text().split() == list(WANTED[name])


def why_not(names: tuple[str, ...] = NAMES) -> str:
    """Return the missing vendors and how to install them; empty if none is missing."""
    missing = [name for name in names if not is_ready(name)]
    return f"{', '.join(missing)} not installed; `make vendors`" if missing else ""


def build(name: str) -> None:
    """Install one vendor's software, or update it to the required versions. Raises CalledProcessError."""
    path = folder(name)
    if is_ready(name):
        return
    is_new = not (path / READY).exists()
    if is_new:
        shutil.rmtree(path, ignore_errors=True)
    print(f"vendors: installing {name}", flush=True)
    if name in PACKAGES:
        if is_new:
            venv.create(path, symlinks=True, with_pip=True)
        pip = [path / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *PACKAGES[name]]
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        subprocess.run(pip, check=True, env=environment)
    else:
        path.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *NODE_PACKAGES[name]]
        subprocess.run(npm, check=True, cwd=path)
    (path / READY).write_text("\n".join(WANTED[name]))


def ask(name: str, script: str, given: Any, timeout_s: float = 110) -> Any:
    """Return the answer of `tools/vendor_checks/SCRIPT.py` on `given`, run with the vendor's software in a separate home.

    Raises RuntimeError with its output if there is no answer.
    """
    is_python = name in PACKAGES
    python = folder(name) / "bin" / "python" if is_python else Path(sys.executable)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "AWS_", "AZURE_"))}
    with tempfile.TemporaryDirectory(prefix="vendor-") as home:
        done = subprocess.run(
            [python, "-P", "-W", "ignore", CHECKS / f"{script}.py", *([] if is_python else [folder(name)])],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=home,
            env={**environment, "HOME": home},
        )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise RuntimeError(f"{script} gave no answer:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def main() -> int:
    """Return exit status 1 if one cannot be installed here; its tests are then skipped and not required."""
    status = 0
    for name in sys.argv[1:] or NAMES:
        if name not in NAMES:
            print(f"there is no {name}; known: {', '.join(NAMES)}", file=sys.stderr)
            return 2
        if name in NODE_PACKAGES and shutil.which("npm") is None:
            print(f"vendors: {name} needs npm, which is not here; its tests are skipped", flush=True)
            status = 1
            continue
        build(name)
        print(f"vendors: {name} is ready", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
