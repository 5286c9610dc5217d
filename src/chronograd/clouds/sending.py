"""Sending a rendered file for `launch --submit`: the platform's program, which has the user's credentials, gets it; its reply
is shown.
"""

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
# Characters to show from the end of a program's output, without colours.
MAX_LETTERS = 1500
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Tool:
    """The program of a platform.

    Attributes:
        install: how to install it.
        who: arguments with which it fails without credentials; none if sending a file already reports that.
        login: the command that gets credentials.
        words: arguments that send a file, by its path and the document in it.
        part: key of the part of the document to send instead of the complete document.
    """

    program: str
    install: str
    who: tuple[str, ...]
    login: str
    words: Callable[[str, Mapping[str, Any]], Sequence[str]]
    part: str = ""


def send(title: str, tool: Tool, path: Path, document: Mapping[str, Any]) -> str:
    """Send a file. Returns the program's reply when the platform accepts it.

    Raises RunError with the missing part and the command to type: the program, credentials, or the platform's refusal.
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
    # Show only errors of its reply: some programs print a token on standard output.
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
