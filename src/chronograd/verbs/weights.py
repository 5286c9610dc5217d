"""`weights`: pretrained weights that a job can start from, with their source and their place on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from chronograd.errors import InputError
from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.request import Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class PretrainedList(Request):
    """List pretrained weights: network, accuracy, licence, size, digest, address, and the place on this machine.

    WHAT is a network, a file of the list, or a library (torchvision, timm) for the default weights of its networks. A job loads
    a file of the list by its name: network.weights=FILE.
    """

    verb = "weights"
    examples = (
        "chronograd weights --list",
        "chronograd weights timm:tf_efficientnet_lite0 --full",
        "chronograd weights torchvision --json",
    )

    what: Annotated[str | None, Spelling(metavar="[WHAT]", is_argument=True, complete=complete_jobs)] = None
    list: bool = False
    """List the files that a job can load by their name; also the default."""

    def answer(self) -> Answer:
        from chronograd.models import weight_list

        if self.list and self.what is not None:
            raise InputError("--list shows all files", "leave out --list, or the name")
        return weight_list.listed(self.what)


REQUESTS = (PretrainedList,)
