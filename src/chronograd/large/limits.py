"""Limits of a layout: what must divide what."""

from __future__ import annotations

from collections.abc import Iterator

from chronograd.configs.description import AttentionPart, ExpertsPart, FeedForwardPart, LatentAttentionPart
from chronograd.errors import JobError
from chronograd.hardware import catalog
from chronograd.large.setting import LargeSetting

Limit = tuple[bool, str, str]  # whether it is violated, what is wrong, and what to do


def check(setting: LargeSetting) -> None:
    """Raise JobError for the first limit that a setting violates."""
    for limits in (_of_ranks, _of_batch, _of_matrices, _of_layers, _of_experts):
        for is_wrong, what, hint in limits(setting):
            if is_wrong:
                raise JobError(what, hint)


def _of_ranks(setting: LargeSetting) -> Iterator[Limit]:
    layout, ranks, cluster = setting.layout, setting.ranks, setting.job.cluster
    t, p, c = layout.tensor, layout.pipeline, layout.context
    yield (
        ranks % (t * p * c) > 0,
        f"cluster.count is {ranks}, which tensor · pipeline · context = {t} · {p} · {c} does not divide",
        "change the degrees of cluster.layout, or cluster.count",
    )
    per_node = cluster.per_node or catalog.device(cluster.device).node.devices_per_node
    yield (
        t > per_node,
        f"cluster.layout.tensor is {t}, and a node has {per_node} devices: tensor parallelism between nodes is not predicted",
        f"write {per_node} or less",
    )
    shards, replicas = layout.shard_ranks or 1, setting.data * c
    yield (
        replicas % shards > 0,
        f"cluster.layout.shard_ranks is {shards}, which does not divide the {replicas} data-parallel ranks",
        f"write a divisor of {replicas}",
    )
    yield (
        setting.training.zero_stage == 2 and p > 1,
        f"training.zero_stage is 2 and cluster.layout.pipeline is {p}: a pipeline adds up gradients over its micro-batches, so "
        "they cannot be sharded",
        "write training.zero_stage=1",
    )


def _of_batch(setting: LargeSetting) -> Iterator[Limit]:
    layout, training = setting.layout, setting.training
    parts = setting.data * setting.micro_batches
    yield (
        training.batch % parts > 0,
        f"training.batch is {training.batch}, no multiple of {setting.data} data-parallel ranks × {setting.micro_batches} "
        "micro-batches (training.accumulation)",
        f"write a multiple of {parts}",
    )
    yield (
        layout.chunks > 1 and setting.micro_batches % layout.pipeline > 0,
        f"training.accumulation is {setting.micro_batches}, no multiple of the {layout.pipeline} interleaved stages",
        f"write a multiple of {layout.pipeline}",
    )
    # Each context rank has an early and a late piece of a sequence, so that all see equally many positions.
    pieces = 2 * layout.context if layout.context > 1 else 1
    yield (
        setting.sequence % pieces > 0,
        f"cluster.layout.context is {layout.context}: {setting.sequence} tokens cannot be divided into {pieces} equal parts",
        "change the length of the sequences, or context",
    )
    tokens = setting.sequence // layout.context
    yield (
        tokens % setting.norm_share > 0,
        f"cluster.layout.tensor is {layout.tensor}, which does not divide a sequence of {tokens} tokens",
        "change the length of the sequences, or write cluster.layout.sequence=false",
    )


def _of_matrices(setting: LargeSetting) -> Iterator[Limit]:
    t = setting.layout.tensor
    for _, part in setting.model.parts():
        if isinstance(part, AttentionPart | LatentAttentionPart):
            yield (
                part.heads % t > 0,
                f"cluster.layout.tensor is {t}, which does not divide the {part.heads} heads",
                f"write a divisor of {part.heads}",
            )
        if isinstance(part, AttentionPart):
            yield (
                part.kv_heads % t > 0 and t % part.kv_heads > 0,
                f"cluster.layout.tensor is {t}, which neither divides nor repeats the {part.kv_heads} heads of keys and values",
                f"write a divisor or a multiple of {part.kv_heads}",
            )
        if isinstance(part, FeedForwardPart):
            yield (
                part.size % t > 0,
                f"cluster.layout.tensor is {t}, which does not divide the feed-forward size {part.size}",
                f"write a divisor of {part.size}",
            )


def _of_layers(setting: LargeSetting) -> Iterator[Limit]:
    layout = setting.layout
    layers, stages = sum(len(group.places) for group in setting.model.groups), layout.pipeline * layout.chunks
    stated = sum(layout.stage_layers)
    yield (
        bool(layout.stage_layers) and stated != layers,
        f"cluster.layout.stage_layers has {stated} layers, and the model {layers}",
        f"write numbers with the sum {layers}",
    )
    yield (
        not layout.stage_layers and layers % stages > 0,
        f"{stages} stages and chunks do not divide the {layers} layers",
        "state cluster.layout.stage_layers, or change cluster.layout.pipeline or chunks",
    )


def _of_experts(setting: LargeSetting) -> Iterator[Limit]:
    ranks, of_expert = setting.ranks // setting.layout.pipeline, setting.layout.expert
    experts = [part.experts for _, part in setting.model.parts() if isinstance(part, ExpertsPart)]
    yield (
        of_expert > 1 and not experts,
        f"cluster.layout.expert is {of_expert}, and the model has no experts",
        "leave it out",
    )
    for number in experts:
        yield (
            number % of_expert > 0,
            f"cluster.layout.expert is {of_expert}, which does not divide the {number} experts",
            f"write a divisor of {number}",
        )
    if experts:
        yield (
            ranks % (of_expert * setting.expert_tensor) > 0,
            f"expert · expert_tensor is {of_expert} · {setting.expert_tensor}, which does not divide the {ranks} ranks of a stage",
            "change cluster.layout.expert or expert_tensor",
        )
