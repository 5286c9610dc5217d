"""The code cells of a problem, read from its file in `problems`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

DATA = Path("data")  # next to a notebook
_PROBLEMS = Path(__file__).with_name("problems")
_MARK = re.compile(r"^# %% ?(\d\S*)? ?", re.MULTILINE)


@dataclass(frozen=True)
class CodeCell:
    """A cell of code. `question` is empty for the first one, which the others need."""

    question: str
    source: str

    @property
    def studies(self) -> list[str]:
        """Return the names of the studies whose results it reads."""
        return re.findall(r'results\("([\w-]+)"\)', self.source)

    @property
    def missing_packages(self) -> list[str]:
        """Return the packages of its lines `import NAME` that are not installed."""
        return [name for name in re.findall(r"^import (\w+)", self.source, re.MULTILINE) if find_spec(name) is None]


def cells(exercise: str, problem: int) -> list[CodeCell]:
    """Return the cells of a problem. The text after the question's id is the first comment of its cell."""
    _, *parts = _MARK.split(_PROBLEMS.joinpath(f"p{exercise}_{problem}.py").read_text(encoding="utf-8"))
    return [
        CodeCell(question or "", f"# {text}".strip()) for question, text in zip(parts[::2], parts[1::2], strict=True)
    ]
