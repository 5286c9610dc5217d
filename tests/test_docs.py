"""Check statements of the documents: links have targets, commands exist, the README shows the output of its commands."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
from datetime import date
from pathlib import Path

import click
import pytest
import yaml

from chronograd import job as jobs
from chronograd.cli.commands import commands_of
from chronograd.cli.main import command, main, verbs
from chronograd.errors import InputError
from chronograd.hardware import market
from chronograd.models.names import check_not_large
from chronograd.recipes import RECIPES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_have_existing_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


# Pages whose blocks run: `console` shows the output of its commands, `python` runs by itself.
RUNNING = [
    ROOT / "README.md",
    ROOT / "docs" / "README.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "large-models.md",
    *(ROOT / "docs").glob("guides/*.md"),
]


def shown_commands() -> list[tuple[Path, str, str]]:
    """Return page, command and shown output for each command of a `console` block."""
    found = []
    for page in sorted(RUNNING):
        for block in blocks(page, "console"):
            for part in block.split("$ chronograd ")[1:]:
                line, _, shown = part.partition("\n")
                found.append((page, line, shown))
    return found


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    lines += [f"chronograd {line}" for _, line, _ in shown_commands()]
    return sorted({line.partition("#")[0].strip() for line in lines if line.startswith("chronograd ")})


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_docs_parse(line: str) -> None:
    """Verbs and options exist, and required arguments are present. Nothing runs."""
    words = shlex.split(line)[1:]
    if "--trust" in words:  # an option of every verb, which the parser puts before the verb
        at = words.index("--trust")
        del words[at : at + 2]
    verb, *arguments = words
    root = click.Context(command, **command.context_settings)
    found = command.get_command(root, verb)
    assert found is not None, f"there is no verb {verb}"
    found.make_context(verb, arguments, parent=root)


@pytest.mark.parametrize(
    ("page", "line", "shown"),
    shown_commands(),
    ids=[f"{page.stem}-{line.split()[0]}" for page, line, _ in shown_commands()],
)
def test_pages_show_the_output_of_their_commands(
    page: Path, line: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three dots stand for omitted lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(market, "today", lambda: date(2026, 11, 22))  # prices age
    assert main(shlex.split(line)) == 0
    printed = capsys.readouterr().out
    for piece in re.split(r"^\.\.\.$", shown, flags=re.M):
        assert piece.strip(), f"{line} shows nothing"
        assert piece.strip() in printed
        printed = printed.partition(piece.strip())[2]


def test_readme_answers_three_questions() -> None:
    assert sum(page == ROOT / "README.md" for page, _, _ in shown_commands()) == 3


PYTHON_BLOCKS = [(page, block) for page in sorted(RUNNING) if page.parent != ROOT for block in blocks(page, "python")]


@pytest.mark.parametrize(("page", "block"), PYTHON_BLOCKS, ids=[page.stem for page, _ in PYTHON_BLOCKS])
def test_python_blocks_of_pages_run(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs its `sh` blocks; test_pages_show_the_output_of_their_commands checks its `console` blocks."""
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(ROOT / "docs" / "tutorial.md", "sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("chronograd ")]
    assert len(commands) >= 7
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out.strip(), line


def test_every_verb_has_json_and_help() -> None:
    for verb in verbs():
        found = command.get_command(click.Context(command), verb)
        assert found is not None
        for one in commands_of(found):
            assert "--json" in {name for p in one.params for name in p.opts}, f"{verb} has no --json"
            assert one.get_short_help_str()


def test_job_page_shows_the_example_and_every_recipe() -> None:
    page = ROOT / "docs" / "job-file.md"
    shown = yaml.safe_load(blocks(page, "yaml")[0])
    assert jobs.from_dict(shown) == jobs.load(ROOT / "examples" / "digits.yaml")
    assert all(f"`{name}`" in page.read_text() for name in RECIPES)


def test_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80


def test_readme_lists_features_that_are_not_run() -> None:
    """It once said that tensor parallelism is not run, after a backend had come."""
    limits = (ROOT / "README.md").read_text().partition("## What it is not for")[2].partition("\nGuides")[0]
    listed = re.findall(r"(pipeline|context|expert|tensor|data)\b", limits)
    assert listed == ["pipeline", "context", "expert"]
    assert not [name for name in jobs.BACKENDS for kind in listed if name.startswith(kind)]
    assert {"fsdp", "tensor_parallel"} <= {*jobs.BACKENDS}
    with pytest.raises(InputError, match="training is not there yet"):
        check_not_large("llama-3-8b")


def test_table_of_counts_matches_the_command() -> None:
    from chronograd.count.layers import summary
    from chronograd.count.network import trace_network

    text = (ROOT / "docs" / "counting.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)`[^|]*\| ([\d,]+) \| ([\d,]+) \| ([\d.]+) % \|$", text, re.M)
    assert len(rows) == 5
    for name, params, macs, share in rows:
        counted = summary(trace_network(name))
        assert f"{counted.params:,}" == params
        assert f"{counted.macs:,}" == macs
        assert f"{100 * counted.conv_share:.3f}" == share


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda p: p.name)
def test_examples_are_valid(path: Path) -> None:
    jobs.load(path)


@pytest.mark.netns
def test_namespace_recipe_creates_and_removes_hosts() -> None:
    """The test runs the printed recipe with unique names."""
    (recipe,) = (block for block in blocks(ROOT / "docs" / "clusters.md", "sh") if "ip netns add" in block)
    mine = f"cg{os.getpid()}d"  # `benchmarks.network` removes these names if this process was killed
    recipe = recipe.replace("slow0", f"{mine}b").replace("h$i", f"{mine}n$i").replace(f"{mine}b{mine}n", f"{mine}v")
    chosen = (
        f"ip netns exec {mine}n1 tc qdisc show dev eth0 && ip netns exec {mine}n1 ping -c 1 -W 5 10.9.1.2 >/dev/null"
    )
    recipe = re.sub(r"^chronograd .*$", f"{chosen} || ip -n {mine}n2 addr show eth0", recipe, flags=re.M)
    done = subprocess.run(["bash", "-ec", recipe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rate 50Mbit burst 256Kb" in done.stdout
    assert mine not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout


def test_reference_follows_from_the_declarations() -> None:
    reference = runpy.run_path(str(ROOT / "tools" / "reference.py"))
    hint = "run python tools/reference.py"
    assert (ROOT / "docs" / "reference.md").read_text() == reference["page"](), hint
    assert json.loads((ROOT / "docs" / "requests.schema.json").read_text()) == reference["schemas"](), hint
