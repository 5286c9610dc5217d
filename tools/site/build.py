"""Build the documentation site in build/site from docs/, the declarations of the verbs, and the studies' results.

    python tools/site/build.py [--external] [--without-reports]

The pages under docs/ are written for GitHub. This script copies them to build/site-source with the few changes that a site
needs: README.md becomes index.md, a figure gets a dark twin, and links out of docs/ become text. It adds the pages that are
generated: the Python API, the list of schemas, the navigation, and the report of each study.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from chronograd.figure import PALETTE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DOCS = ROOT / "docs"
SOURCE, SITE, EXTRA = ROOT / "build" / "site-source", ROOT / "build" / "site", ROOT / "build" / "site-extra"
# Pages outside docs/ that the site shows, and their names there.
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--external", action="store_true", help="also check links to other sites")
    parser.add_argument("--without-reports", action="store_true", help="leave out the reports of the studies")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from links import check_links

    start = time.monotonic()
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    EXTRA.mkdir(parents=True, exist_ok=True)
    reports = [] if arguments.without_reports else write_reports()
    stage(reports)
    if sphinx("html", SITE, *(["-D", f"html_extra_path={EXTRA}"] if reports else [])) != 0:
        return 1
    found = check_links(SITE)
    for problem in found.problems:
        print(problem, file=sys.stderr)
    print(
        f"{found.pages} pages, {found.links:,} internal links checked, {len(found.problems)} problems; clicks to the "
        f"furthest page: {found.clicks}; {time.monotonic() - start:.0f} s. Open {SITE / 'index.html'}"
    )
    if found.problems or (arguments.external and sphinx("linkcheck", ROOT / "build" / "site-links") != 0):
        return 1
    return 0


def sphinx(builder: str, out: Path, *options: str) -> int:
    """Run Sphinx with warnings as errors."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, "-c", str(HERE), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    cache = ROOT / "build" / "site-cache"
    return subprocess.run([*command, "-d", str(cache), str(SOURCE), str(out)], env=environment, check=False).returncode


def stage(reports: list[str]) -> None:
    """Write the pages for Sphinx."""
    for path in sorted(DOCS.rglob("*")):
        if path.suffix in (".md", ".svg", ".png", ".gif", ".json", ".csv") and path.name != "results.json":
            write(path, staged(path))
    for name, new in OUTSIDE.items():
        write(ROOT / name, Path(new))
    (SOURCE / "api.md").write_text(api_page(), encoding="utf-8")
    (SOURCE / "schemas.md").write_text(schemas_page(), encoding="utf-8")
    for name in reports:
        with (SOURCE / "studies" / name / "index.md").open("a", encoding="utf-8") as page:
            page.write('\n<p><a href="report.html">Full report</a>, with every table, on one page</p>\n')
    if reports:
        links = " · ".join(f'<a href="{name}/report.html">{name}</a>' for name in reports)
        with (SOURCE / "studies" / "index.md").open("a", encoding="utf-8") as page:
            page.write(f"\n## Full reports\n\n<p>{links}</p>\n")
    add_navigation()


def staged(path: Path) -> Path:
    """Return the staged place of a page of docs/."""
    place = path.relative_to(DOCS)
    return place.with_name("index.md") if place.name == "README.md" else place


def write(path: Path, place: Path) -> None:
    """Copy a page or a picture; links of a page change to the staged places of their targets."""
    target = SOURCE / place
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        target.write_text(for_site(path.read_text(encoding="utf-8"), path, place), encoding="utf-8")
    elif path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        target.write_text(text, encoding="utf-8")
        target.with_name(f"{target.stem}-dark.svg").write_text(dark(text), encoding="utf-8")
    else:
        shutil.copyfile(path, target)


