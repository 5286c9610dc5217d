"""Network inputs: several tensors, integers, keywords, dictionaries, lists of samples and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chronograd import ask, job
from chronograd.cli.main import main
from chronograd.count.calls import Call, takes_tokens
from chronograd.count.network import trace_network
from chronograd.count.tracing import Origin, trace
from chronograd.errors import InputError, TraceError
from chronograd.inputs import Input, check, is_reference
from chronograd.trace import Affine, Trace

VOCAB, T, D = 11, 6, 8


class Recurrent(nn.Module):
    """An LSTM from tokens to the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(VOCAB, D), nn.LSTM(D, D, batch_first=True), nn.Linear(D, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A network with tokens, learned positions, masked attention and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.block = nn.TransformerEncoderLayer(D, 2, 2 * D, batch_first=True)
        self.register_buffer("mask", torch.ones(T, T, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return F.linear(self.block(x, src_mask=self.mask), self.tokens.weight)


class Bert(nn.Module):
    """A network of keyword arguments: two masks, and labels that make it return its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(VOCAB, D), nn.Embedding(2, D)
        self.block, self.head = nn.TransformerEncoderLayer(D, 2, 2 * D, batch_first=True), nn.Linear(D, 3)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> Any:
        x = self.words(input_ids) + self.kinds(token_type_ids)
        logits = self.head(self.block(x, src_key_padding_mask=attention_mask == 0)[:, 0])
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Noisy(nn.Module):
    """A network with a U-Net's input: images and an integer step, one per sample or one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor, step: Tensor | int) -> Tensor:
        angle = torch.as_tensor(step).float().reshape(-1, 1) * torch.arange(4.0)
        return self.last(self.first(x) + self.step(angle.sin())[:, :, None, None])  # type: ignore[no-any-return]


class Detector(nn.Module):
    """A detector of lists of images and targets, which selects boxes by value and returns its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.box = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        features = torch.stack([self.conv(image).mean((1, 2)) for image in images])
        boxes = self.box(features)
        if targets is None:
            return [{"boxes": box[None]} for box in boxes]
        wanted = torch.stack([target["boxes"][target["labels"] > 0].mean(0) for target in targets])
        return {"boxes": F.l1_loss(boxes, wanted), "size": boxes.square().mean()}


def bert_inputs(batch: int) -> dict[str, Tensor]:
    whole = torch.zeros(batch, T, dtype=torch.int64)
    return {
        "input_ids": whole,
        "token_type_ids": whole.clone(),
        "attention_mask": whole + 1,
        "labels": whole[:, 0].clone(),
    }


def detector_inputs() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    images = [torch.rand(3, 10, 12), torch.rand(3, 8, 8)]
    target = {"boxes": torch.rand(2, 4), "labels": torch.tensor([1, 0])}
    return images, [target, target]


def trace_example(model: nn.Module, example: Any, batch_dim: int | dict[str, int | None] = 0, **how: Any) -> Trace:
    return trace(model, Call.of_example(example, model, batch_dim), **how)


BLOCK = T * (4 * D * D + 2 * D * 2 * D) + 2 * T * T * D  # of an encoder layer, per sample


@pytest.mark.parametrize(
    ("model", "macs"),
    [(Recurrent(), T * (8 * D * D + D * VOCAB)), (Gpt(), BLOCK + T * D * VOCAB)],
)
def test_tokens_need_no_input_option(model: nn.Module, macs: int) -> None:
    """A network that begins with an embedding takes integers."""
    assert takes_tokens(model)
    traced = trace(model, [(T,)])
    assert (traced.macs(), traced.macs(5)) == (macs, 5 * macs)
    assert [traced.tensors[i].dtype for i in traced.inputs] == ["int64"]
    assert traced.takes_tokens
    assert not traced.notes


def test_keywords_by_shape_and_by_example() -> None:
    words = [f"{name}:{T}:int64" for name in ("input_ids", "token_type_ids", "attention_mask")]
    by_shape = trace(Bert(), [Input.parse(word) for word in words])
    by_example = trace_example(Bert(), bert_inputs(3))
    assert by_shape.macs(4) == by_example.macs(4) == 4 * (BLOCK + 3 * D)
    assert by_example.fixed_batch is None
    assert by_example.flops(4, "backward") == by_shape.flops(4, "backward")


def test_backward_starts_from_the_networks_own_loss() -> None:
    traced = trace_example(Bert(), lambda: bert_inputs(3))
    names = [op.name for op in traced.select("forward") if op.module == "loss"]
    assert "nll_loss_forward" not in names  # the network computes its own loss
    assert traced.macs(1, "backward") > 0


@pytest.mark.parametrize("step", ["step::int64", "step:1:int64"])
def test_images_with_a_step_per_sample(step: str) -> None:
    traced = trace(Noisy(), [Input.parse("3x8x8"), Input.parse(step)])
    assert traced.macs(3) == 3 * (8 * 8 * 4 * 27 + 16 + 8 * 8 * 4 * 3)
    assert traced.input_shapes[1][0] == Affine(0, 1)


def test_images_with_one_step_for_all_samples() -> None:
    """The step is embedded once, so its work is independent of the batch."""
    by_tensor = trace_example(Noisy(), (torch.zeros(2, 3, 8, 8), torch.tensor(7)))
    by_number = trace_example(Noisy(), (torch.zeros(2, 3, 8, 8), 7))
    per_sample = 8 * 8 * 4 * 27 + 8 * 8 * 4 * 3
    assert by_tensor.macs(5) == by_number.macs(5) == 5 * per_sample + 16


def test_arguments_and_keywords_together() -> None:
    traced = trace_example(Noisy(), ((torch.zeros(2, 3, 8, 8),), {"step": torch.zeros(2, dtype=torch.int64)}))
    assert traced.macs(1) == 8 * 8 * 4 * 27 + 16 + 8 * 8 * 4 * 3


def test_batch_in_another_dimension() -> None:
    model = nn.GRU(D, D)  # time, batch, features
    per_sample = T * 6 * D * D
    by_shape = trace(model, [Input.parse(f"{T}xNx{D}")])
    by_example = trace_example(model, torch.zeros(T, 3, D), batch_dim=1)
    by_name = trace_example(model, torch.zeros(T, 3, D), batch_dim={"input": 1})
    assert by_shape.macs(4) == by_example.macs(4) == by_name.macs(4) == 4 * per_sample
    assert by_shape.sample_shape == (T, D)


def test_lists_of_samples_and_targets_fix_the_batch() -> None:
    traced = trace_example(Detector(), detector_inputs())
    convs = (10 * 12 + 8 * 8) * 4 * 27
    assert traced.macs(2) == convs + 2 * 16
    assert traced.fixed_batch == 2
    assert [note for note in traced.notes if "ran on the given inputs" in note]
    assert [note for note in traced.notes if "batch 2 alone" in note]
    assert traced.macs(2, "backward") == convs + 2 * 2 * 16


def test_example_values_do_not_change_the_network() -> None:
    model = Detector()
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.eval()
    trace_example(model, detector_inputs())
    assert not model.training
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_network_that_mixes_samples_uses_the_example_batch() -> None:
    class Mixes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.T

    traced = trace_example(Mixes(), torch.zeros(6, 4), loss="sum", inputs_require_grad=True)
    assert (traced.macs(), traced.fixed_batch) == (6 * 6 * 4, 6)


def test_example_without_tensors_is_refused() -> None:
    with pytest.raises(InputError, match=r"no tensor[\s\S]*tuple of arguments"):
        trace_example(nn.Linear(3, 3), {"x": 3})


def test_generated_tokens_are_valid_for_every_embedding() -> None:
    model = Bert()
    call = Call.of_inputs([Input.parse(w) for w in ("input_ids:6:int64", "x:2x2", "m:3:bool")], [torch.float32] * 3)
    tokens, normal, mask = call.values(model, batch=50)
    assert tokens.shape == (50, 6)
    assert set(tokens.unique().tolist()) == {0, 1}  # the smaller table has two rows
    assert normal.std() > 0.5
    assert mask.all()


# -- descriptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,224,224", Input((3, 224, 224))),
        ("3x32x32:float16", Input((3, 32, 32), "float16")),
        ("128:int64", Input((128,), "int64")),
        ("tokens:128:long", Input((128,), "int64", "tokens")),
        ("x:2x128", Input((2, 128), "", "x")),
        ("step::int64", Input((), "int64", "step")),
        (":int64", Input((), "int64")),
        ("memory:10xNx64", Input((10, 64), "", "memory", 1)),
        ("Nx5", Input((5,))),
        ("mask:=10x10:bool", Input((10, 10), "bool", "mask", None)),
    ],
)
def test_input_descriptions(text: str, expected: Input) -> None:
    assert Input.parse(text) == expected
    assert Input.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["3;32", "x:y:z", "3x0x3", "a b:3", "NxN", "=Nx3", "x:3:int65", "-1,3", "", "nets.py:f"]
)
def test_invalid_input_descriptions(text: str) -> None:
    with pytest.raises(InputError):
        check([text, "3"])


def test_input_references() -> None:
    assert is_reference("nets.py:example_inputs")
    assert is_reference("package.module:inputs")
    assert not is_reference("128:int64")
    with pytest.raises(InputError, match="positional inputs first"):
        check(["x:3", "4"])


# -- by name ----------------------------------------------------------------------------------------

FILE = """
import torch
from torch import nn

class Net(nn.Module):
    inputs = ("5", "flag:1:bool")
    def __init__(self, width=5, num_classes=2):
        super().__init__()
        self.fc = nn.Linear(width, num_classes)
    def forward(self, x, flag):
        return self.fc(x) * flag

def example():
    return (torch.zeros(4, 5),), {"flag": torch.ones(4, 1, dtype=torch.bool)}

stored = (torch.zeros(4, 5), torch.ones(4, 1, dtype=torch.bool))

def broken():
    raise OSError("no such picture")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "own_nets.py"
    path.write_text(FILE)
    return str(path)


def test_network_may_state_its_inputs(file: str) -> None:
    traced = trace_network(f"{file}:Net")
    assert traced.macs(3) == 3 * 10
    assert [traced.tensors[i].dtype for i in traced.inputs] == ["float32", "bool"]


@pytest.mark.parametrize("name", ["example", "stored"])
def test_inputs_from_a_file(file: str, name: str) -> None:
    assert trace_network(f"{file}:Net", inputs=[f"{file}:{name}"], num_classes=7).macs(3) == 3 * 35


def test_failing_inputs_of_a_file(file: str) -> None:
    with pytest.raises(InputError, match="no such picture"):
        trace_network(f"{file}:Net", inputs=[f"{file}:broken"])
    with pytest.raises(InputError, match="has no missing"):
        trace_network(f"{file}:Net", inputs=[f"{file}:missing"])


# -- errors -----------------------------------------------------------------------------------------


def error_of(model: nn.Module, *words: str) -> TraceError:
    with pytest.raises(TraceError) as refused:
        trace(model, [Input.parse(word) for word in words], origin=Origin("mine"))
    return refused.value


def test_missing_argument_error_lists_the_arguments() -> None:
    error = error_of(Noisy(), "3x8x8")
    assert "missing 1 required positional argument: 'step'" in error.message
    assert "Noisy.forward takes (x, step)" in error.hint
    assert "--input" in error.hint


def test_float_indices_are_reported() -> None:
    error = error_of(Recurrent(), f"{T}:float32")
    assert "in embed (Embedding)" in error.message
    assert "int64" in error.hint


def test_wrong_shape_error_names_the_module() -> None:
    error = error_of(nn.Sequential(nn.Linear(4, 5), nn.Linear(6, 7)), "4")
    assert "in 1 (Linear)" in error.message
    assert "134217757" not in error.message
    assert "check the shape" in error.hint
    assert "--fixed-batch" not in error.hint


def test_batch_divisibility_error() -> None:
    class Pairs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 2, 3).sum(1)

    error = error_of(Pairs(), "3")
    assert "--fixed-batch 2" in error.hint
    assert trace(Pairs(), [(3,)], mode="inference", fixed_batch=2).fixed_batch == 2


def test_data_dependent_network_asks_for_values() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if x.sum() > 0 else -self.fc(x)  # type: ignore[no-any-return]

    error = error_of(Decides(), "6")
    assert "depends on the values" in error.message + error.hint
    assert "--inputs" in error.hint
    assert trace_example(Decides(), torch.ones(3, 6)).macs(3) == 3 * 24


class Graph(nn.Module):
    """A graph network: a product with a sparse matrix of 10 edges between 6 nodes, after a linear layer."""

    def __init__(self, layout: torch.layout = torch.sparse_coo) -> None:
        super().__init__()
        self.f = nn.Linear(8, 4, bias=False)
        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3], [1, 2, 3, 4, 5, 0, 0, 1, 2, 3]])
        matrix = torch.sparse_coo_tensor(edges, torch.ones(10), (6, 6)).coalesce()
        self.register_buffer("edges", matrix if layout == torch.sparse_coo else matrix.to_sparse(layout=layout))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.edges, self.f(x[0]))[None]  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_product_counts_its_elements(layout: torch.layout) -> None:
    """The layer has 6·8·4 MACs, the product 10·4. Backward repeats both: x needs no gradient."""
    traced = trace_example(Graph(layout), torch.rand(1, 6, 8), loss="sum")
    assert traced.macs(1) == 6 * 8 * 4 + 10 * 4
    assert traced.macs(1, "backward") == 6 * 8 * 4 + 10 * 4
    error = error_of(Graph(layout), "6x8")
    assert "edges is sparse" in error.message
    assert "--inputs" in error.hint


