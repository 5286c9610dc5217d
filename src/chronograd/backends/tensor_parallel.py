"""Tensor parallelism of PyTorch: ranks share the matrices of each transformer block, and all see the whole batch.

Each rank has some heads of attention and some columns of the feed-forward network. An all-reduce adds up the results of both, with
NCCL, or gloo on the CPU. TENSOR_ROLES of chronograd.predict.sharding has the blocks that ranks can share.
"""

from __future__ import annotations

from chronograd.backends.plan import TORCH, installed, prepare_nothing, sharded_plan

NEEDED = TORCH
prepare = prepare_nothing
available = installed
plan = sharded_plan
