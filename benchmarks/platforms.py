"""Writer of docs/platform-files.md, one job as the file of each platform, and docs/platform-fields.csv, the map of fields.

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

How does the same job look on each platform? This page has the files that `chronograd launch PLATFORM` renders for ResNet-20 on
digits on one CPU machine. The options are those of `chronograd.clouds.example`; addresses, roles and names are invented.
[platform-fields.csv](platform-fields.csv), `chronograd platforms --fields` and the study [platforms](studies/platforms/README.md) show
the meaning of each field. No file was sent to a vendor ([platforms](platforms.md)). `python -m benchmarks.platforms` writes this page
and the table."""


def files_page() -> str:
    blocks = [_HEAD]
    for made in field_map.files():
        language = made["file"].rpartition(".")[2]
        blocks.append(f"## {made['platform']}: `{made['file']}`\n\n```{language}\n{made['text'].rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def fields_csv() -> str:
    """Return a line for each word and platform; blanks separate several paths or arguments."""
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
