"""The choice of an instance type for a job, from a platform's catalogue (`hardware/instance_types/`)."""

from __future__ import annotations

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.hardware.instances import Instance, InstanceCatalogue
from chronograd.job import Job


def device_of(job: Job) -> str:
    """Return the device of a job, as catalogues of instances name it: `cpu` if it names none.

    Raises NotFoundError for a device that no catalogue has.
    """
    name = job.cluster.device
    if name in ("local", "cpu"):
        return "cpu"
    device = catalog.device(name)
    return device.name if device.kind == "gpu" else "cpu"


def choose(known: InstanceCatalogue, job: Job, name: str | None = None, cores: int = 0) -> tuple[Instance, int]:
    """Return the largest instance type that the job fills, and the number of instances with exactly its devices.

    Args:
        name: the type that the user chose.
        cores: virtual CPUs that a node needs: of types with the same devices the smallest host that has them, else the largest.

    Raises: NotFoundError for an unknown type, InputError if devices would be missing or idle.
    """
    device, cluster = device_of(job), job.cluster
    if name is not None:
        instance = known.named(name)
        if instance is None:
            raise NotFoundError(f"instance type of {known.title}", name, [one.name for one in known.instance])
        if problem := misfit(instance, job):
            raise InputError(f"{instance.name}: {problem}", _counts_of(known, device))
        return instance, nodes_of(instance, job)
    fitting = [one for one in known.instance if not misfit(one, job)]
    if not fitting:
        if all(one.device != device for one in known.instance):
            rented = sorted({one.device for one in known.instance})
            raise InputError(f"{known.title} has no {device}", f"it has {', '.join(rented)}: cluster.device=NAME")
        how = f"{cluster.count} of them" + (f", {cluster.per_node} on a node" if cluster.per_node else "")
        raise InputError(f"no instance type of {known.title} has {device} for {how}", _counts_of(known, device))
    # The first of equals, because files list the smaller host first.
    best = max(fitting, key=lambda one: (one.count, min(one.vcpus or 0, cores)))
    return best, nodes_of(best, job)


def misfit(instance: Instance, job: Job) -> str:
    """Return why a job's devices do not fill whole instances; empty if they do."""
    device, cluster = device_of(job), job.cluster
    if instance.device != device:
        return f"it has {instance.device}, and the job wants {device}"
    if device == "cpu":
        wanted = (cluster.threads or 1) * (cluster.per_node or 1)
        is_short = instance.vcpus is not None and instance.vcpus < wanted
        return f"it has {instance.vcpus} virtual CPUs, and a node of the job wants {wanted}" if is_short else ""
    if cluster.per_node is not None and min(cluster.per_node, cluster.count) != instance.count:
        return f"it has {instance.count} {device}, and the job wants {min(cluster.per_node, cluster.count)} on a node"
    if left := -cluster.count % instance.count:
        return f"it has {instance.count} {device}, and of {cluster.count} in the job {left} would be paid for and idle"
    return ""


def nodes_of(instance: Instance, job: Job) -> int:
    """Return the number of instances for a job's devices, or for its ranks on CPUs: `cluster.per_node` of them on each, else
    one.
    """
    return -(-job.cluster.count // (instance.count or job.cluster.per_node or 1))


def _counts_of(known: InstanceCatalogue, device: str) -> str:
    counts = sorted({one.count for one in known.instance if one.device == device and one.count})
    if not counts:
        return ", ".join(one.name for one in known.instance if one.device == device) + " are there"
    return f"{device} is rented there by {', '.join(map(str, counts))}: set cluster.count and cluster.per_node"
