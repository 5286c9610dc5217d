"""Writes docs/platform-files.md, one job as the file of each platform, and docs/platform-fields.csv, which field says what.

python -m benchmarks.platforms
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from chronograd.clouds import field_map
from chronograd.files import write_aside

DOCS = Path(__file__).parent.parent / "docs"
_HEAD = """\
# One job on every platform

ResNet-20 on digits on one CPU machine, as `chronograd launch PLATFORM` renders it with the options of
`chronograd.clouds.example`: addresses, roles and names are nobody's. Which field says what is in
[platform-fields.csv](platform-fields.csv), by `chronograd platforms --fields` and in the study
[platforms](studies/platforms/README.md). Nothing here was sent to a vendor ([platforms](platforms.md)). The page and the table are
made by `python -m benchmarks.platforms`."""


def files_page() -> str:
    blocks = [_HEAD]
    for made in field_map.files():
        language = made["file"].rpartition(".")[2]
        blocks.append(f"## {made['platform']}: `{made['file']}`\n\n```{language}\n{made['text'].rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def fields_csv() -> str:
    """A line for each word and platform; several paths or arguments are separated by blanks."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["word", "platform", "paths", "arguments"])
    for row in field_map.field_map():
        writer.writerow([row["word"], row["platform"], " ".join(row["paths"]), " ".join(row["arguments"])])
    return out.getvalue()


def main() -> None:
    for name, text in (("platform-files.md", files_page()), ("platform-fields.csv", fields_csv())):
        write_aside(DOCS / name, text)
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
