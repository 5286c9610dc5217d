"""The habits of a training library that decide which exchanges it hides, and how fast its attention is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Software:
    """Shares of exchanges that hide behind work, and speeds.

    0 exposes an exchange, 1 hides it if the work is long enough. The defaults are those of Megatron-LM and of FSDP in PyTorch:
    backward sends gradients of inputs while it computes those of weights, and prefetches parameters; forward waits for
    tensor-parallel ranks and for experts.

    Attributes:
        tensor_forward, tensor_backward: tensor-parallel exchange behind the products of forward, and of backward.
        context: keys and values behind attention.
        experts: all-to-all behind the other work of a layer.
        parameters: all-gathers of ZeRO 3 behind the work of a layer; those of ZeRO 1 and 2 behind forward.
        gradients: gradient exchange behind the backward pass of the last micro-batch.
        pipeline: sends between stages.
        attention: speed of fused attention relative to matrix products, counting only the pairs that a causal mask leaves. The
            default is that of the second FlashAttention and cuDNN, from SimuMax's rows (B200) and Llama in Megatron-Bridge (H100).
        sends_once: a token is sent to a node once, and forwarded there to its experts, as in DeepEP.
        imbalance: tokens of the busiest rank's experts relative to the mean.
    """

    tensor_forward: float = 0.0
    tensor_backward: float = 1.0
    context: float = 1.0
    experts: float = 0.0
    parameters: float = 1.0
    gradients: float = 1.0
    pipeline: float = 0.0
    attention: float = 0.75
    sends_once: bool = False
    imbalance: float = 1.0


USUAL = Software()
