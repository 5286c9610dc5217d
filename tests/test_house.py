"""The report on code structure: each count detects its faults, and a count above its ceiling fails."""

from __future__ import annotations

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
    "product_lines": {"chronograd/job.py": "x = 1\n" * 501},
    "lab_lines": {"chronograd_lab/studies/cutout.py": "x = 1\n" * 501},
    "functions_too_long": {"chronograd/job.py": "def f():\n" + "    x = 1\n" * 60},
    "functions_with_too_many_parameters": {"chronograd/job.py": f"class A:\n    def f(self, {PARAMETERS}): ...\n"},
    "functions_too_complex": {"chronograd/job.py": "def f(x):\n" + "    if x: pass\n" * 20},
    "class_names_used_twice": {
        "chronograd/job.py": "class Step: ...\n",
        "chronograd_lab/studies/cutout.py": "class Step: ...\n",
    },
    "upward_imports": {"chronograd/units.py": "from .job import Job\n"},
    "modules_in_circles": {
        "chronograd/predict/step.py": "from . import memory\n",
        "chronograd/predict/memory.py": "def f():\n    import chronograd.predict.step\n",
    },
}


def make(root: Path, files: dict[str, str]) -> Path:
    """Write a small project with `files`; without them its counts are at their ceilings."""
    for name, text in {"../docs/architecture.md": PAGE, **CLEAN, **files}.items():
        path = root / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "tools").mkdir()
    lines = (f"{name} = [0, {500 if 'lines' in name else 0}]\n" for name in PLANTED)
    (root / "tools" / "house.toml").write_text("# comment\n\n" + "".join(lines))
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


@pytest.mark.parametrize("count", PLANTED)
def test_planted_fault_fails_and_keeps_the_ceiling(
    count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path, PLANTED[count])
    before = (root / "tools" / "house.toml").read_text()
    assert house.main(root, is_update=True) == 1
    faults = [line for line in capsys.readouterr().out.splitlines() if "exceeds" in line]
    assert [line.partition(":")[0] for line in faults] == [count.replace("_", " ")]
    assert f"{count} = [0, {500 if 'lines' in count else 0}]" in before
    assert f"{count} = [0, {500 if 'lines' in count else 0}]" in (root / "tools" / "house.toml").read_text()


def test_product_never_imports_the_lab(tmp_path: Path) -> None:
    files = {"chronograd_lab/__init__.py": "", "chronograd/cli/main.py": "import chronograd_lab\n"}
    assert house.House(make(tmp_path, files)).upward("chronograd.cli.main") == ["chronograd_lab"]


def test_update_lowers_a_ceiling(tmp_path: Path) -> None:
    root = make(tmp_path, {})
    table = root / "tools" / "house.toml"
    table.write_text(table.read_text().replace("circles = [0, 0]", "circles = [0, 5]"))
    assert house.main(root, is_update=True) == 0
    assert "modules_in_circles = [0, 0]" in table.read_text()
