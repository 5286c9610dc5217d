"""The sbatch script of a run, as text that a user can read and edit. Starts nothing, writes nothing."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from chronograd import trust
from chronograd.backends import registry
from chronograd.backends.meeting import FREE_PORT
from chronograd.backends.plan import RankPlan
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.job import Job, changed
from chronograd.words import how_many

# Seconds before the time limit at which SLURM signals the script, so that it can be queued again.
WARNING_S = 60
EXIT_FILE = "slurm.exit"
# The script's exit status if the time limit is near and no checkpoint was written, as for timeout(1).
TIMED_OUT = 124
# Characters that #SBATCH --output cannot hold: quotes, and backslash or percent signs, which have another meaning there.
_UNSAYABLE = re.compile('["\\\\%\x00-\x1f\x7f\ud800-\udfff]')
# The forms that sbatch accepts: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on; names, several of partitions.
_FORMS = {
    "time": (r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|(?i:UNLIMITED|INFINITE)", "01:00:00"),
    "partition": (r"[\w.+@-]+(,[\w.+@-]+)*", "gpu"),
    "account": (r"[\w.+@:/-]+", "lab"),
}


@dataclass(frozen=True)
class Options:
    """Options for SLURM in addition to the job. `None` leaves the choice to the cluster.

    Attributes:
        time: limit of one allocation, such as `01:00:00`; a run may take several.
        cpus_per_task: of one rank; the job's `cluster.threads` by default, else 1.
        interface: network interface of gloo and NCCL, such as `ib0`; they choose by default.
        python: of the environment on the compute nodes; the one that runs this by default.
        extra: further options of sbatch, such as `--constraint=rome`.
    """

    time: str | None = None
    partition: str | None = None
    account: str | None = None
    cpus_per_task: int | None = None
    interface: str | None = None
    python: str | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """The placement of a job's ranks on nodes. `gpus` are those of a node, 0 on CPUs; `cpus` the cores of a rank."""

    ranks: int
    per_node: int
    gpus: int
    cpus: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


def for_nodes(job: Job, options: Options) -> Job:
    """Return the job with the threads that a rank gets, so that the run directory records them."""
    return changed(job, [f"cluster.threads={options.cpus_per_task or job.cluster.threads or 1}"])


def placed(job: Job, run: Path) -> tuple[RankPlan, Shape]:
    """Return the ranks of a job, and their placement. If it starts actors in Ray, each node has one rank, which joins the Ray.

    A node has `cluster.per_node` ranks or learners, else as many as the device's node has GPUs; one on a CPU.
    """
    plan = registry.load(job.backend).plan(job, run, ["train"])
    device = None if job.cluster.device in ("local", "cpu") else catalog.device(job.cluster.device)
    is_gpu = device is not None and device.kind == "gpu"
    threads = job.cluster.threads or 1
    most = job.cluster.per_node or (device.node.devices_per_node if device is not None else 1)
    if plan.actors is None:
        per_node = min(most, plan.world_size)
        gpus = per_node * (job.cluster.count // plan.world_size)  # data_parallel has one rank for all GPUs
        return plan, Shape(plan.world_size, per_node, gpus if is_gpu else 0, threads)
    learners = min(most, plan.actors.learners)
    nodes = -(-plan.actors.learners // learners)
    cpus = learners * threads - (-plan.actors.servers // nodes)
    words = (str(cpus), *plan.command)
    command = trust.python("-m", "chronograd.backends.ray_nodes", *words, interpreter=plan.command[0])
    return replace(plan, command=command, world_size=nodes), Shape(nodes, 1, learners if is_gpu else 0, cpus)


def render(job: Job, run: Path, options: Options = Options(), elements: int | None = None) -> str:
    """Return the script that trains a run directory's job: `sbatch FILE`.

    Args:
        job: its `training.scale_by_ranks` is already applied.
        run: the run directory; with `elements`, the folder of that number of runs, `run-0` and so on, that an array trains.

    Raises: JobError for a job that SLURM cannot start, InputError for invalid options.
    """
    job, run = for_nodes(job, options), run.absolute()
    if bad := _UNSAYABLE.search(str(run)):
        raise InputError(f"the run directory {run} has {bad[0]!r} in its name", "choose another with --out")
    plan, shape = placed(job, run)
    own, number = (f"{run}/run-", "$SLURM_ARRAY_TASK_ID") if elements else (str(run), "")
    head = _head(job, shape, options, f"{own}%a" if elements else own, elements)
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in head), ""]
    what = f"{how_many(elements, 'runs')} such as {_what(job, plan, shape)}" if elements else _what(job, plan, shape)
    lines += [_ABOUT.format(what=_one_line(what), run=shlex.quote(own) + number)]
    lines += [_meeting(shape, options), *_exports(plan, shape, job.cluster.threads or 1)]
    lines += [_QUEUED]
    lines += [_RAY_TOKEN] if plan.actors else []
    lines += [_TIME_LIMIT, _ranks(plan, run, options, shape.cpus, job.cluster.max_restarts)]
    return "\n".join(lines)


def _head(job: Job, shape: Shape, options: Options, output: str, elements: int | None) -> list[str]:
    for text in options.extra:
        if not re.fullmatch(r"--?[a-zA-Z][^\n]*", text):
            raise InputError(f"{text!r} is no option of sbatch", "write it as in a script, such as --constraint=rome")
    named = {"time": options.time, "partition": options.partition, "account": options.account}
    for name, value in named.items():
        form, example = _FORMS[name]
        if value is not None and not re.fullmatch(form, value):
            raise InputError(f"--{name} is {value!r}", f"write it as --{name} {example}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{job.data.name}-{Path(job.network.name).name}").strip("-.")
    return [
        f"--job-name={name[:60]}",
        f"--output={_word(f'{output}/output.slurm.txt')}",
        "--open-mode=append",
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.ranks}",
        f"--ntasks-per-node={shape.per_node}",
        f"--cpus-per-task={shape.cpus}",
        *([f"--gres=gpu:{shape.gpus}"] if shape.gpus else []),
        *(f"--{name}={value}" for name, value in named.items() if value is not None),
        "--requeue",
        f"--signal=B:USR1@{WARNING_S}",
        *([f"--array=0-{elements - 1}"] if elements else []),
        *options.extra,
    ]


