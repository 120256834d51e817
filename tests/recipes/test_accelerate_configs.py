"""The configs of `accelerate launch` in recipes/accelerate: what accelerate reads from them, and two processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "recipes" / "accelerate"
# for each file: several processes by torchrun, how many of them, on how many machines
EXPECTED = {
    "one_gpu": (False, 1, 1), "many_gpus": (True, 4, 1), "many_nodes": (True, 8, 2), "two_cpu_processes": (True, 2, 1),
}  # fmt: skip


def test_every_config_is_known_here():
    assert {path.stem for path in CONFIGS.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_it(name):
    path = str(CONFIGS / f"{name}.yaml")
    config = load_config_from_file(path)  # raises an error for an unknown key
    given = launch_command_parser().parse_args(
        ["--config_file", path, "--main_process_ip", "10.0.0.1", "--machine_rank", "1", "recipes/ptb.py"]
    )
    args, _, _ = _validate_launch_command(given)
    assert (args.multi_gpu, args.num_processes, args.num_machines) == EXPECTED[name]
    assert not any((args.use_fsdp, args.use_deepspeed, args.tpu))
    assert args.mixed_precision == "no"
    assert args.machine_rank == 1
    assert config.use_cpu is (name == "two_cpu_processes")


@pytest.mark.slow
def test_two_cpu_processes_run_a_recipe(tmp_path):
    """On a machine with GPUs too, with what the file says."""
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "two_cpu_processes.yaml"),
        "--main_process_port", "0", str(ROOT / "recipes" / "ptb.py"), "--config", str(ROOT / "recipes" / "configs" / "demo.yaml"),
        "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--num_sequences", "6", "--teacher_steps", "4", "--num_teachers", "2",
        "--inner_steps", "6", "--inner_steps_min", "4", "--window", "2", "--eval_steps", "2", "--num_students", "1", "--use_cpu", "True",
        "--per_device_train_batch_size", "8",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "world size 2, cpu" in done.stdout
    assert done.stdout.count("Table: ") == 1
    assert (tmp_path / "out" / "summary" / "farzi.safetensors").exists()
