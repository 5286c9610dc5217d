"""Memory with ZeRO and activation checkpointing: closed forms, published figures, and allocations by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.job import Training
from chronograd.measure.memory import cpu_tensor_peak_bytes
from chronograd.predict.checkpointing import blocks, is_recomputed, lifetimes
from chronograd.predict.compute import UPDATE_PASSES
from chronograd.predict.memory import OPTIMIZER_STATES, Memory, footprint, peak_memory, reserve_bytes
from chronograd.predict.scaling import gather_exposed_s, traffic_factor
from chronograd.trace import Affine, Storage, Trace
from chronograd.trace import Tensor as TraceTensor
from chronograd.train.optimizer import make_optimizer
from chronograd.train.step import checkpoint_blocks


class Block(nn.Module):
    """Block that saves its input and one inner tensor."""

    def __init__(self, width: int, act: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.act = nn.GELU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))


def chain(depth: int, width: int = 16) -> nn.Sequential:
    return nn.Sequential(*(Block(width) for _ in range(depth)))


# -- ZeRO -----------------------------------------------------------------------------------------------


def test_published_zero_memory() -> None:
    """7.5 billion parameters, Adam, 64 ranks: 120 GB, with stage 3 1.9 GB (Rajbhandari et al. 2020, figure 1).

    16 bytes a parameter there (2 + 2 + 12) as here in single precision (4 + 4 + 8). No activations; a layer of the
    thousand that is gathered for its work is another 30 MB, and does not exist in the update.
    """
    made = Trace("many layers", "training", "sum", [])
    made.storages = [Storage(Affine(4 * 7_500_000, 0), "parameter", -1) for _ in range(1000)]
    made.tensors = [TraceTensor(i, (Affine(7_500_000, 0),), "float32", f"layers.{i}.weight") for i in range(1000)]
    total = {stage: footprint(made, "adamw", world_size=64, zero_stage=stage).at(1).total for stage in range(4)}
    assert total[0] == 120e9
    assert total[1] == pytest.approx(60e9 + 60e9 / 64)
    assert total[2] == pytest.approx(30e9 + 90e9 / 64)
    assert total[3] == pytest.approx(1.9e9, abs=0.05e9)
    assert footprint(made, "adamw", world_size=1, zero_stage=3).at(1).total == 120e9


def test_unit_in_use_is_not_sharded() -> None:
    """Use six blocks of two 16 × 16 weights on four ranks, and a batch whose peak is inside the pass."""
    unit, ranks = 2 * 16 * 16 * 4, 4
    traced = trace(chain(6), [(16,)], loss="sum")
    plain = footprint(traced, "adamw").at(1024)
    assert plain.parameters == 6 * unit
    shared = footprint(traced, "adamw", world_size=ranks, zero_stage=3).at(1024)
    assert shared.parameters == 6 * unit / ranks + (1 - 1 / ranks) * unit
    assert shared.optimizer_state == plain.optimizer_state / ranks
    assert shared.activations == plain.activations


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_mixed_precision_per_stage(stage: int) -> None:
    """Bytes per parameter by Rajbhandari et al. 2020, section 5: 4 + 2 for weights and half copies, 4 gradients, 8 Adam
    states. The active block is unsharded: half weights from stage 3, half gradients from stage 2.
    """
    ranks, depth, width = 8, 40, 64
    block, count = 2 * width * width, 40 * 2 * width * width
    traced = trace(chain(depth, width), [(width,)], loss="sum")
    plain = footprint(traced, "adamw", precision="bf16")
    lines = footprint(traced, "adamw", world_size=ranks, zero_stage=stage, precision="bf16")
    # Weights, copies and gradients at the end of backward, where gradients are complete and activations are freed.
    last = lines.table[:, -2, 0]
    share = [1 / ranks if stage >= least else 1.0 for least in (1, 2, 3)]
    unit = 1 - 1 / ranks
    assert last[0] == 4 * count * share[2]
    assert last[3] == 8 * count * share[0]
    assert last[2] == pytest.approx(4 * count * share[1] + (2 * block * unit if stage >= 2 else 0))
    copies = lines.table[4, :, 0].max()
    assert copies == pytest.approx(2 * count * share[2] + (2 * block * unit if stage >= 3 else 0), rel=0.02)
    assert plain.table[4, :, 0].max() == pytest.approx(2 * count, rel=0.02)
    update = lines.table[:, -1, 0].sum()
    assert update == count * (4 * share[2] + 4 * share[1] + 8 * share[0])


def test_stage_3_uses_half_precision_throughout() -> None:
    """Activations match a bf16 network, as in FSDP's mixed precision; autocast holds more."""
    options = {"layers": 4, "width": 64, "heads": 2, "dropout": 0.0}
    single, half = (
        trace_network("gpt2-small", options, input_shape=(32,), num_classes=500, param_dtype=held)
        for held in ("fp32", "bf16")
    )
    ranks, batch = 1_000_000, 256  # with this many ranks, one rank's share of the weights is negligible
    sharded = footprint(single, "adamw", world_size=ranks, zero_stage=3, precision="bf16").at(batch)
    pure = footprint(half, "adamw", world_size=ranks, zero_stage=3, precision="bf16").at(batch)
    autocast = footprint(single, "adamw", world_size=ranks, zero_stage=2, precision="bf16").at(batch)
    assert sharded.activations == pytest.approx(pure.activations, rel=0.01)
    assert autocast.activations > 1.2 * sharded.activations


