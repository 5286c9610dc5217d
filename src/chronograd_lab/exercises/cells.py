"""The code cells of a problem, read from its file in `problems`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

DATA = Path("data")  # next to a notebook
_PROBLEMS = Path(__file__).with_name("problems")
# Packages of extras that training a study at its small size needs.
_AGENTS = ("exploration", "dqn-ablation", "prioritised-replay")
TRAINED_WITH = {
    "detection-transfer": ("onnx", "onnxscript", "uvicorn"),
    **dict.fromkeys(_AGENTS, ("gymnasium",)),
    "gorila-and-apex": ("gymnasium", "ray"),
}
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
    def trained_studies(self) -> list[str]:
        """Return the names of the studies that it trains at a small size.

        >>> CodeCell("1.1", 'small = trained("transfer", seeds=1)').trained_studies
        ['transfer']
        """
        return list(dict.fromkeys(re.findall(r'trained\(\s*"([\w-]+)"', self.source)))

    @property
    def missing_packages(self) -> list[str]:
        """Return the packages of its lines `import NAME`, and of the studies that it trains, that are not installed."""
        imported = re.findall(r"^import (\w+)", self.source, re.MULTILINE)
        needed = [name for study in self.trained_studies for name in TRAINED_WITH.get(study, ())]
        return [name for name in dict.fromkeys([*imported, *needed]) if find_spec(name) is None]

    def with_commands(self, sizes: Mapping[str, str]) -> CodeCell:
        """Add the command of the full size below the comment of a cell that trains.

        Args:
            sizes: of the full results, by study.

        >>> cell = CodeCell("1.1", '# Train.\\nsmall = trained("transfer", seeds=1)')
        >>> print(cell.with_commands({"transfer": "evening"}).source)
        # Train.
        # Full size: chronograd study run transfer --size evening
        small = trained("transfer", seeds=1)
        """
        commands = [f"# Full size: chronograd study run {name} --size {sizes[name]}" for name in self.trained_studies]
        comment, _, code = self.source.partition("\n")
        return replace(self, source="\n".join([comment, *commands, code])) if commands else self


def cells(exercise: str, problem: int) -> list[CodeCell]:
    """Return the cells of a problem. The text after the question's id is the first comment of its cell."""
    _, *parts = _MARK.split(_PROBLEMS.joinpath(f"p{exercise}_{problem}.py").read_text(encoding="utf-8"))
    return [
        CodeCell(question or "", f"# {text}".strip()) for question, text in zip(parts[::2], parts[1::2], strict=True)
    ]
