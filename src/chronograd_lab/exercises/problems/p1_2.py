# %% Weak labels, resampling and a teacher's labels.
import numpy as np

from chronograd_lab.common.rows import distinct, matching, mean
from chronograd_lab.exercises.problems import results

# %% 1.2.1 The accuracy of a student that was pretrained on weak labels or on a teacher's labels, then fine-tuned.
networks = results("teacher-student").rows["networks"]
for arm in distinct(networks, "arm", stage="fine-tuned"):
    print(f"{arm:<30} {mean(networks, 'accuracy', arm=arm, stage='fine-tuned'):.2%}")
print(f"{'D alone':<30} {mean(networks, 'accuracy', arm='D alone'):.2%}")
# %% 1.2.2a The accuracy after transfer against the share of wrong labels, and a straight line through all runs.
runs = matching(results("weak-labels").rows["runs"], stage="transfer")
noisy = [run for run in runs if run["arm"].startswith("noise")]
slope, level = np.polyfit([float(run["arm"].split()[1]) for run in noisy], [run["accuracy"] for run in noisy], 1)
print(*(f"{arm}: {mean(noisy, 'accuracy', arm=arm):.2%}" for arm in distinct(noisy, "arm")), sep="\n")
print(f"straight line: {level:.2%} without noise, {10 * slope:+.2%} for each 10 % of wrong labels")
# %% 1.2.2b Draw a class of n images in proportion to n ** power. Then compare the accuracies after transfer.
labels = results("weak-labels").rows
images = np.array([row["images"] for row in labels["tail"]], dtype=float)
for name, power in {"natural": 1.0, "square_root": 0.5, "uniform": 0.0}.items():
    drawn, accuracy = images**power, mean(labels["runs"], "accuracy", stage="transfer", arm=name)
    drawn *= images.sum() / drawn.sum()
    print(f"{name:<12} classes are drawn {drawn.min():.0f} to {drawn.max():.0f} times; accuracy {accuracy:.2%}")
# %% 1.2.3a The share of test images that a student labels as its teacher does, and of the teacher's mistakes it repeats.
teacher = results("teacher-student")
for arm in ("D alone", "K {K}, P {P}".format_map(teacher.settings)):
    own = matching(teacher.rows["networks"], arm=arm)
    print(f"{arm:<12} {mean(own, 'agreement'):.1%}, {mean(own, 'repeated_mistakes'):.1%}")
# %% 1.2.3b An image is a candidate of its P best classes, so a larger P lets every class find its K images.
teacher = results("teacher-student")
for row in (row for row in teacher.rows["sets"] if row["set"].startswith(f"K {teacher.settings['K_of_P_tried']},")):
    accuracy = mean(teacher.rows["networks"], "accuracy", arm=row["set"], stage="fine-tuned")
    print(f"{row['set']:<12} {min(row['per_class']):,} to {max(row['per_class']):,} images of a class, {accuracy:.2%}")
# %% 1.2.3c Simulate the selection for 20,000 images: the 3 best classes of an image, the 3,000 best images of a class.
scores = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=20_000)
scores[(-scores).argsort(axis=1).argsort(axis=1) >= 3] = 0
is_taken = (-scores).argsort(axis=0).argsort(axis=0) < np.minimum(3000, (scores > 0).sum(axis=0))
print(f"{is_taken.sum():,} labels; {(is_taken.sum(axis=1) > 1).sum():,} images have several classes")
# %% 1.2.3d As K grows, the student sees more images, but more of their labels are wrong.
teacher = results("teacher-student")
same_p = [row for row in teacher.rows["sets"] if row["set"].endswith(f"P {teacher.settings['P']}")]
for row in sorted(same_p, key=lambda row: row["labels"]):
    accuracy = mean(teacher.rows["networks"], "accuracy", arm=row["set"], stage="fine-tuned")
    print(f"{row['set']:<12} {row['labels']:>6,} labels, {row['wrong']:.1%} of them wrong; accuracy {accuracy:.2%}")