def test_zero_traffic() -> None:
    assert [traffic_factor(stage) for stage in range(4)] == [1.0, 1.0, 1.0, 1.5]
    assert gather_exposed_s(3, 4.0, 10.0, 1.0) == 0.0
    assert gather_exposed_s(3, 4.0, 10.0, 0.0) == 2.0
    assert gather_exposed_s(3, np.array([2.0, 6.0]), 1.0, 1.0).tolist() == [0.0, 2.0]


# -- activation checkpointing -----------------------------------------------------------------------------


def test_checkpointed_block_costs_only_its_input() -> None:
    """A block stores two tensors, or one with checkpointing; one complete block is added."""
    batch, activation = 4096, 4096 * 16 * 4

    def activation_bytes(depth: int, mode: str) -> int:
        return footprint(trace(chain(depth), [(16,)], loss="sum"), activation_checkpointing=mode).at(batch).activations

    assert activation_bytes(9, "none") - activation_bytes(8, "none") == 2 * activation
    assert activation_bytes(9, "blocks") - activation_bytes(8, "blocks") == activation
    assert activation_bytes(8, "blocks") < 0.7 * activation_bytes(8, "none")


def test_blocks_are_outermost_repeated_modules() -> None:
    model = nn.Sequential(nn.Linear(16, 16), chain(2), Block(16), nn.Linear(16, 16))
    inside = blocks({path: type(m).__name__ for path, m in model.named_modules()})
    assert sorted(set(inside.values())) == ["1.0", "1.1", "2"]
    assert inside["1.1.second"] == "1.1"
    assert "0" not in inside


def test_everything_in_blocks_runs_twice() -> None:
    traced = trace(nn.Sequential(nn.Linear(16, 16, bias=False), chain(3)), [(16,)], loss="sum")
    again = is_recomputed(traced)
    macs = sum(op.macs.at(1) for op, is_again in zip(traced.operators, again, strict=True) if is_again)
    assert macs == 3 * 2 * 16 * 16


def test_network_without_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="no blocks to checkpoint"):
        footprint(trace(nn.Sequential(nn.Linear(4, 4)), [(4,)]), activation_checkpointing="blocks")


def test_recomputed_tensors_live_until_their_block_ends() -> None:
    """The inner tensor of three blocks is computed twice; its second life ends with the block's backward."""
    traced = trace(chain(3), [(16,)], loss="sum")
    block_of = [blocks(traced.modules).get(op.module) for op in traced.operators]
    lives: dict[int, list[tuple[int, int | None]]] = {}
    for storage, birth, death in lifetimes(traced, "blocks"):
        lives.setdefault(id(storage), []).append((birth, death))
    twice = [found for found in lives.values() if len(found) == 2]
    assert [block_of[first[0]] for first, _ in twice] == ["0", "1", "2"]
    for (made, dropped), (again, end) in twice:
        assert dropped is not None
        assert end is not None
        own = [i for i, op in enumerate(traced.operators) if op.phase == "backward" and block_of[i] == block_of[made]]
        assert {op.phase for op in traced.operators[made : dropped + 1]} == {"forward"}
        assert own[0] == again <= end <= own[-1]


