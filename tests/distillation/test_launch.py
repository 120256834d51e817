"""What the launcher of a program asked for: several processes, or a model in pieces."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

from farzi_hf import FarziConfig
from farzi_hf.distillation.launch import BF16_ERROR, SHARDING, check_world_size, processes_without_gpu, warn_of_bf16

SAID = "accelerate launch was asked for several processes, but it has started ONE"


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No launcher."""
    for name in (
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "ACCELERATE_USE_CPU",
        "ACCELERATE_MIXED_PRECISION",
        *SHARDING,
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", SHARDING)
def test_sharding_by_the_launcher_is_refused_in_one_line(monkeypatch, variable):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(
        ValueError, match=f"^{variable}=true: .* is not supported, .*plain data parallelism.*$"
    ) as found:
        FarziConfig("out", use_cpu=True)
    assert "\n" not in str(found.value)
    monkeypatch.setenv(variable, "false")
    FarziConfig("out", use_cpu=True)


def test_fp16_of_the_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match=r"^ACCELERATE_MIXED_PRECISION=fp16 is not supported: .*or bf16$"):
        FarziConfig("out", use_cpu=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    FarziConfig("out", use_cpu=True)


def test_bf16_is_said_once_with_what_it_costs(caplog):
    warn_of_bf16.cache_clear()
    FarziConfig("out", use_cpu=True)
    assert not caplog.records
    for _ in range(2):
        FarziConfig("out", use_cpu=True, bf16=True)
    (said,) = [record.getMessage() for record in caplog.records]
    assert BF16_ERROR in said
    assert "Leave bf16 out" in said


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, True),
        ({"ACCELERATE_USE_CPU": "True"}, False),  # --num_processes 1
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, False),  # not of accelerate launch --cpu
    ],
)
def test_one_process_where_several_were_asked_for_is_said(monkeypatch, caplog, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    FarziConfig("out", use_cpu=True)
    assert [SAID in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        True
    ] * said


def test_processes_that_would_each_train_alone_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_world_size(2, 1)
    with pytest.raises(ValueError, match=r"started 2 processes, but each of them would train alone .*use_cpu=True"):
        check_world_size(1, 0)


def test_one_process_with_several_gpus_is_refused():
    check_world_size(1, 1)
    with pytest.raises(ValueError, match=r"sees 2 GPUs.*accelerate launch --num_processes 2 .*CUDA_VISIBLE_DEVICES=0"):
        check_world_size(1, 2)


def test_several_processes_without_a_gpu_use_the_cpu(monkeypatch):
    assert not processes_without_gpu()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert processes_without_gpu() is not torch.accelerator.is_available()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not processes_without_gpu()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_the_installed_accelerate_in_a_script_of_a_user(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text("from farzi_hf import FarziConfig\nprint('world', FarziConfig('out').world_size)\n")
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", str(number), "--num_machines", "1",
        str(script),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ACCELERATE_USE_CPU": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout == "world 1\n"
    assert (SAID in done.stderr) == (number == 2)