def test_sparse_gradient_has_the_size_of_its_rows() -> None:
    """Each of 2 · 5 tokens has a row of 4 numbers; a dense gradient would have all 99 rows."""
    model = nn.Sequential(nn.Embedding(99, 4, sparse=True), nn.Flatten())
    traced = trace_example(model, torch.randint(0, 99, (2, 5)), loss="sum")
    (gradient,) = [storage for storage in traced.storages if storage.role == "gradient"]
    assert gradient.bytes.at(2) == 2 * 5 * 4 * 4


def test_packed_sequences_are_one_argument() -> None:
    """Sequences of 5 and 3 steps: 8 steps of a GRU of 3·10·(6 + 10) MACs."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = nn.GRU(6, 10), nn.Linear(10, 2)

        def forward(self, sequences: nn.utils.rnn.PackedSequence) -> Tensor:
            return self.fc(self.rnn(sequences)[1][-1])  # type: ignore[no-any-return]

    packed = nn.utils.rnn.pack_sequence([torch.rand(5, 6), torch.rand(3, 6)])
    traced = trace_example(Packed(), packed)
    assert traced.fixed_batch == 2
    assert traced.macs(2) == 8 * 3 * 10 * (6 + 10) + 2 * 10 * 2


def test_operators_of_real_devices_run_on_the_given_inputs() -> None:
    """torch refuses to join a tensor on the meta device with one on the CPU, as detectors' anchors are."""

    class Anchors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.anchors = nn.Linear(6, 4), [torch.ones(1, 6)]

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.cat([x, torch.stack(self.anchors)[0]]))  # type: ignore[no-any-return]

    model = nn.ModuleList([Anchors()])[0]
    assert trace_example(model, torch.rand(3, 6)).macs(3) == 4 * 24


