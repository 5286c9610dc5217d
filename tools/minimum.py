"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `python tools/minimum.py [EXTRA...]`.

    python tools/minimum.py torch > minimum.txt
    pip install --constraint minimum.txt ".[torch]"

Standard library only. An extra brings the extras that it names.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def minimum(extras: list[str]) -> list[str]:
    """Return `name==version` for each dependency of the package and of some of its extras.

    >>> [line for line in minimum(["torch"]) if line.startswith(("click", "torch"))]
    ['click==8.3', 'torch==2.11']
    """
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    optional = project["optional-dependencies"]
    found: dict[str, str] = {}
    wanted = list(project["dependencies"])
    wanted += [text for extra in extras for text in optional[extra]]
    while wanted:
        text = wanted.pop()
        if own := re.match(r"chronograd\[(.+)\]", text):
            wanted += [one for extra in own[1].split(",") for one in optional[extra]]
        elif least := re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", text):
            found[least[1].lower()] = least[2]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    print("\n".join(minimum(sys.argv[1:])))
