"""Check the links of a built site: each leads to a file that exists, and to an anchor in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Pages that Sphinx generates for its own use.
NOT_READ = {"genindex.html", "search.html", "py-modindex.html"}


@dataclass
class Checked:
    """The result of a check: the numbers of pages and links, the largest number of clicks to a page, and the broken links."""

    pages: int = 0
    links: int = 0
    clicks: int = 0
    problems: list[str] = field(default_factory=list)


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)
            elif value and ((name == "href" and tag in ("a", "link")) or (name == "src" and tag in ("img", "script"))):
                self.links.append(value)


def check_links(site: Path, first: str = "index.html") -> Checked:
    """Check all internal links of the pages under `site`, and the way from its first page to each."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    found = Checked(pages=len([path for path in pages if path.name not in NOT_READ]))
    to: dict[Path, set[Path]] = {path: set() for path in pages}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            found.links += 1
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not goal.exists():
                found.problems.append(f"{path.relative_to(site)}: {link} leads to no file")
            elif goal in pages:
                to[path].add(goal)
                anchor = unquote(parts.fragment)
                if anchor and anchor not in pages[goal].anchors:
                    found.problems.append(f"{path.relative_to(site)}: {link} has no such anchor")
    clicks = {site / first: 0}
    queue = deque(clicks)
    while queue:
        path = queue.popleft()
        for goal in to[path] - clicks.keys():
            clicks[goal] = clicks[path] + 1
            queue.append(goal)
    unreached = [path for path in pages if path not in clicks and path.name not in NOT_READ]
    found.problems += [f"{path.relative_to(site)}: no link leads to this page" for path in unreached]
    found.clicks = max(clicks.values())
    if found.clicks > 2:
        far = sorted(str(path.relative_to(site)) for path, n in clicks.items() if n > 2 and path.name not in NOT_READ)
        found.problems += [f"{name}: more than two clicks from the first page" for name in far]
    return found
