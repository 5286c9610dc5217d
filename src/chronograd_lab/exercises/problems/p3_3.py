# %% A detector with random weights, its ONNX file, and the runs of trained detectors.
from typing import Any

import numpy as np

from chronograd_lab.common.rows import grouped, matching, mean
from chronograd_lab.exercises.problems import image, results, show

FILE, NOISE = "ssd-mobilenet-v1.onnx", np.random.default_rng(0).normal(size=(3, 3, 300, 300)).astype(np.float32)
PRECISIONS = grouped(results("detection-transfer").rows["classes"], "stage", "name")
PICTURES = results("detection-transfer").pictures


def detector() -> Any:
    import torch

    from chronograd.models.registry import build

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = build("ssd-mobilenet-v1", {"width": 0.25}, num_classes=2)
    with torch.no_grad():
        for _ in range(10):  # statistics of batch norm, without which all outputs are equal
            network.train()(torch.from_numpy(NOISE))
    return network.eval()


def run(images: np.ndarray) -> Any:  # scores and boxes
    import onnxruntime

    return onnxruntime.InferenceSession(FILE).run(None, {"images": images})


# %% 3.3.1 The mean over the seeds of the average precision of each class.
for (stage, name), own in PRECISIONS.items():
    if stage == "all classes":
        print(f"{name}: {mean(own, 'average_precision_11_point'):.2%}")
# %% 3.3.2 The two related classes before and after fine-tuning.
for (stage, name), own in PRECISIONS.items():
    if ("fine-tuned on the two", name) in PRECISIONS and stage in ("all classes", "fine-tuned on the two"):
        print(f"{stage}, {name}: {mean(own, 'average_precision_11_point'):.2%}")
# %% 3.3.3 Only the shape of the dummy input counts. Its first dimension is free, so that the file takes any batch.
import onnxscript
import torch

ports: dict[str, Any] = {"input_names": ["images"], "output_names": ["scores", "boxes"], "external_data": False}
dummy, sizes = (torch.zeros(2, 3, 300, 300),), ({0: torch.export.Dim("batch")},)
torch.onnx.export(detector(), dummy, FILE, dynamic_shapes=sizes, verbose=False, **ports)
print(f"PyTorch {torch.__version__} and onnxscript {onnxscript.__version__} wrote {FILE}")
# %% 3.3.4 Load the file, and check its graph, types and shapes.
import onnx

onnx.checker.check_model(onnx.load(FILE), full_check=True)
print(FILE, "is valid:", len(onnx.load(FILE).graph.node), "operators")
# %% 3.3.5 Run it in ONNX Runtime on 3 random images.
import onnxruntime

print("ONNX Runtime", onnxruntime.__version__, "gives scores and boxes:", *(output.shape for output in run(NOISE)))
# %% 3.3.6 Compare its outputs with those of PyTorch, and state the differences of the fine-tuned detector.
import onnxruntime
import torch

for name, ours, theirs in zip(("scores", "boxes"), detector()(torch.from_numpy(NOISE)), run(NOISE), strict=True):
    difference = np.abs(theirs - ours.detach().numpy())
    print(f"{name}: at most {difference.max():.1e} apart, {np.mean(difference == 0):.0%} equal")
    assert np.allclose(theirs, ours.detach().numpy(), rtol=1e-3, atol=1e-5)
for row in results("detection-transfer").rows["outputs"]:
    print(f"fine-tuned, {row['kind']}, {row['output']}: at most {row['largest_absolute']:.1e} apart")
# %% 3.3.7 Run a picture of each class. This file has random weights; the 12 MB of the fine-tuned detector are not in the archive.
import onnxruntime
import torch

for name, png in ((name, png) for name, png in PICTURES.items() if name.endswith("as annotated")):
    pixels = 2 * torch.from_numpy(image(png)[..., :3]).permute(2, 0, 1)[None] - 1
    scores, _ = run(torch.nn.functional.interpolate(pixels, size=(300, 300), mode="bilinear").numpy())
    own = matching(results("detection-transfer").rows["pictured"], picture=name.split("/")[0])
    print(f"{name}: {scores.shape[1]} candidates;", *(f"{row['stage']}: {row['boxes']} {row['name']}" for row in own))
# %% 3.3.8 Boxes and labels as annotated, as the trained networks draw them, and as run() gives them for the fine-tuned one.
show({name: image(png) for name, png in PICTURES.items()}, columns=4)
print("columns: as annotated, before and after fine-tuning, the fine-tuned detector in ONNX Runtime")
