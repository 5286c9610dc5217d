"""Print, as JSON, what torchtitan makes of each configuration: `load_torchtitan.py RANKS MODULE...`, in the folder of the modules."""

import functools
import json
import sys
from importlib import import_module

import torch
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC


@functools.cache
def built(name: str, flavour: str) -> tuple[int, list[str]]:
    """Return the number of parameters of a model, and the names of its modules."""
    spec = import_module(f"torchtitan.models.{name}").model_registry(flavour)
    with torch.device("meta"):
        model = spec.model.build()
    return sum({id(one): one.numel() for one in model.parameters()}.values()), [
        name for name, _ in model.named_children()
    ]


def loaded(module: str, ranks: int) -> dict:
    config = ConfigManager().parse_args(["--module", module, "--config", "layout"])
    sizes, parallelism = ParallelDims.from_config(config.parallelism, ranks), config.parallelism
    params, modules = built(config.model_spec.name, config.model_spec.flavor)
    return {
        "params": params,
        "modules": modules,
        "sizes": {name: getattr(sizes, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")},
        "pieces": parallelism.module_fqns_per_model_part,
        "micro_batch": parallelism.pipeline_parallel_microbatch_size,
        "schedule": parallelism.pipeline_parallel_schedule,
        "batch": [config.training.local_batch_size, config.training.global_batch_size, config.training.seq_len],
        "recomputes": isinstance(config.activation_checkpoint, FullAC.Config),
    }


sys.path.insert(0, ".")
print(json.dumps([loaded(module, int(sys.argv[1])) for module in sys.argv[2:]]))