def test_half_precision_network_names_its_type(tmp_path: Path) -> None:
    path = tmp_path / "half_nets.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Half(nn.Conv2d):\n    def __init__(self):\n"
        "        super().__init__(3, 8, 3)\n        self.half()\ndef example(): return torch.rand(2, 3, 6, 6)\n"
    )
    for settings in ({"input_shape": (3, 6, 6)}, {"inputs": [f"{path}:example"]}):
        with pytest.raises(TraceError) as caught:
            trace_network(f"{path}:Half", **settings)
        assert "its parameters are float16" in caught.value.hint
        assert "--input 3x6x6:float16" in caught.value.hint
    traced = trace_network(f"{path}:Half", inputs=["3x6x6:float16"])
    assert {tensor.dtype for tensor in traced.tensors} == {"float16", "int64"}  # the targets are whole numbers


def test_error_of_routed_experts_has_no_internals_of_torch() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route, self.expert = nn.Linear(6, 2), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.where(self.route(x).argmax(-1) == 1)[0]
            return x.index_add(0, rows, self.expert(x[rows]))

    error = error_of(Experts(), "6")
    assert error.message.endswith("rows = torch.where(self.route(x).argmax(-1) == 1)[0])")
    assert "register_meta" not in error.message
    assert "--inputs" in error.hint


