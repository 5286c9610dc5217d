"""Errors in a submission, before any platform sees it. Each complaint states the problem, the value, and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from chronograd.clouds.fields import CloudPlatform, is_empty
from chronograd.clouds.instances import misfit, nodes_of
from chronograd.clouds.submission import OPTIONS, Submission
from chronograd.errors import ChronogradError, InputError, did_you_mean
from chronograd.words import how_many

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Names that we use in addition to the job's: a channel or variable with such a name would be mistaken for ours.
_TAKEN = ("output", "checkpoints")
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)(_|$)"
)
# The form of keys of well-known services.
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{35}|-----BEGIN [A-Z ]*PRIVATE KEY-----|(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"
    r"|[a-z0-9+.-]://[^/\s:@]+:[^/\s@]+@"
)


def check(platform: CloudPlatform, asked: Submission) -> None:
    """Raise InputError with every complaint, if there is one."""
    told = complaints(platform, asked)
    if told:
        what = told[0] if len(told) == 1 else f"{len(told)} things are wrong\n  " + "\n  ".join(told)
        raise InputError(
            f"{platform.title} could not run this: {what}",
            f"`chronograd platforms --full` shows the instance types and the required options of {platform.title}",
        )


def complaints(platform: CloudPlatform, asked: Submission) -> list[str]:
    """Return all errors in a submission, one line each."""
    return [
        *_missing(platform, asked),
        *_machines(platform, asked),
        *_amounts(asked),
        *_addresses(platform, asked),
        *_variables(platform, asked),
        *_plain_secrets(asked),
        *platform.complain(asked),
    ]


def of_file(platform: CloudPlatform, asked: Submission) -> list[str]:
    """Return all errors in the submission of a file, with the file's fields in place of the options of `chronograd launch`."""
    words = {option: word for word, option in OPTIONS.items()}

    def field(match: re.Match[str]) -> str:
        return platform.path(words.get(match[1], match[1])) or match[0]

    return [re.sub(r"--([a-z][a-z_]+)", field, line) for line in complaints(platform, asked)]


def _missing(platform: CloudPlatform, asked: Submission) -> Iterator[str]:
    for word, example in platform.needs.items():
        if is_empty(getattr(asked, word)):
            yield f"there is no {word}: {example}"
    if re.search(r"\s", asked.image):
        yield f"--image is {asked.image!r:.80}, with a blank in it"
    if asked.job.mode == "inference":
        yield "mode is inference, and a job of a platform trains: mode=training"
    if asked.job.backend not in platform.backends:
        known = ", ".join(platform.backends)
        yield f"backend {asked.job.backend} cannot be started there: its nodes start ranks of {known}"
    if asked.job.backend == "single" and asked.job.cluster.count > 1:
        yield f"cluster.count is {asked.job.cluster.count} and backend is single, which has one rank: backend=ddp"


def _machines(platform: CloudPlatform, asked: Submission) -> Iterator[str]:
    instance = platform.instance(asked)
    if instance is None:
        known = [one.name for one in platform.catalogue.instance]
        yield f"unknown instance type {asked.instance!r:.60}{did_you_mean(asked.instance, known)}"
        return
    try:
        if problem := misfit(instance, asked.job):
            yield f"{instance.name}: {problem}"
        elif asked.nodes != (wanted := nodes_of(instance, asked.job)):
            yield f"it asks for {how_many(asked.nodes, 'nodes')}, and cluster.count={asked.job.cluster.count} takes {wanted} of {instance.name}"
    except ChronogradError as error:
        yield error.message
    if asked.devices != instance.count:
        yield f"it asks for {how_many(asked.devices, 'GPUs')} of a node, and {instance.name} has {instance.count}"
    if asked.nodes > 1 and asked.job.backend not in ("ddp", "single"):
        yield f"backend {asked.job.backend} has its ranks on one node, and this takes {asked.nodes}: backend=ddp"


def _amounts(asked: Submission) -> Iterator[str]:
    if asked.limit_s is not None and asked.limit_s < 1:
        yield f"the time limit is {asked.limit_s} s: give 1 s or more"
    if asked.max_cost_usd is not None and asked.max_cost_usd <= 0:
        yield f"the cost limit is {asked.max_cost_usd:g} dollars: give more than 0"
    if asked.restarts < 0:
        yield f"--restarts is {asked.restarts}: give 0 or more"
    if asked.disk_gb < 1:
        yield f"--disk is {asked.disk_gb} GB: give 1 or more"
    if asked.nodes < 1:
        yield f"it asks for {how_many(asked.nodes, 'nodes')}: give 1 or more"
    if asked.spot and not (asked.checkpoints or asked.output):
        yield "--spot without a place for checkpoints: what is interrupted would start over; give --checkpoints ADDRESS"


def _addresses(platform: CloudPlatform, asked: Submission) -> Iterator[str]:
    places = {**{f"--data {name}": one for name, one in asked.data.items()}}
    places |= {f"--{word}": one for word in ("output", "checkpoints") if (one := getattr(asked, word))}
    for where, address in places.items():
        scheme = next((one for one in platform.schemes if address.startswith(one)), None)
        if scheme is None:
            yield f"{where} is {address!r:.80}: {platform.title} reads addresses such as {platform.schemes[0]}..."
        elif not address.removeprefix(scheme).strip("/"):
            yield f"{where} is {address!r:.80}, which names no place"
    for name in asked.data:
        if not _CHANNEL.fullmatch(name) or name in _TAKEN:
            yield f"--data has a channel {name!r:.60}: name it with small letters, digits and _, but not {' or '.join(_TAKEN)}"
    kind, colon, _ = asked.job.data.name.partition(":")
    if colon and kind in ("folder", "imagenet", "voc") and "data" not in asked.data:
        yield f"data.name is {asked.job.data.name!r:.60}, a path of this machine: --data data={platform.schemes[0]}... says where it is there"


def _variables(platform: CloudPlatform, asked: Submission) -> Iterator[str]:
    for name in (*asked.environment, *asked.secrets):
        if not _VARIABLE.fullmatch(name):
            yield f"variable {name!r:.60} is no name: letters, digits and _, no digit first"
    for name in asked.environment.keys() & asked.secrets.keys():
        yield f"{name} is both a variable and a secret"
    for name, value in asked.environment.items():
        if "\0" in value:
            yield f"variable {name} has a NUL in it, which no environment can hold"
    for name, reference in asked.secrets.items():
        if not platform.is_secret(reference):
            yield f"secret {name} is not a reference that {platform.title} knows; a value never goes into a file: keep it there and name it"


def _plain_secrets(asked: Submission) -> Iterator[str]:
    """Yield complaints about secrets in plain text. They never show the value, because output may be logged."""
    hint = "name the platform's own secret with --secret NAME=REFERENCE"
    for name, value in asked.environment.items():
        if value and (_SECRET_NAME.search(name.upper()) or _SECRET_VALUE.search(value)):
            yield f"variable {name} looks like a secret in plain text: {hint}"
    for where, values in _texts(asked).items():
        for name, value in values.items():
            if _SECRET_VALUE.search(value):
                yield f"{where} {name} holds what looks like a key: {hint}"


def _texts(asked: Submission) -> dict[str, Mapping[str, str]]:
    own = {word: str(getattr(asked, word) or "") for word in ("name", "image", "output", "checkpoints", "role")}
    return {"tag": asked.tags, "channel": asked.data, "secret": asked.secrets, "field": own}
