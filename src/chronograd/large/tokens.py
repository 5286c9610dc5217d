"""Tokens of a training: stated, of epochs, or to a loss by a scaling law.

    L(N, D) = E + A / N^α + B / D^β      loss in nats per token, N parameters, D training tokens

Two fits to the same runs have other constants: the authors' own, and one that reads the runs again from their figure. Their results
for D are the ends of an 80 % interval; its middle is their geometric mean.

Sources: Hoffmann et al. 2022, arXiv:2203.15556, equation 10; Besiroglu et al. 2024, arXiv:2404.10102.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chronograd.configs.work import params_by_kind
from chronograd.errors import InputError
from chronograd.large.setting import LargeSetting
from chronograd.record import Z80
from chronograd.words import listed

# Models and data of the runs behind the law: 70 million to 16 billion parameters, 5 to 500 billion tokens (the paper's abstract).
FEWEST_PARAMS, MOST_PARAMS = 70e6, 16.2e9
FEWEST_TOKENS, MOST_TOKENS = 5e9, 500e9
STATED = "stated"
VOCABULARY = 32_000  # of its tokenizer (SentencePiece, on MassiveText)


@dataclass(frozen=True)
class TrainingTokens:
    """The tokens of a whole training.

    Attributes:
        sigma_log: standard deviation of log(tokens).
        reached: probability that they reach the target.
        source: where the number comes from, in words.
        notes: sentences on the limits of that source, without their full stops.
    """

    tokens: float
    sigma_log: float = 0.0
    reached: float = 1.0
    source: str = STATED
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingLaw:
    """Constants of a fit of the law above."""

    authors: str
    least: float  # E
    of_params: float  # A
    params_power: float  # α
    of_tokens: float  # B
    tokens_power: float  # β

    def limit(self, params: float) -> float:
        """Return the loss of a model of this size after endless training."""
        return float(self.least + self.of_params / params**self.params_power)

    def loss(self, params: float, tokens: float) -> float:
        """Return the loss after a number of tokens.

        >>> round(LAWS[0].loss(70e9, 1.4e12), 2)
        1.94
        """
        return float(self.limit(params) + self.of_tokens / tokens**self.tokens_power)

    def tokens(self, params: float, loss: float) -> float:
        """Return the tokens to a loss; infinite if a model of this size never reaches it."""
        rest = loss - self.limit(params)
        return float((self.of_tokens / rest) ** (1 / self.tokens_power)) if rest > 0 else math.inf


LAWS = (
    ScalingLaw("Hoffmann et al. 2022", 1.69, 406.4, 0.34, 410.7, 0.28),
    ScalingLaw("Besiroglu et al. 2024", 1.8172, 482.01, 0.3478, 2085.43, 0.3658),
)


def of_epochs(epochs: float, tokens_per_epoch: float | None) -> TrainingTokens:
    """Return the tokens of some epochs. Raises InputError without the tokens of one."""
    if tokens_per_epoch is None:
        raise InputError(
            f"--epochs {epochs:g} needs the size of the data set in tokens",
            "add --tokens-per-epoch, such as --tokens-per-epoch 1B, or state all tokens with --tokens",
        )
    return TrainingTokens(epochs * tokens_per_epoch, source=f"{epochs:g} epochs of {billions(tokens_per_epoch)}")


def to_loss(setting: LargeSetting, loss: float) -> TrainingTokens:
    """Return the tokens to a loss by the scaling law. Raises InputError where the law has no support."""
    model, name = setting.model, setting.job.network.name
    params = sum(params_by_kind(model).values())
    refusals = _outside(setting, params)
    if refusals:
        raise InputError(
            f"no scaling law supports --target-loss for {name}: {listed(refusals)}",
            "state the tokens with --tokens, or give the log of a run with --curve FILE",
        )
    lowest = max(law.loss(params, MOST_TOKENS) for law in LAWS)
    highest = min(law.loss(params, FEWEST_TOKENS) for law in LAWS)
    if not lowest <= loss <= highest:
        raise InputError(
            f"a loss of {loss:g} is outside the data of the scaling law: {name} reaches {highest:.2f} with 5 billion tokens and "
            f"{lowest:.2f} with 500 billion",
            "give a loss between these, the tokens with --tokens, or the log of a run with --curve FILE",
        )
    found = [law.tokens(params, loss) for law in LAWS]
    fits = listed([f"{billions(tokens)} by {one.authors}" for one, tokens in zip(LAWS, found, strict=True)])
    return TrainingTokens(
        math.sqrt(found[0] * found[1]),
        abs(math.log(found[0] / found[1])) / (2 * Z80),
        source=f"scaling law to a loss of {loss:g}: {fits}",
        notes=(
            "The law was fitted to models of 70 million to 16 billion parameters, trained from scratch on 5 to 500 billion tokens of "
            "MassiveText",
            f"Its loss is in nats per token of a vocabulary of {VOCABULARY:,}. {name} has {model.vocabulary:,}, so the same text has "
            "another loss per token",
        ),
    )


def _outside(setting: LargeSetting, params: float) -> list[str]:
    """Return the reasons why the law has no support for a training."""
    model = setting.model
    kinds = {tensor.kind for tensor, _ in model.counted()}
    reasons = {
        "the law's models have no experts": "experts" in kinds,
        "the law's models have attention in every layer": "state space" in kinds,
        "the law's models predict the next token": model.family in ("bert", "vit", "t5", "mt5"),
        "the law's models are trained as a whole, without adapters": bool(setting.options.adapter_rank),
        f"it has {billions(params, 'parameters')}, and the law's models have 70 million to 16 billion": not (
            FEWEST_PARAMS <= params <= MOST_PARAMS
        ),
    }
    return [reason for reason, is_true in reasons.items() if is_true]


def billions(number: float, unit: str = "tokens") -> str:
    """Return a number of tokens or parameters in words.

    >>> billions(2e10), billions(1.35e12), billions(4.2e6)
    ('20 billion tokens', '1.35 trillion tokens', '4.2 million tokens')
    """
    scale, name = next(
        ((s, n) for s, n in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")) if number >= s), (1, "")
    )
    return " ".join(filter(None, (f"{number / scale:.3g}" if name else f"{number:,.0f}", name, unit)))