def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.rand(2, 6), torch.rand(3, 6)], layout=torch.jagged)
    with pytest.raises(InputError, match="nested tensor"):
        trace_example(nn.Linear(6, 4), nested)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_compiled_module_is_reported() -> None:
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 3)))
    error = error_of(model, "3")
    assert "module 1 (Linear) is a torch.jit.ScriptModule" in error.message
    assert "--input" not in error.hint


def test_flex_attention_is_reported() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    class Flex(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return flex.flex_attention(x, x, x)  # type: ignore[no-any-return]

    error = error_of(Flex(), "2x16x16")
    assert "flex_attention" in error.message
    assert "scaled_dot_product_attention" in error.hint


# -- predicted and shown ----------------------------------------------------------------------------


def test_job_with_custom_inputs_is_predicted(file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert main(["count", f"{file}:Net", "--out", str(saved)]) == 0
    for network in ([f"{file}:Net"], [f"{file}:Net", "--inputs", f"{file}:example"], [str(saved)]):
        assert main(["predict", *network, "--on", "v100", "--batch", "4"]) == 0
        out = capsys.readouterr().out
        assert "step time" in out
        assert "training time" not in out  # the number of samples in an epoch is unknown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "nets.py"], "names no function"),
        (["--input", "3", "--inputs", "a.py:b"], "leave --input out"),
        (["--input", "x:3:int65"], "is not a shape"),
        (["--input", "x:3", "--input", "4"], "put positional inputs first"),
    ],
)
def test_unreadable_options(file: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["count", f"{file}:Net", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_option_written_as_a_field_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "inception-reduced", "input=3,32,32"]) == 2
    assert "write --input 3,32,32" in capsys.readouterr().err


def test_title_lists_all_inputs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", f"{file}:Net", "--batch", "3"]) == 0
    assert "input 3 × 5, 3 × 1, training" in " ".join(capsys.readouterr().out.split())


def test_vector_input(tmp_path: Path) -> None:
    path = tmp_path / "vector_nets.py"
    path.write_text(
        "from torch import nn\n"
        "class Vector(nn.Linear):\n    input_shape = (6,)\n    def __init__(self): super().__init__(6, 4)\n"
        "class Words(nn.Embedding):\n    input_shape = (6,)\n    def __init__(self): super().__init__(9, 4)\n"
    )
    vector = ask.job_of(f"{path}:Vector")
    assert (vector.task, vector.data.name, vector.network.inputs) == ("classification", "inputs", ("6",))
    words = ask.job_of(f"{path}:Words", short={"classes": 9})
    assert (words.task, words.data.name, words.network.inputs) == ("language", "tokens", ())
    assert "inputs" not in job.resolved(words)["network"]
    assert job.from_dict(job.resolved(vector)) == vector
    with pytest.raises(job.JobError, match="is not a shape"):
        ask.job_of(f"{path}:Vector", ["network.inputs=[x:3:int65]"])
