# %% Convolutions, poolings and linear layers of each network, counted.
import torch

import chronograd

torch.set_num_threads(1)
SHAPES = {
    "alexnet": "3,227,227",
    "vgg19": "3,224,224",
    "inception-naive": "256,32,32",
    "inception-reduced": "256,32,32",
}
COUNTED = {name: chronograd.count(name, input=shape, mode="inference").data for name, shape in SHAPES.items()}
KINDS = ("Conv2d", "Linear", "MaxPool2d")
LAYERS = {name: [row for row in data["layers"] if row["module"] in KINDS] for name, data in COUNTED.items()}

# %% 2.3.1 A convolution has filters × (side² × channels that a filter sees) weights, and a bias for each filter.
for row in LAYERS["alexnet"]:
    work = f"{row['weights']:,} weights + {row['params'] - row['weights']:,} biases = {row['params']:,}"
    print(f"{row['name']:<14} {row['module']:<10} {row['output_shape'][1:]!s:<14} {work}")
print(f"all: {COUNTED['alexnet']['params']:,} parameters, {COUNTED['alexnet']['macs']:,} MACs")
chronograd.show(chronograd.count("alexnet", input=SHAPES["alexnet"], mode="inference", show_work=True))
# %% 2.3.2 Every row of VGG-19 with its input, without biases.
rows = [{"name": "input", "output_shape": [1, 3, 224, 224], "activations": 3 * 224**2, "weights": 0}, *LAYERS["vgg19"]]
for row in rows:
    print(f"{row['name']:<14} {row['output_shape'][1:]!s:<16} {row['activations']:>10,} {row['weights']:>12,}")
print(*(f"{sum(row[key] for row in rows):,} {key}" for key in ("activations", "weights")), sep=", ")
# %% 2.3.3 The gradient of one output of N stacked F × F filters shows the pixels that it depends on.
for n, f in ((1, 5), (2, 5), (3, 5), (3, 3)):
    pixels = torch.zeros(1, 1, 31, 31, requires_grad=True)
    stack = torch.nn.Sequential(*(torch.nn.Conv2d(1, 1, f, bias=False) for _ in range(n)))
    (gradient,) = torch.autograd.grad(stack(pixels)[0, 0, 8, 8], pixels)
    side = int((gradient.abs().sum((0, 1, 2)) > 0).sum())
    print(f"{n} filters of {f} × {f} see {side} × {side}; N·F − N + 1 = {n * f - n + 1}")
# %% 2.3.4a A module applies filters of several sizes to the same input.
for row in LAYERS["inception-naive"]:
    print(f"{row['name']:<8} {row['module']:<10} sees {row['receptive_field']} × {row['receptive_field']}")
# %% 2.3.4b The last layer of each branch gives its depth. The outputs are concatenated along the channels.
for module in ("inception-naive", "inception-reduced"):
    depths = {row["name"].partition(".")[0]: row["output_shape"][1] for row in LAYERS[module]}
    print(f"{module}: 32 × 32 × ({' + '.join(map(str, depths.values()))}) = 32 × 32 × {sum(depths.values())}")
# %% 2.3.4c The multiplications of each convolution.
for module in ("inception-naive", "inception-reduced"):
    print(module, *(f"{row['name']} {row['macs']:,}" for row in LAYERS[module] if row["macs"]), sep="\n  ")
    print(f"  all {COUNTED[module]['macs']:,}")
# %% 2.3.4d Pooling keeps all channels, so the depth grows. Reductions save most multiplications.
naive, reduced = (COUNTED[f"inception-{name}"]["macs"] for name in ("naive", "reduced"))
print(f"{1 - reduced / naive:.1%} saved, {naive / reduced:.2f} × fewer")