def test_running_mean_copies_parameters_and_buffers() -> None:
    """Compare with torch's AveragedModel, without its counter."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    averaged = AveragedModel(model, use_buffers=True).module
    held = sum(t.numel() * t.element_size() for t in (*averaged.parameters(), *averaged.buffers()))
    traced = trace(model, [(3, 8, 8)])
    for stage, ranks in ((0, 1), (0, 4), (3, 4)):
        plain = footprint(traced, "adamw", world_size=ranks, zero_stage=stage).at(16)
        more = footprint(traced, "adamw", world_size=ranks, zero_stage=stage, has_average=True).at(16)
        assert more.optimizer_state - plain.optimizer_state == held
        assert more.total - plain.total == held
    inference = trace(model, [(3, 8, 8)], mode="inference")
    assert footprint(inference, has_average=True).at(16) == footprint(inference).at(16)


@pytest.mark.parametrize(
    ("optimizer", "momentum"),
    [("sgd", 0.0), ("sgd", 0.9), ("adamw", 0.9), ("adadelta", 0.9), ("rmsprop", 0.9)],
    ids=str,
)
def test_optimizer_states_match_torch(optimizer: str, momentum: float) -> None:
    layer = nn.Linear(7, 5)
    training = Training.model_validate({"optimizer": optimizer, "momentum": momentum, "nesterov": False})
    made = make_optimizer(layer, training)
    layer(torch.ones(1, 7)).sum().backward()
    made.step()
    state = made.state[layer.weight].values()
    num_states = sum(isinstance(value, Tensor) and value.shape == layer.weight.shape for value in state)
    assert OPTIMIZER_STATES[training.optimizer_kind] == num_states


def test_updates_pass_over_the_optimizer_states() -> None:
    """An update reads and writes each state and the parameter, and reads the gradient: two tables of one fact agree."""
    assert {kind: passes for kind, (passes, _) in UPDATE_PASSES.items()} == {
        kind: 3 + 2 * states for kind, states in OPTIMIZER_STATES.items()
    }


# -- comparison with torch --------------------------------------------------------------------------------

NETWORKS = {
    "resnet18": ((3, 96, 96), 16),
    "efficientnet_b0": ((3, 64, 64), 12),
    "mobilenet_v2": ((3, 64, 64), 16),
    "swin_t": ((3, 64, 64), 4),
}


@pytest.mark.parametrize(
    "name", ["resnet18", *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS if n != "resnet18")]
)
def test_predicted_peaks_match_allocations(name: str) -> None:
    """Check training, checkpointing and inference. Convolution workspaces are excluded: a few per cent here, more for
    smaller images.
    """
    torchvision = pytest.importorskip("torchvision")
    shape, batch = NETWORKS[name]
    model = torchvision.models.get_model(name, weights=None)
    x, labels = torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    held = [*model.parameters(), *model.buffers(), x]

    def step() -> None:
        F.cross_entropy(model(x), labels).backward()
        model.zero_grad(set_to_none=True)

    def infer() -> None:
        with torch.no_grad():
            model(x)

    def measured(run: Callable[[], None]) -> int:
        run()
        return cpu_tensor_peak_bytes(run, held)

    traced = trace(model.train(), [shape])
    assert footprint(traced, "sgd").at(batch).total == pytest.approx(measured(step), rel=0.03)
    plain = peak_memory(traced, batch, "sgd").total
    predicted = peak_memory(trace(model, [shape], mode="inference"), batch).total
    model.eval()
    assert predicted == pytest.approx(measured(infer), rel=0.10)
    checkpoint_blocks(model.train())
    saving = footprint(traced, "sgd", activation_checkpointing="blocks").at(batch).total
    assert saving == pytest.approx(measured(step), rel=0.05)
    assert saving < plain


def test_checkpointing_preserves_gradients() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(16, act=True), Block(16, act=True)), torch.randn(4, 16)
    plain = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    checkpoint_blocks(model)
    again = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_autocast_halves_activations_and_copies_weights() -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.get_model("mobilenet_v2", weights=None).train()
    x, labels = torch.randn(4, 3, 64, 64), torch.zeros(4, dtype=torch.int64)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), labels)
        loss.backward()
        model.zero_grad(set_to_none=True)

    step()
    measured = cpu_tensor_peak_bytes(step, [*model.parameters(), *model.buffers(), x])
    traced = trace(model, [(3, 64, 64)])
    assert footprint(traced, "sgd", precision="bf16").at(4).total == pytest.approx(measured, rel=0.03)
    assert footprint(traced, "sgd").at(4).activations > footprint(traced, "sgd", precision="bf16").at(4).activations


# -- the envelope -----------------------------------------------------------------------------------------


def test_largest_batch_is_the_last_that_fits() -> None:
    for optimizer, mode in (("sgd", "none"), ("adamw", "blocks")):
        lines = footprint(trace(chain(5), [(16,)], loss="sum"), optimizer, activation_checkpointing=mode)
        batches = np.array([1, 7, 64, 1000])
        assert lines.peak_bytes(batches).tolist() == [lines.at(int(b)).total for b in batches]
        for capacity in np.random.default_rng(0).uniform(1e5, 1e8, 20):
            largest = lines.largest_batch(capacity)
            assert largest == 0 or lines.at(largest).total <= capacity
            assert lines.at(largest + 1).total > capacity


def test_nothing_fits_and_fixed_batch() -> None:
    model = nn.Linear(1000, 1000)
    assert footprint(trace(model, [(1000,)])).largest_batch(1000) == 0
    with pytest.raises(InputError, match="does not grow"):
        footprint(trace(model, [(1000,)], fixed_batch=8)).largest_batch(1e9)


def test_reserve_depends_on_the_device_kind() -> None:
    assert reserve_bytes(catalog.device("v100")) == 2**30
    assert 0 < reserve_bytes(catalog.device("cpu")) < 2**30
    assert Memory(1, 2, 3, 4, 5).total == 15
