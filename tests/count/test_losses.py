"""Losses of networks with custom inputs: mean squared error, functions of a file, losses that a network returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from chronograd import api
from chronograd.ask import job_of
from chronograd.cli.main import main
from chronograd.count.calls import Call
from chronograd.count.losses import LOSSES
from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError, JobError, TraceError
from chronograd.inputs import LOSSES as NAMES
from chronograd.job import from_dict, resolved, to_yaml
from chronograd.trace import Trace

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

class Autoencoder(nn.Module):
    input_shape = (3, 8, 8)
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 2, 2), nn.ConvTranspose2d(4, 3, 2, 2)
    def forward(self, x):
        return self.up(self.down(x))

class Variational(nn.Module):
    inputs = ("6",)
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(2, 6)
    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * log_var.exp()).sigmoid(), mean, log_var

class Siamese(nn.Module):
    inputs = ("5", "5")
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(5, 4)
    def forward(self, a, b):
        return self.trunk(a), self.trunk(b)

def elbo(outputs, x):
    seen, mean, log_var = outputs
    # 1000 times the sum diverges at the usual learning rate, and then binary_cross_entropy raises
    return 1000 * F.binary_cross_entropy(seen, x.sigmoid(), reduction="sum") + (mean.square() - log_var).sum()

def apart(outputs, inputs):
    a, b = inputs
    return ((outputs[0] - outputs[1]).norm(dim=1) * (a - b).norm(dim=1)).mean()

def per_sample(outputs, x):
    return outputs[1].sum(1)

def wrong(outputs, x):
    return outputs["seen"]

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "loss_nets.py"
    path.write_text(FILE)
    return str(path)


def of_loss(traced: Trace) -> list[str]:
    return [op.name for op in traced.select("forward") if op.module == "loss" and op.kind != "view"]


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = x * 2
        return {"same": y, "other": y[:, :1]}


def test_squared_error_has_an_input_or_a_target() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert LOSSES["mse"](Twice()(x), x) == pytest.approx(14 / 3)  # `other` has no input of its shape
    assert LOSSES["mse"]((x[:, :2], torch.tensor(3)), {"a": x}) == pytest.approx((1 + 4) / 2)  # against zeros
    loss = torch.tensor(7.0, requires_grad=True)
    assert LOSSES["mse"]({"loss": loss, "logits": x}, x) == 7
    assert tuple(LOSSES) == NAMES


def test_work_of_an_autoencoders_loss(file: str) -> None:
    cross, mse = (trace_network(f"{file}:Autoencoder", loss=loss) for loss in ("cross_entropy", "mse"))
    assert cross.macs(2) == mse.macs(2) == 2 * 2 * 16 * 12 * 4
    assert "nll_loss2d_forward" in of_loss(cross)
    assert of_loss(mse) == ["mse_loss"]
    assert mse.loss == "mse"
    input_reads = [op for op in mse.select("forward") if mse.inputs[0] in op.inputs]
    assert [op.name for op in input_reads] == ["convolution", "mse_loss"]


def test_function_gets_outputs_and_inputs(file: str) -> None:
    two = trace_network(f"{file}:Siamese", loss=f"{file}:apart")
    assert two.macs(3) == 3 * 2 * 20
    assert two.loss == f"{file}:apart"
    assert of_loss(two).count("linalg_vector_norm") == 2
    names = of_loss(trace_network(f"{file}:Variational", loss=f"{file}:elbo"))
    assert "binary_cross_entropy" in names


def test_function_gets_keywords_and_mixed_arguments() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.fc(x) * scale  # type: ignore[no-any-return]

    def of_keywords(outputs: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        return (outputs * inputs["scale"]).mean()

    def of_both(outputs: Tensor, inputs: Any) -> Tensor:
        return of_keywords(outputs, inputs[1])

    net, x, scale = Net(), torch.zeros(3, 4), torch.ones(3, 1)
    for example, loss in (({"x": x, "scale": scale}, of_keywords), (((x,), {"scale": scale}), of_both)):
        traced = trace(net, Call.of_example(example, net), loss=loss)
        assert traced.loss == loss.__name__
        assert traced.macs(2, "backward") == 2 * 8


@pytest.mark.parametrize(
    ("loss", "message", "hint"),
    [
        ("per_sample", r"returned a tensor of shape \(\d+,\)", "one number"),
        ("wrong", "the loss .*wrong raised TypeError: tuple indices", "takes .outputs, inputs."),
    ],
)
def test_wrong_losses_are_reported(file: str, loss: str, message: str, hint: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        api.count(f"{file}:Variational", loss=f"{file}:{loss}")
    assert hint.replace(".", "") in caught.value.hint.replace("(", "").replace(")", "")


def test_unknown_losses_are_refused(file: str) -> None:
    for loss, message in (
        ("l3", "loss is 'l3'"),
        (f"{file}:missing", "has no missing"),
        (f"{file}:number", "not a function"),
    ):
        with pytest.raises(InputError, match=message):
            api.count(f"{file}:Variational", loss=loss)


def test_job_with_a_loss(file: str, tmp_path: Path) -> None:
    job = job_of(f"{file}:Autoencoder", short={"loss": "mse", "batch": 4})
    assert (job.data.name, job.network.inputs, job.training.loss) == ("inputs", ("3x8x8",), "mse")
    assert from_dict(resolved(job)) == job
    assert "loss" not in resolved(job_of(f"{file}:Autoencoder"))["training"]
    path = tmp_path / "job.yaml"
    path.write_text(to_yaml(job, is_whole=False))
    counted = trace_job(job_of(path))
    assert counted.loss == "mse"
    saved = tmp_path / "saved.json"
    counted.save(saved)
    assert job_of(str(saved), short={"loss": "mse"}).training.loss == "mse"
    with pytest.raises(InputError, match="is of the loss mse"):
        api.predict(str(saved), loss="sum", on="v100", batch=4)
    with pytest.raises(JobError, match="a classification job on cifar10 has its own loss"):
        job_of(f"{file}:Autoencoder", short={"loss": "mse", "data": "cifar10"})
    with pytest.raises(JobError, match="loss is 'l3'"):
        job_of(f"{file}:Autoencoder", short={"loss": "l3"})


def test_verbs_of_a_network_with_a_loss(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = [f"{file}:Variational", "--loss", f"{file}:elbo"]
    assert main(["predict", *network, "--on", "v100", "--batch", "4"]) == 0
    out = str(tmp_path / "run")
    assert main(["measure", *network, "--batch", "4", "--steps", "20", "--warmup", "1", "--out", out]) == 0
    assert "step time" in capsys.readouterr().out
    assert main(["measure", f"{file}:Variational", "--loss", f"{file}:wrong", "--out", out + "2"]) == 1
    assert "wrong raised TypeError" in capsys.readouterr().err
    for verb, message in (("train", "no data set has samples"), ("plan", "number of training samples is unknown")):
        assert main([verb, *network]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_example_of_another_batch_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Edges of a graph of 30 nodes refer to nodes that a batch of four does not have."""
    path = tmp_path / "graph_nets.py"
    path.write_text(
        "import torch\n"
        "class Graph(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(8, 3)\n"
        "    def forward(self, x, edges):\n"
        "        y = super().forward(x)\n"
        "        return torch.zeros_like(y).index_add(0, edges[1], y[edges[0]])\n"
        "def inputs(): return torch.randn(30, 8), torch.arange(60).reshape(2, 30) % 30\n"
    )
    graph = ["measure", f"{path}:Graph", "--inputs", f"{path}:inputs", "--steps", "2", "--warmup", "1"]
    assert main([*graph, "--batch", "4", "--out", str(tmp_path / "few")]) == 1
    assert "example inputs have 30 samples: write --batch 30" in " ".join(capsys.readouterr().err.split())
    assert main([*graph, "--batch", "30", "--out", str(tmp_path / "all")]) == 0


