"""The configs of `accelerate launch` in recipes/accelerate: what accelerate reads from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "recipes" / "accelerate"
# for each file: several processes by torchrun, how many of them, on how many machines
EXPECTED = {
    "one_gpu": (False, 1, 1),
    "many_gpus": (True, 4, 1),
    "many_nodes": (True, 8, 2),
    "two_cpu_processes": (True, 2, 1),
}


def test_a_wheel_has_them():
    assert '"share/farzi_hf/accelerate" = ["recipes/accelerate/*.yaml"]' in (
        ROOT / "pyproject.toml"
    ).read_text("utf-8")


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.iterdir()))
def test_accelerate_reads_it(name):
    path = str(CONFIGS / f"{name}.yaml")
    config = load_config_from_file(path)  # raises an error for an unknown key
    given = launch_command_parser().parse_args(
        [
            "--config_file",
            path,
            "--main_process_ip",
            "10.0.0.1",
            "--machine_rank",
            "1",
            "recipes/ptb.py",
        ]
    )
    args, _, _ = _validate_launch_command(given)
    assert (args.multi_gpu, args.num_processes, args.num_machines) == EXPECTED[name]
    assert not any((args.use_fsdp, args.use_deepspeed, args.tpu))
    assert args.mixed_precision == "no"
    assert config.use_cpu is (name == "two_cpu_processes")
