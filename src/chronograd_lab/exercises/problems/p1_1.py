# %% Test accuracies of the seeds, by way and rate, of the reported runs or of those that are trained here.
import numpy as np
from scipy import stats

from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import grouped
from chronograd_lab.exercises.problems import image, plot, results, show, trained

STUDY, WAYS = results("transfer"), ("fine-tuned", "last layer only")
RATES = {"fine_rates": [0.003, 0.03], "head_rates": [0.01, 1.0], "scratch_rates": []}


def accuracies(study: Results) -> dict[tuple[str, str, str, float], list[float]]:
    runs = grouped(sorted(study.rows["runs"], key=lambda run: run["rate"]), "mode", "target", "source", "rate")
    return {key: [run["accuracy"] for run in own] for key, own in runs.items()}


def show_rates(study: Results, way: str) -> None:
    print(f"— size {study.size}: mean and deviation of the test accuracy")
    for key, values in accuracies(study).items():
        if key[0] == way:
            print(*key, f"{np.mean(values):.2%} ± {np.std(values, ddof=1):.2%}", sep=" | ")


# %% 1.1.1a The target data set, and 4 of its images of 2 classes.
print(*STUDY.rows["targets"], sep="\n")
show({name: image(png) for name, png in list(STUDY.pictures.items())[:8]})
# %% 1.1.1b Train all layers at the lowest rate here. Then draw the learning curves of the reported runs, one for each seed.
for study in (trained("transfer", **{**RATES, "fine_rates": RATES["fine_rates"][:1], "head_rates": []}), STUDY):
    lowest = min(rate for mode, *_, rate in accuracies(study) if mode == WAYS[0])
    curves = {name: curve for name, curve in study.curves.items() if f"fine-tuned at {lowest:g}/" in name}
    learning = {name: dict(zip(own["epoch"], own["test_accuracy"], strict=True)) for name, own in curves.items()}
    plot(learning, "epoch", f"test accuracy, size {study.size}")
    print(*(f"{name}: {max(own.items())}" for name, own in learning.items()), sep="\n")
# %% 1.1.1c Train all layers at each rate here. Then the reported runs.
for study in (trained("transfer", **{**RATES, "head_rates": []}), STUDY):
    show_rates(study, WAYS[0])
# %% 1.1.2a The same with the last layer only.
for study in (trained("transfer", **{**RATES, "fine_rates": []}), STUDY):
    show_rates(study, WAYS[1])
# %% 1.1.2b The best rate of each way, compared by Welch's t-test over the seeds: of runs here, then of the reported runs.
for study in (trained("transfer", **RATES), STUDY):
    print(f"— size {study.size}")
    for place in dict.fromkeys(key[1:3] for key in accuracies(study)):
        ways = ([own for key, own in accuracies(study).items() if key[:3] == (way, *place)] for way in WAYS)
        all_layers, last_layer = (max(own, key=np.mean) for own in ways)
        p = stats.ttest_ind(all_layers, last_layer, equal_var=False).pvalue
        gain = np.mean(all_layers) - np.mean(last_layer)
        print(*place, f"all layers minus last layer {gain:+.2%}, p = {p:.2g}", sep=" | ")
