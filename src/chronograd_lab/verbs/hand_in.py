"""`chronograd hand-in`: an exercise's answers as executed notebooks in an archive."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command("hand-in")
@click.option("--exercise", "number", type=click.Choice(["1", "2", "3"]), required=True, help="Which set of problems.")
@click.option("--id", "author", metavar="NAME", required=True, help="Whose it is; names of files begin with it.")
@click.option("--out", type=common.FILE, help="The archive; NAME_hwN.zip by default.")
@click.option("--studies", type=common.FOLDER, help="Results of studies; studies by default.")
@common.json_option
def command(number: str, author: str, out: Path | None, studies: Path | None, as_json: bool) -> None:
    """Save a notebook for each problem, executed, with its data.

    Answers are sections of studies and of concept pages; `chronograd study list` shows the studies. The folder of studies has NAME/results.json, or
    NAME-SIZE/results.json as `study run` makes it. The notebook states what is missing.

    \b
    chronograd hand-in --exercise 1 --id ab1234 --out ab1234_hw4.zip
    chronograd hand-in --exercise 3 --id ab1234 --studies studies
    """
    from chronograd.errors import InputError
    from chronograd_lab.exercises.hand_in import archive_name, hand_in
    from chronograd_lab.exercises.pages import STUDIES, Library
    from chronograd_lab.exercises.questions import catalogue

    exercise = catalogue().handed_in()[number]
    out = out or Path(f"{archive_name(exercise, author)}.zip")
    folder = studies or next((path for path in STUDIES if path.is_dir()), None)
    if folder is None or not folder.is_dir():
        raise InputError(
            f"{folder or 'studies'} is no folder",
            "name one with results of studies: --studies DIR; `study run` makes them",
        )
    written = hand_in(exercise, author, Library(folder), out)
    if as_json:
        common.print_json({"archive": str(out), "notebooks": written.notebooks, "notes": written.notes})
        return
    for note in written.notes:
        common.echo(f"note: {note}")
    common.echo(f"saved {out}: {', '.join(written.notebooks)}")
