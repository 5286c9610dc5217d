"""Print, as JSON, what `accelerate launch` and Accelerate make of each configuration: `load_accelerate.py FILE...`."""

import json
import os
import sys

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env


def loaded(file: str) -> dict:
    config = load_config_from_file(file)
    meeting = ["--rdzv_backend", "c10d", "--main_process_ip", "10.0.0.1", "--main_process_port", "29500"]
    args = launch_command_parser().parse_args(["--config_file", file, *meeting, "train.py"])
    args, _, _ = _validate_launch_command(args)
    is_alone = config.num_processes == 1
    environment = prepare_simple_launcher_cmd_env(args)[1] if is_alone else prepare_multi_gpu_env(args)
    found = {
        "kind": str(config.distributed_type.value),
        "nodes": config.num_machines,
        "ranks": config.num_processes,
        "precision": environment["ACCELERATE_MIXED_PRECISION"],
        "per_node": getattr(args, "nproc_per_node", "1"),
        "meeting": [getattr(args, "rdzv_backend", ""), getattr(args, "rdzv_endpoint", "")],
    }
    if environment.get("ACCELERATE_USE_FSDP") == "true":
        os.environ.update(environment)
        plugin, sizes = FullyShardedDataParallelPlugin(), ParallelismConfig()
        found["fsdp"] = {
            "version": plugin.fsdp_version,
            "reshard": plugin.reshard_after_forward,
            "recompute": plugin.activation_checkpointing,
        }
        found["sizes"] = sizes._sizes
    return found


print(json.dumps([loaded(file) for file in sys.argv[1:]]))
