"""`launch --submit`: a rendered file handed to the platform's own program, which has the user's credentials; what it says is passed on."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd.errors import RunError
from chronograd.files import write_aside

PATIENCE_S = 600.0
# Of what a program printed the end, and without colours.
MAX_LETTERS = 1500
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Tool:
    """A platform's own program.

    Attributes:
        install: what to type where it is not there.
        who: arguments with which it fails if it has no credentials; none if it says so itself when it is sent a file.
        login: what to type then.
        words: arguments that send a file, by its path and the document in it.
        part: key of the document that it takes in place of the whole.
    """

    program: str
    install: str
    who: tuple[str, ...]
    login: str
    words: Callable[[str, Mapping[str, Any]], Sequence[str]]
    part: str = ""


def send(title: str, tool: Tool, path: Path, document: Mapping[str, Any]) -> str:
    """Send a file that was written. Returns what the program said when it took it.

    Raises RunError that says what is missing and what to type: the program, credentials, or what the platform refused.
    """
    if tool.part:
        path = path.with_suffix(f".{tool.part}.json")
        write_aside(path, json.dumps(document[tool.part], indent=2) + "\n")
    command = [tool.program, *tool.words(str(path), document)]
    by_hand = f"send the file: {shlex.join(command)}"
    if shutil.which(tool.program) is None:
        raise RunError(
            f"nothing was sent: {title} is reached with {tool.program}, which is not on this machine",
            f"{tool.install}; {tool.login}; then {by_hand}",
        )
    # Of its answer only errors are shown: on standard output some print a token.
    if tool.who and (asked := _run([tool.program, *tool.who])).returncode:
        raise RunError(
            f"nothing was sent: {tool.program} has no credentials for {title}; it says: {_end(asked.stderr)}",
            f"{tool.login}; then {by_hand}",
        )
    done = _run(command)
    if done.returncode:
        raise RunError(
            f"{title} did not take the job; {tool.program} says: {_end(done.stderr or done.stdout)}",
            f"where credentials or a region are missing: {tool.login}; then {by_hand}",
        )
    return _end(done.stdout or done.stderr)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"{shlex.join(command)} did not end in {PATIENCE_S:g} s", "see with the platform whether the job is there"
        ) from None


def _end(printed: str) -> str:
    return _COLOUR.sub("", printed).strip()[-MAX_LETTERS:] or "nothing"
