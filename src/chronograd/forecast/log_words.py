"""The words of a column's name: which name a counter, a split of the data, a metric, or a learning rate.

The readers of logs and of learning curves share these lists, so a word means the same in a table and in a printed line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

Metric = Literal["loss", "accuracy", "return"]
Unit = Literal["epoch", "step", "episode", "row"]

MAX_NAMES = 4096  # remembered, as the lines of a log repeat their names
# Names of counters as words, in search order.
STEPS = ("epoch", "epochs", "train epoch", "epoch num", "metadata epoch num", "step", "steps", "global step",
         "trainer global step", "train global step", "charts global step", "iteration", "iter", "iters",
         "training iteration", "num updates", "time total timesteps", "total timesteps", "timesteps total", "num env steps",
         "time iterations", "time episodes", "episode", "episodes", "metadata step num", "number of trees", "server round", "round",
         "kimg", "totalenvinteracts", "k", "x")  # fmt: skip
# The last word of a counter's name in a printed line. A plural of epoch counts only as `epochs 3/90`.
_EPOCHS = {"epoch", "epochs"}
_STEPS = {"iter", "iters", "iteration", "iterations", "step", "steps", "it", "update", "updates", "batch", "minibatch", "timestep",
          "timesteps"}  # fmt: skip
# Words before it that make it another number, such as a limit.
_NO_COUNTER = {"num", "total", "max", "per", "warmup", "every", "save", "saving", "logging", "accumulation", "best", "gradient",
               "min", "decay", "of", "remaining", "last", "time"}  # fmt: skip

# The words of each split, in the order of preference for a result: held-out data first, then no split, then training.
SPLITS: tuple[set[str], ...] = (
    {"val", "valid", "validation", "eval", "evaluation", "dev", "cv"},
    {"test", "testing"},
    set(),
    {"train", "training"},
)
NO_SPLIT = 2  # the position of no split
HELD_OUT = SPLITS[0] | SPLITS[1]
_SPLIT_WORDS = HELD_OUT | SPLITS[3]

_LOSSES = {"loss", "nll", "perplexity", "ppl", "error", "err", "wer", "cer", "mse", "rmse", "mae"}
_ACCURACIES = {"accuracy", "accuracies", "acc", "top1", "acc1", "prec1"}
_FIRST_OF = ("top 1", "acc 1", "prec 1")  # top-1, Acc@1, Prec@1
_RETURNS = {"return", "returns", "reward", "rewards", "rew"}
# Other scores whose best value is 100 %.
_SHARES = re.compile(r"(?:.{0,200} )?(?:[cmb]?ap|map\d{0,4}|m?iou|miou|f1|dice|auc|auroc|mcc)(?: .*)?")
_OF_IMAGES = re.compile(r"\b(top|acc|prec) ?[15]\b")
_OF_TEXT = {"perplexity", "ppl", "wer", "cer", "bleu", "rouge", "token", "tokens"}
_RATE = re.compile(r"(?:.{0,200} )?(?:lr\d*|learning ?rate)(?: .*)?")
_NO_RATE = {"scale", "mult", "decay", "factor", "ratio", "warmup", "max", "min", "scheduler"}


@lru_cache(MAX_NAMES)
def words(name: str) -> str:
    """Return a column's name in lower case with blanks between its words; for W&B charts without the run's name.

    >>> words("Accuracy/val"), words("worldly-sun-3 - val_acc"), words("_step")
    ('accuracy val', 'val acc', 'step')
    """
    return re.sub(r"[^a-z0-9]+", " ", name.rpartition(" - ")[2].lower()).strip()


def named(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Return the names whose words are in `wanted`, in that order."""
    by_words = {words(name): name for name in reversed(list(names))}
    return [by_words[kind] for kind in wanted if kind in by_words]


def unit_of(counter: str) -> Unit:
    """Return the unit that a counter's name counts.

    >>> unit_of("metadata/epoch_num"), unit_of("episode"), unit_of("#Iters")
    ('epoch', 'episode', 'step')
    """
    text = words(counter)
    return "epoch" if "epoch" in text else "episode" if "episode" in text else "step"


@lru_cache(MAX_NAMES)
def counter_of(name: str, has_total: bool = False) -> str | None:
    """Return `epoch` or `iter` for the name of a counter in a printed line; None for another name.

    >>> [counter_of(name) for name in ("Train Epoch", "Epoch(val)", "global_step", "warmup steps", "epochs", "loss")]
    ['epoch', 'epoch', 'iter', None, None, None]
    """
    *before, last = [word for word in words(name).split() if word not in _SPLIT_WORDS] or [""]
    if last not in _EPOCHS | _STEPS or _NO_COUNTER & set(before):
        return None
    if last in _STEPS:
        return "iter"
    return "epoch" if last == "epoch" or has_total else None


@lru_cache(MAX_NAMES)
def metric_of(name: str) -> Metric | None:
    """Return the metric that a column's name indicates.

    >>> metric_of("Accuracy/val"), metric_of("eval_loss"), metric_of("epoch")
    ('accuracy', 'loss', None)
    """
    text = words(name)
    parts = set(text.split())
    if parts & _LOSSES or text.endswith("loss") or "cross entropy" in text:
        return "loss"
    if parts & _ACCURACIES or text.endswith(("accuracy", *_FIRST_OF)):
        return "accuracy"
    if parts & _RETURNS or name == "r":  # the column of Stable-Baselines3's monitor files
        return "return"
    return "accuracy" if is_score(name) else None


def is_score(name: str) -> bool:
    """Return whether a column holds a score such as mAP, IoU or AUC, which is not an accuracy.

    >>> is_score("metrics/mAP50(B)"), is_score("val_acc")
    (True, False)
    """
    return _SHARES.fullmatch(words(name)) is not None


def are_of_images(names: Iterable[str]) -> bool | None:
    """Return whether the columns of a log are those of an image classifier; None if they do not show it.

    True with top-1 or top-5 accuracies. False with numbers of language models or the prefix of Hugging Face's Trainer, which
    mostly fine-tunes.

    >>> are_of_images(["eval_loss", "eval_top1"]), are_of_images(["eval_accuracy"]), are_of_images(["val_loss", "val_acc"])
    (True, False, None)
    """
    every = [words(name) for name in names]
    if any(_OF_IMAGES.search(text) for text in every):
        return True
    is_other = any(text.startswith("eval ") or _OF_TEXT & set(text.split()) for text in every)
    return False if is_other else None


def is_rate(name: str) -> bool:
    """Return whether a column holds a learning rate.

    >>> [is_rate(name) for name in ("lr-SGD", "train/learning_rate", "x/lr0", "lr/pg0", "blur", "lr_found", "lr_scale")]
    [True, True, True, True, False, True, False]
    """
    return _RATE.fullmatch(words(name)) is not None and not _NO_RATE & set(words(name).split())


def split_rank(name: str) -> int:
    """Return the position in `SPLITS` of the split that a name has; that of no split without one."""
    parts = set(words(name).split())
    return next((at for at, split in enumerate(SPLITS) if parts & split), NO_SPLIT)


@lru_cache(MAX_NAMES)
def without_split(name: str) -> str:
    """Return the words of a name that name no split."""
    return " ".join(word for word in words(name).split() if word not in _SPLIT_WORDS)