def for_site(text: str, path: Path, place: Path) -> str:
    """Return the text of a page for the site: its links, and no line break between a number and %. Code stays as it is."""
    parts = re.split(r"(^```.*?^```|^#[^\n]*$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith(("```", "#")) else _prose(part, path, place) for part in parts)


def _prose(text: str, path: Path, place: Path) -> str:
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", _LINK.sub(functools.partial(_link, path, place), text))


def _link(path: Path, place: Path, match: re.Match[str]) -> str:
    mark, text, target = match.groups()
    name, hash_, anchor = target.partition("#")
    if not name or name.startswith(("http:", "https:", "mailto:")):
        return match[0]
    goal = (path.parent / name).resolve()
    if mark and goal.suffix == ".svg":
        other = f"{target.removesuffix('.svg')}-dark.svg"
        return f"![{text}]({target}){{.only-light}} ![{text}]({other}){{.only-dark}}"
    if goal == ROOT / "README.md":
        new = Path("index.md")
    elif goal.is_relative_to(DOCS) and goal.is_dir():
        new = Path(f"{goal.relative_to(DOCS)}.md")
    elif goal.is_relative_to(DOCS):
        new = staged(goal)
    elif goal.parent == ROOT and goal.name in OUTSIDE:
        new = Path(OUTSIDE[goal.name])
    else:
        return text  # source code and examples are not part of the site
    return f"{mark}[{text}]({os.path.relpath(new, place.parent)}{hash_}{anchor})"


def dark(drawing: str) -> str:
    """Return a figure with the dark colour of each light one of the palette."""
    pairs = {light.lower(): night for light, night in PALETTE.values()}
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: pairs.get(match[0].lower(), match[0]), drawing)


def add_navigation() -> None:
    """Add tables of contents to the index pages, and fail if a page is in none of them."""
    contents = tomllib.loads((HERE / "contents.toml").read_text(encoding="utf-8"))
    named = {"index"}
    for part in contents["part"]:
        named |= add_toctree("index", [page for entry in part["pages"] for page in pages_of(entry)], part["title"])
    for page, entry in contents["children"].items():
        named |= add_toctree(page, [one for one in pages_of(entry) if one != page])
    forgotten = sorted(set(pages_of("**/*")) - named)
    if forgotten:
        raise SystemExit(f"tools/site/contents.toml names no part for {', '.join(forgotten)}")


def pages_of(entry: str) -> list[str]:
    if "*" not in entry:
        return [entry]
    return [str(path.relative_to(SOURCE).with_suffix("")) for path in sorted(SOURCE.glob(f"{entry}.md"))]


def add_toctree(page: str, pages: list[str], caption: str = "") -> set[str]:
    lines = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    lines += [p.replace("<", "</") if "<" in p else f"/{p}" for p in pages]
    with (SOURCE / f"{page}.md").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", *lines, "```", ""]))
    return {p.rpartition("<")[2].rstrip(">") for p in pages}


def schemas_page() -> str:
    """List the JSON Schemas of docs/schemas."""
    rows = [f"- [{path.name}](schemas/{path.name})" for path in sorted((DOCS / "schemas").glob("*.json"))]
    intro = (
        "Each file describes what one verb prints with `--json`. [requests.schema.json](requests.schema.json) describes"
    )
    return "\n".join(["# JSON Schemas", "", f"{intro} the arguments of all verbs.", "", *rows, ""])


def api_page() -> str:
    """Document every public function of `chronograd` by its declaration, and the classes that callers use."""
    import chronograd
    from chronograd import api
    from chronograd.cli.main import groups

    names = set(chronograd.__all__)
    parts = [
        "# Python API\n\nEvery public function of the package. [From Python](python.md) explains answers and records with examples;",
        "the [reference](reference.md) lists the same verbs for the command line.\n\n```{eval-rst}\n.. currentmodule:: chronograd\n```\n",
    ]
    for group, verbs in groups().items():
        own = sorted(name for name in names if name.split("_")[0] in verbs and name != "keep_freed_memory")
        if own:
            parts += [f"## {group}\n", *(_function(name, getattr(api, name)) for name in own)]
            names -= set(own)
    parts += ["## Around a loop, and in a notebook\n", *(_function(name, getattr(api, name)) for name in sorted(names))]
    parts.append("## Answers and records\n")
    for name in ("answer.Answer", "answer.Section", "answer.Table", "record.Record", "record.Quantity", "job.Job"):
        parts.append(
            f"```{{eval-rst}}\n.. autoclass:: chronograd.{name}\n   :members:\n   :exclude-members: model_config\n```\n"
        )
    return "\n".join(parts)


def _function(name: str, function: object) -> str:
    from sphinx.ext.napoleon import Config
    from sphinx.ext.napoleon.docstring import GoogleDocstring
    from sphinx.util.inspect import stringify_signature

    assert callable(function)
    shown = stringify_signature(inspect.signature(function), unqualified_typehints=True)
    text = str(GoogleDocstring(inspect.getdoc(function) or "", Config(napoleon_use_param=True)))
    body = "\n".join(f"   {line}".rstrip() for line in text.splitlines())
    return f"```{{eval-rst}}\n.. py:function:: {name}{shown}\n\n{body}\n```\n"


def write_reports() -> list[str]:
    """Write the report of each study from its results, unless it is newer than the results and the code; return the names."""
    from chronograd.report.html import render_html
    from chronograd_lab.common.results import Results
    from chronograd_lab.studies import find

    files = [Path(__file__), *(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".j2", ".css"))]
    code = max(path.stat().st_mtime for path in files)
    names = []
    for results in sorted((DOCS / "studies").glob("*/results.json")):
        name = results.parent.name
        report = EXTRA / "studies" / name / "report.html"
        names.append(name)
        if report.exists() and report.stat().st_mtime > max(code, results.stat().st_mtime):
            continue
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(on_site(render_html(find(name).page(Results.load(results)))), encoding="utf-8")
    return names


def on_site(report: str) -> str:
    """Return a report with a link back to its study, in the theme that the reader chose on the site."""
    script = f"""<script>
const theme = localStorage.getItem("theme"), palette = {json.dumps(PALETTE)};
if (theme === "light" || theme === "dark")
  for (const name in palette) document.documentElement.style.setProperty("--c-" + name, palette[name][theme === "dark" ? 1 : 0]);
</script>"""
    back = '<p class="kicker"><a href="index.html" style="color: inherit">← Back to the study</a></p>'
    return report.replace("<body>\n", f"<body>\n{script}\n{back}\n", 1)


if __name__ == "__main__":
    raise SystemExit(main())
