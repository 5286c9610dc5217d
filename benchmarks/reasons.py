"""What stands in the way of a better figure, by source: text for docs/accuracy.md, kept beside the rules it explains."""

from __future__ import annotations

# The start of a source's title → a paragraph.
REASONS: dict[str, str] = {}
