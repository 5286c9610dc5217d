"""The peak that PyTorch's own memory tracker finds for a GPT on one rank, without a GPU.

`torch.distributed._tools.mem_tracker` follows tensors without data through two steps of AdamW in bf16 autocast. It counts the tensors of
the network that it is given, here the zoo's GPT-2 on the CPU's kernels, and knows no layout of ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from chronograd.configs.description import AttentionPart
from chronograd.large.setting import LargeSetting
from chronograd.models.transformer import GPT2


def tracked(setting: LargeSetting) -> float:
    """Return the bytes at the peak of a step of one rank."""
    model, options = setting.model, setting.options
    heads = next(part.heads for _, part in model.parts() if isinstance(part, AttentionPart))
    kernel = "fused" if options.attention == "fused" else "eager"
    layers = sum(len(group.places) for group in model.groups)
    with FakeTensorMode():
        network = GPT2(
            layers=layers, width=model.width, heads=heads, vocab=model.vocabulary, sequence=setting.sequence,
            dropout=options.dropout, attention=kernel,
        )  # fmt: skip
        optimizer = torch.optim.AdamW(network.parameters())
        tokens = torch.zeros(setting.micro_batch, setting.sequence, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(network, optimizer)
        with tracker:
            for _ in range(2):  # the first step creates the optimizer's state
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
    return float(sum(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values()))
