"""Horovod in a separate environment: `python -m chronograd.backends.horovod` makes it, once per PyTorch.

Horovod's last release, 0.28.1 of 2023, is source code for the C++ and the build tools of its time. We compile it
against the PyTorch of the environment that runs the command. No second copy is needed: the new environment sees the
packages of this one through a .pth file, and holds only Horovod and its requirements. All of it is in the user's cache:

    horovod/wheels/py311-torch2.14.1/        the wheel, 5 to 11 minutes of work on two cores
    horovod/py311-torch2.14.1-1a2b3c4d/      the environment; the last part identifies the environment that it sees

Horovod averages with Gloo, on the CPU, so neither MPI nor a CUDA toolkit is needed. See docs/decisions/horovod.md.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from chronograd import trust
from chronograd.errors import ChronogradError, RunError, install_command

VERSION = "0.28.1"
COMMAND = "python -m chronograd.backends.horovod"
# Horovod's setup.py and CMake files need a setuptools with pkg_resources, and a CMake that still knows their policies.
# Horovod imports the rest.
TOOLS = ("setuptools>=77,<80", "wheel", "cmake==3.31.6", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi")
# PyTorch's headers need C++20. The third keeps a CUDA build of PyTorch from asking for a CUDA toolkit.
MENDS = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    (
        "cmake/Modules/FindPytorch.cmake",
        "True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False",
        "False",
    ),
)
SWITCHES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_NVTX": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
}
SEEN = "seen-packages.pth"
READY = "ready"
TAIL_LINES = 30


def python() -> Path:
    """Return the interpreter that has Horovod and sees the packages of this one. It exists after the command has run."""
    return _environment() / "bin" / "python"


def is_built() -> bool:
    """Return whether the environment is complete, and was made for this one in its present state."""
    try:
        return (_environment() / READY).read_text() == seen_packages()
    except (OSError, importlib.metadata.PackageNotFoundError):
        return False


def build() -> Path:
    """Make the environment, and the wheel if there is none for this PyTorch. Return its interpreter.

    Raises RunError if there is no PyTorch or a step fails, with the end of its output.
    """
    if sys.platform == "win32":
        raise RunError("Horovod does not run on Windows", "use backend=ddp")
    try:
        folder = _environment()
    except importlib.metadata.PackageNotFoundError:
        raise RunError("Horovod is built against PyTorch, which is not installed", install_command("torch")) from None
    if not is_built():
        _make_environment(folder)
        _pip("install", "--no-deps", str(next(_wheels().glob("horovod-*.whl"), None) or _build_wheel()))
    _say("checking: import horovod.torch")
    check = "import horovod.torch, chronograd; assert horovod.torch.gloo_built()"
    _run("import", trust.python("-c", check, interpreter=str(python())))
    (folder / READY).write_text(seen_packages())
    return python()


def _make_environment(folder: Path) -> None:
    _say(f"making {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=True)
    # Before the .pth file, or pip would see the tools of the other environment and not install them.
    _pip("install", *TOOLS)
    (_site_packages() / SEEN).write_text(seen_packages())


def _build_wheel() -> Path:
    """Compile Horovod and store the wheel."""
    _say(f"compiling Horovod {VERSION}: 5 to 11 minutes on two cores")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="horovod-") as scratch:
        _pip(
            "download",
            "--no-deps",
            "--no-binary=:all:",
            "--no-build-isolation",
            f"--dest={scratch}",
            f"horovod=={VERSION}",
        )
        shutil.unpack_archive(next(Path(scratch).glob("horovod-*.tar.gz")), scratch)
        source = Path(scratch) / f"horovod-{VERSION}"
        mend(source)
        _pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={scratch}", str(source))
        made = next(Path(scratch).glob("horovod-*.whl"))
        _wheels().mkdir(parents=True, exist_ok=True)
        aside = _wheels() / f".{made.name}"
        shutil.copyfile(made, aside)
        kept = aside.rename(_wheels() / made.name)
    _say(f"compiled in {time.monotonic() - start:.0f} s: {kept}")
    return kept


def mend(source: Path) -> None:
    """Change the parts of Horovod's source that do not build here. Raises RunError if it is another source than we know."""
    for name, old, new in MENDS:
        text = (source / name).read_text()
        if old not in text:
            raise RunError(f"{name} of Horovod {VERSION} has no {old!r}: it is not the source that we know")
        (source / name).write_text(text.replace(old, new))


def _cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_path("chronograd")) / "horovod"


def _key() -> str:
    """Return the key of a wheel: Python and PyTorch. Raises PackageNotFoundError."""
    return f"py{sys.version_info.major}{sys.version_info.minor}-torch{importlib.metadata.version('torch')}"


def _environment() -> Path:
    return _cache() / f"{_key()}-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]}"


def _wheels() -> Path:
    return _cache() / "wheels" / _key()


def seen_packages() -> str:
    """Return the lines of the .pth file: the packages of this environment, and this package, which may be elsewhere."""
    folders = [str(Path(__file__).parents[3]), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return "".join(f"{folder}\n" for folder in dict.fromkeys(folders))


def _site_packages() -> Path:
    return next((_environment() / "lib").glob("python3*")) / "site-packages"


def _pip(*arguments: str) -> None:
    _run(f"pip {arguments[0]}", trust.python("-m", "pip", *arguments, interpreter=str(python())))


def _run(what: str, command: Sequence[str | Path]) -> None:
    """Run a command. Raises RunError with the end of its output."""
    own = _environment() / "bin"
    environment = {**os.environ, **SWITCHES, "HOROVOD_CMAKE": str(own / "cmake")}
    environment["PATH"] = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
    environment.setdefault("MAKEFLAGS", f"-j{os.cpu_count() or 1}")
    for name in ("PYTHONPATH", "PYTHONHOME", *(n for n in environment if n.startswith("HOROVOD_GPU"))):
        environment.pop(name, None)
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        tail = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-TAIL_LINES:])
        raise RunError(f"{what} ended with exit status {done.returncode}; the end of its output:\n{tail}")


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    try:
        _say(f"Horovod {VERSION} is ready: {build()}")
    except ChronogradError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status
    return 0
