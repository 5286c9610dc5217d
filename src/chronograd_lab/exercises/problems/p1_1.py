# %% Test accuracies of the seeds, by way and rate.
import numpy as np
from scipy import stats

from chronograd_lab.common.rows import grouped
from chronograd_lab.exercises.problems import image, plot, results, show

STUDY, WAYS = results("transfer"), ("fine-tuned", "last layer only")
RUNS = grouped(sorted(STUDY.rows["runs"], key=lambda run: run["rate"]), "mode", "target", "source", "rate")
ACCURACIES = {key: [run["accuracy"] for run in own] for key, own in RUNS.items()}

# %% 1.1.1a The target data set, and 4 of its images of 2 classes.
print(*STUDY.rows["targets"], sep="\n")
show({name: image(png) for name, png in list(STUDY.pictures.items())[:8]})
# %% 1.1.1b The learning curves of all layers at the lowest rate, one for each seed.
lowest = next(rate for mode, *_, rate in RUNS if mode == "fine-tuned")
curves = {name: curve for name, curve in STUDY.curves.items() if f"fine-tuned at {lowest:g}/" in name}
learning = {name: dict(zip(own["epoch"], own["test_accuracy"], strict=True)) for name, own in curves.items()}
plot(learning, "epoch", "test accuracy")
print(*(f"{name}: {max(own.items())}" for name, own in learning.items()), sep="\n")
# %% 1.1.1c Mean and deviation of the accuracy with all layers, by rate.
for key, values in ACCURACIES.items():
    if key[0] == WAYS[0]:
        print(*key, f"{np.mean(values):.2%} ± {np.std(values, ddof=1):.2%}", sep=" | ")
# %% 1.1.2a The same with the last layer only.
for key, values in ACCURACIES.items():
    if key[0] == WAYS[1]:
        print(*key, f"{np.mean(values):.2%} ± {np.std(values, ddof=1):.2%}", sep=" | ")
# %% 1.1.2b The best rate of each way, compared by Welch's t-test over the seeds.
for place in dict.fromkeys(key[1:3] for key in ACCURACIES):
    ways = ([own for key, own in ACCURACIES.items() if key[:3] == (way, *place)] for way in WAYS)
    all_layers, last_layer = (max(own, key=np.mean) for own in ways)
    gain, p = np.mean(all_layers) - np.mean(last_layer), stats.ttest_ind(all_layers, last_layer, equal_var=False).pvalue
    print(*place, f"all layers minus last layer {gain:+.2%}, p = {p:.2g}", sep=" | ")
