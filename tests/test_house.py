"""The report on code structure: it detects each kind of fault, and shows lines without limiting them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools import house

PAGE = """## The rooms

```text
units.py job.py   words
predict/          sentences
── no torch above this line ──
cli/              verbs
```

```text
studies/          pages
```

<!-- drawn by tools/house.py -->
```text
```
"""
CLEAN = {"chronograd/units.py": "", "chronograd/predict/step.py": "from chronograd import units\n"}
PARAMETERS = ", ".join(f"p{i}" for i in range(9))
PLANTED = {
    "functions too long": {"chronograd/job.py": "def f():\n" + "    x = 1\n" * 60},
    "functions with too many parameters": {"chronograd/job.py": f"class A:\n    def f(self, {PARAMETERS}): ...\n"},
    "functions too complex": {"chronograd/job.py": "def f(x):\n" + "    if x: pass\n" * 20},
    "different constants in one assignment": {"chronograd/job.py": "TRIES, PAUSE_S = 4, 1.0\n"},
    "class names used twice": {
        "chronograd/job.py": "class Step: ...\n",
        "chronograd_lab/studies/cutout.py": "class Step: ...\n",
    },
    "upward imports": {"chronograd/units.py": "from .job import Job\n"},
    "modules in circles": {
        "chronograd/predict/step.py": "from . import memory\n",
        "chronograd/predict/memory.py": "def f():\n    import chronograd.predict.step\n",
    },
}
CIRCLES = {
    "relative": ("from . import memory\n", "def f():\n    import chronograd.predict.step\n"),
    "from a room": ("from chronograd.predict import memory\n", "from chronograd.predict.step import A\n"),
    "both from the room": ("from chronograd.predict import memory\n", "from chronograd.predict import step\n"),
}


def make(root: Path, files: dict[str, str]) -> Path:
    """Write a small project with `files`; without them it has no fault."""
    for name, text in {"../docs/architecture.md": PAGE, **CLEAN, **files}.items():
        path = root / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_clean_project_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make(tmp_path, {})
    assert house.main(root) == 1
    assert "architecture.md does not show" in capsys.readouterr().out
    assert house.main(root, is_update=True) == 0
    assert house.main(root) == 0
    page = (root / "docs" / "architecture.md").read_text()
    assert " units job ╲\n" in page
    assert " predict ■╲\n" in page


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_fails(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(make(tmp_path, PLANTED[fault]), is_update=True) == 1
    output = capsys.readouterr().out
    counts = {name: rows for name, rows in house.House(tmp_path).faults().items() if rows}
    assert list(counts) == [fault]
    assert f"{fault}: {len(counts[fault])}\n" in output
    assert "in order" not in output


@pytest.mark.parametrize("form", CIRCLES)
def test_circle_in_a_room_is_reported(form: str, tmp_path: Path) -> None:
    step, memory = CIRCLES[form]
    files = {"chronograd/predict/step.py": step, "chronograd/predict/memory.py": memory}
    assert house.House(make(tmp_path, files)).circular() == ["chronograd.predict.memory", "chronograd.predict.step"]


@pytest.mark.parametrize(
    ("text", "is_mixed"),
    [
        ("TRIES, PAUSE = 4, 1.0", True),
        ("SHARE, BEAT = 1 / 8, 3", True),
        ("BLOCK_BYTES, WRITES = 4096, 8", True),
        ("NAME, SIZE = 'a', 3", True),
        ("A, B = (\n    1,\n    2,\n)", True),
        ("WIDTH, HEIGHT = 96, 72", False),
        ("MIN_S, MAX_S = 1 / 2, -3.0", False),
        ("PULL, PUSH = 'pull', 'push'", False),
        ("GUARD, CLOCK = Guard(), list()", False),
        ("x, y = 1, 2.0", False),
    ],
)
def test_constants_of_one_assignment_have_one_type_and_unit(text: str, is_mixed: bool) -> None:
    assert bool([*house.mixed_constants(ast.parse(text))]) == is_mixed


def test_lines_are_shown_and_never_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = {"chronograd_lab/studies/cutout.py": "x = 1\n" * 700}
    root = make(tmp_path, {"chronograd/job.py": "x = 1\n" * 90_000, **lab})
    assert house.main(root, is_update=True) == 0
    output = capsys.readouterr().out
    assert "lines: 90,001 in the product, 700 in the lab" in output
    assert "largest files:\n  90,000  chronograd.job\n" in output


def test_product_never_imports_the_lab(tmp_path: Path) -> None:
    files = {"chronograd_lab/__init__.py": "", "chronograd/cli/main.py": "import chronograd_lab\n"}
    assert house.House(make(tmp_path, files)).upward("chronograd.cli.main") == ["chronograd_lab"]
