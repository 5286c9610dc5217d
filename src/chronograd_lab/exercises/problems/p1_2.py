# %% Weak labels, resampling and a teacher's labels.
import numpy as np

from chronograd_lab.common.rows import distinct, matching, mean
from chronograd_lab.exercises.problems import results, trained

# %% 1.2.1 Pretrain a student on weak labels or on a teacher's labels, then fine-tune it: here, then the reported runs.
for study in (trained("teacher-student"), results("teacher-student")):
    networks = study.rows["networks"]
    print(f"— size {study.size}: mean test accuracy after fine-tuning")
    for arm in distinct(networks, "arm", stage="fine-tuned"):
        print(f"{arm:<30} {mean(networks, 'accuracy', arm=arm, stage='fine-tuned'):.2%}")
    print(f"{'D alone':<30} {mean(networks, 'accuracy', arm='D alone'):.2%}")
# %% 1.2.2a Pretrain with wrong labels, then transfer: here, then the reported runs, with a straight line through all of them.
for study in (trained("weak-labels", noise=[0.0, 0.5], resamplings=["natural"]), results("weak-labels")):
    runs = matching(study.rows["runs"], stage="transfer")
    noisy = [run for run in runs if run["arm"].startswith("noise")]
    slope, level = np.polyfit([float(run["arm"].split()[1]) for run in noisy], [run["accuracy"] for run in noisy], 1)
    print(f"— size {study.size}: mean test accuracy after transfer")
    print(*(f"{arm}: {mean(noisy, 'accuracy', arm=arm):.2%}" for arm in distinct(noisy, "arm")), sep="\n")
    print(f"straight line: {level:.2%} without noise, {10 * slope:+.2%} for each 10 % of wrong labels")
# %% 1.2.2b Draw a class of n images in proportion to n ** power, then transfer: here, then the reported runs.
powers = {"natural": 1.0, "square_root": 0.5, "uniform": 0.0}
for study in (trained("weak-labels", noise=[0.0], resamplings=list(powers)), results("weak-labels")):
    images = np.array([row["images"] for row in study.rows["tail"]], dtype=float)
    print(f"— size {study.size}: accuracy after transfer")
    for name, power in powers.items():
        drawn, accuracy = images**power, mean(study.rows["runs"], "accuracy", stage="transfer", arm=name)
        drawn *= images.sum() / drawn.sum()
        print(f"{name:<12} classes are drawn {drawn.min():.0f} to {drawn.max():.0f} times; accuracy {accuracy:.2%}")
# %% 1.2.3a The share of test images that a student labels as its teacher does, and of the teacher's mistakes it repeats.
for study in (trained("teacher-student"), results("teacher-student")):
    for arm in ("D alone", "K {K}, P {P}".format_map(study.settings)):
        same = matching(study.rows["networks"], arm=arm)
        print(f"size {study.size}, {arm:<12} {mean(same, 'agreement'):.1%}, {mean(same, 'repeated_mistakes'):.1%}")
# %% 1.2.3b An image is a candidate of its P best classes, so a larger P lets every class find its K images.
for study in (trained("teacher-student"), results("teacher-student")):
    print(f"— size {study.size}")
    for row in (row for row in study.rows["sets"] if row["set"].startswith(f"K {study.settings['K_of_P_tried']},")):
        accuracy = mean(study.rows["networks"], "accuracy", arm=row["set"], stage="fine-tuned")
        per_class = f"{min(row['per_class']):,} to {max(row['per_class']):,} images of a class"
        print(f"{row['set']:<12} {per_class}; accuracy {accuracy:.2%}")
# %% 1.2.3c Simulate the selection for 20,000 images: the 3 best classes of an image, the 3,000 best images of a class.
scores = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=20_000)
scores[(-scores).argsort(axis=1).argsort(axis=1) >= 3] = 0
is_taken = (-scores).argsort(axis=0).argsort(axis=0) < np.minimum(3000, (scores > 0).sum(axis=0))
print(f"{is_taken.sum():,} labels; {(is_taken.sum(axis=1) > 1).sum():,} images have several classes")
# %% 1.2.3d As K grows, the student sees more images, but more of their labels are wrong: here, then the reported runs.
for study in (trained("teacher-student", K_tried=[20]), results("teacher-student")):
    same_p = [row for row in study.rows["sets"] if row["set"].endswith(f"P {study.settings['P']}")]
    print(f"— size {study.size}")
    for row in sorted(same_p, key=lambda row: row["labels"]):
        accuracy = mean(study.rows["networks"], "accuracy", arm=row["set"], stage="fine-tuned")
        print(f"{row['set']:<12} {row['labels']:>6,} labels, {row['wrong']:.1%} of them wrong; accuracy {accuracy:.2%}")
