# %% FLOPs, peaks and the percent of peak.
import chronograd
from chronograd_lab.common.rows import grouped
from chronograd_lab.exercises.problems import results

# %% 1.3.1 The predicted share of the peak of one GPU of a K80 at batch 1 and 64, and PALEO's percent of peak.
for network in ("vgg16", "googlenet", "resnet50-v1"):
    for record in chronograd.predict(network, on="k80-gk210", mode="inference", batch=(1, 64)).records.values():
        rate, share, percent = (record.value(name) for name in ("throughput_samples_per_s", "mfu", "ppp"))
        print(f"{record.title}: {rate:.0f} images/s, {share:.0%} of peak, PPP {percent:.0%}")
# %% 1.3.2 A convolution has (output positions) × (weights of all filters) MACs, and a MAC is 2 FLOPs.
layers = [layer for layer in chronograd.count("vgg19", mode="inference").data["layers"] if layer["flops"]]
for layer in layers:
    print(f"{layer['name']:<14} {layer['output_shape'][1:]!s:<18} {layer['flops']:>14,} FLOPs")
flops = {kind: sum(row["flops"] for row in own) for kind, own in grouped(layers, "module").items()}
print(f"all: {sum(flops.values()):,}; convolutions: {flops['Conv2d'] / sum(flops.values()):.2%}")
# %% 1.3.3 The sum over single layers, divided by the time of the whole pass: waiting after each layer, and with events.
for row in results("layer-timing").rows["passes"]:
    ratios = (f"{row[name] / row['whole_s']:.2f} ×" for name in ("synchronised_s", "unsynchronised_s"))
    print(f"{row['network']:<22} {row['place']:<42} {1e3 * row['whole_s']:6.2f} ms", *ratios)
# %% 1.3.4 At its peak, a K80 computes 2 FLOPs per MAC without any loss.
peak = chronograd.devices("k80").data["peak_flops_per_s"]["fp32"]
for network in ("vgg16", "googlenet", "resnet50-v1"):
    image_s = 2 * chronograd.count(network, mode="inference").data["macs"] / peak
    print(f"{network:<12} {1e3 * image_s:.3f} ms an image, {1 / image_s:,.0f} images/s at {peak / 1e12:.2f} TFLOP/s")
