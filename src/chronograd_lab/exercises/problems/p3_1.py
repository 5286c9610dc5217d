# %% The pushes of both learners, in seconds.
import chronograd

PUSHES = {1: (1.0, 2.0, 3.0, 4.0), 2: (2.5, 5.0)}

# %% 3.1 Staleness is the number of updates between a learner's pull and its own push. Count it, then ask the simulator.
version, pulled = 0, dict.fromkeys(PUSHES, 0)
for second, learner in sorted((second, learner) for learner, times in PUSHES.items() for second in times):
    print(f"{second:g} s: learner {learner} has staleness {version} − {pulled[learner]} = {version - pulled[learner]}")
    version = pulled[learner] = version + 1
simulated = chronograd.simulate_staleness(pushes=tuple(",".join(map(str, times)) for times in PUSHES.values())).data
print("simulator:", [row["staleness"] for row in simulated["updates"]], f"mean {simulated['mean_staleness']:.2f}")