# -- modules from Python, and samples of different sizes ---------------------------------------------------------------


def test_modules_take_several_inputs_and_examples() -> None:
    net = nn.Bilinear(4, 5, 3)
    for given in ({"input": ("4", "5")}, {"inputs": (torch.zeros(2, 4), torch.zeros(2, 5))}):
        assert api.count(net, **given, loss="mse").data["macs"] == 3 * (4 * 5 + 5)
        assert api.predict(net, **given, on="v100", batch=4).sections
    with pytest.raises(InputError, match="Bilinear does not state its inputs"):
        api.count(net)


def test_offsets_of_an_embedding_bag_are_its_samples() -> None:
    """Twenty words in four bags: the words are no batch."""
    net = nn.EmbeddingBag(50, 8)
    words, offsets = torch.randint(0, 50, (20,)), torch.tensor([0, 5, 9, 15])
    traced = trace(net, Call.of_example((words, offsets), net), loss="sum")
    assert traced.fixed_batch == 4
    (bag,) = [op for op in traced.select("forward") if "embedding_bag" in op.name]
    assert bag.vector_flops.at(4) == 20 * 8
    with pytest.raises(InputError, match="have 4 samples, and the batch is 8"):
        trace(net, Call.of_example((words, offsets), net), fixed_batch=8)


# -- transformers in inference, which torch runs on its fast path ----------------------------------------------------------

D, HEADS, HIDDEN, TOKENS = 8, 2, 20, 6
ENCODER_LAYER = TOKENS * (4 * D * D + 2 * D * HIDDEN) + 2 * TOKENS * TOKENS * D


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("has_mask", [False, True])
def test_encoder_is_counted_by_hand(mode: str, has_mask: bool) -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, HIDDEN, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    example: dict[str, Tensor] = {"src": torch.zeros(3, TOKENS, D)}
    if has_mask:
        example["src_key_padding_mask"] = torch.zeros(3, TOKENS, dtype=torch.bool)
    traced = trace(encoder, Call.of_example(example, encoder), mode=mode, loss="sum")
    assert traced.macs(5) == 5 * 2 * ENCODER_LAYER
    assert len(traced.select("forward", ["attention"])) == 2
    assert not traced.uncounted()


def test_encoder_and_decoder_are_counted_by_hand() -> None:
    net, length = nn.Transformer(D, HEADS, 1, 1, HIDDEN, batch_first=True), 4
    decoder_layer = (
        length * (4 * D * D + 2 * D * HIDDEN) + 2 * length * length * D  # itself
        + length * 2 * D * D + TOKENS * 2 * D * D + 2 * length * TOKENS * D  # queries of one, keys and values of the other
    )  # fmt: skip
    for mode in ("training", "inference"):
        example = (torch.zeros(3, TOKENS, D), torch.zeros(3, length, D))
        traced = trace(net, Call.of_example(example, net), mode=mode, loss="mse")
        assert traced.macs(2) == 2 * (ENCODER_LAYER + decoder_layer)


def test_attention_with_and_without_weights_has_the_same_work() -> None:
    class Net(nn.Module):
        def __init__(self, need_weights: bool) -> None:
            super().__init__()
            self.attention, self.need_weights = nn.MultiheadAttention(D, HEADS, batch_first=True), need_weights

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=self.need_weights)[0]  # type: ignore[no-any-return]

    for mode in ("training", "inference"):
        fused, weights = (trace(Net(need), [(TOKENS, D)], mode=mode) for need in (False, True))
        assert fused.macs(3) == weights.macs(3) == 3 * (TOKENS * 4 * D * D + 2 * TOKENS * TOKENS * D)
