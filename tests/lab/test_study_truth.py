"""The option --truth: files that score predictions."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from chronograd.errors import InputError
from chronograd_lab.studies import find
from chronograd_lab.verbs.study import _check_truth


def test_files_need_the_truth_option() -> None:
    with_truth, without = find("depth-and-device"), find("cutout")
    _check_truth(without, [], [], report_only=False)
    _check_truth(with_truth, [Path("a")], [Path("b")], report_only=False)
    with pytest.raises(click.UsageError, match="belongs to no option"):
        _check_truth(with_truth, [], [Path("b")], report_only=False)
    with pytest.raises(InputError, match="no predictions"):
        _check_truth(without, [Path("a")], [], report_only=False)
    with pytest.raises(InputError, match="results that are there"):
        _check_truth(with_truth, [Path("a")], [], report_only=True)