def _word(path: str) -> str:
    """Return one word of an #SBATCH line: sbatch splits words at blanks, but not within double quotes."""
    return path if re.fullmatch(r"[\w@%+=:,./-]+", path) else f'"{path}"'


def _one_line(text: str) -> str:
    """Return text that stays in its comment: a network's name may be any text, because it may name an attribute."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _what(job: Job, plan: RankPlan, shape: Shape) -> str:
    ranks = how_many(shape.ranks, "ranks")
    if plan.actors:
        ranks = f"{how_many(plan.actors.learners, 'learners')} and {how_many(plan.actors.servers, 'servers')}"
    return (
        f"{job.network.name} on {job.data.name}: {ranks} of backend {job.backend} on {how_many(shape.nodes, 'nodes')}"
    )


# SLURM itself reaches a node at NodeAddr; the node's name may not resolve.
FIRST_NODE = r"""# The ranks meet at the first node.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')"""
_ABOUT = """\
# {what}.
# A rank goes on from the newest checkpoint, so this may be edited and submitted again until there is a record.json.
run={run}
rm -f "$run/slurm.exit"
"""
_RAY_TOKEN = (
    "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')  # only for this job"
)
# Submission is that of the last requeue.
_QUEUED = r'''
time_of() { date -d "$(scontrol show job "$SLURM_JOB_ID" | sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" | head -n 1)" +%s; }
echo "{\"queued_s\": $(($(time_of StartTime) - $(time_of SubmitTime)))}" >> "$run/queue.jsonl"'''
_TIME_LIMIT = f"""
newest() {{ ls "$run/checkpoints" | tail -n 1; }}
finish() {{ echo "$SLURM_JOB_ID $1" > "$run/{EXIT_FILE}"; exit "$1"; }}
at_start=$(newest)

# Sent {WARNING_S} s before the time limit. Not TERM, which scancel and scontrol requeue send too.
near_the_limit() {{
  if [[ $(newest) != "$at_start" ]] && scontrol requeue "$SLURM_JOB_ID"; then
    wait
    exit 0
  fi
  echo "the time limit is near, and no checkpoint was written since the start"
  finish {TIMED_OUT}
}}
trap near_the_limit USR1
"""


def _meeting(shape: Shape, options: Options) -> str:
    if shape.nodes == 1:
        return "export MASTER_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=lo  # all ranks are on one node"
    if options.interface:
        name = shlex.quote(options.interface)
        return f"{FIRST_NODE}\nexport GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}"
    return f"{FIRST_NODE}\n[[ $MASTER_ADDR == 127.* ]] && export GLOO_SOCKET_IFNAME=lo  # all nodes are one machine"


def _exports(plan: RankPlan, shape: Shape, threads: int) -> list[str]:
    environment = {**plan.environment, "OMP_NUM_THREADS": str(threads), "LOCAL_WORLD_SIZE": str(shape.per_node)}
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def _ranks(plan: RankPlan, run: Path, options: Options, cpus: int, max_restarts: int) -> str:
    python = options.python or plan.command[0]
    words = [python if word == plan.command[0] else word for word in plan.command]
    command = " ".join('"$run"' if word == str(run) else shlex.quote(word) for word in words)
    return _RANKS.format(
        free_port=shlex.join(trust.python("-c", FREE_PORT, interpreter=python)),
        command=command,
        cpus=cpus,
        max_restarts=max_restarts,
    )


# `time` is bash's: the usage of a rank and its children, one line per attempt. srun repeats --cpus-per-task because it no
# longer takes it from sbatch since SLURM 22.05.
_RANKS = """\
for ((restart = 0; ; restart++)); do
  # A free port of the first node, where this script runs: a fixed one may be another job's, or that of a killed rank.
  export MASTER_PORT=$({free_port})
  srun --kill-on-bad-exit=1 --cpus-per-task={cpus} --open-mode=append --output="$run/output.%t.txt" bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS run=$1
    TIMEFORMAT="{{\\"real_s\\": %R, \\"user_s\\": %U, \\"system_s\\": %S}}"
    {{ time "${{@:2}}" 2>&3; }} 3>&2 2>>"$run/usage.$RANK.jsonl"
  ' rank "$run" \\
    {command} &
  wait $!
  status=$?
  [[ $status == 0 || $restart -ge {max_restarts} ]] && finish $status
done
"""
