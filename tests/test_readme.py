"""Every Python block of the README runs as printed, one after the other in one folder, as a newcomer would; commands and links exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import HfArgumentParser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


def test_blocks_run_as_printed(tmp_path):
    assert len(blocks("python")) >= 4
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    run = subprocess.run([sys.executable, script.name], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert not re.findall(r".*(?:[Ww]arn|loss_type|pin_memory).*", run.stderr)  # a first minute without them
    assert re.search(r"^\{'loss': .*'epoch'", run.stdout, re.M)  # on the way
    assert run.stdout.count("'eval_perplexity'") == 2  # of the distillation's students, and of the stock Trainer's
    assert run.stdout.count("'eval_hr@10'") == 2
    assert (tmp_path / "out" / "summary" / "farzi.safetensors").exists()
    assert (tmp_path / "out" / "summary" / "viewer.html").exists()


def commands() -> list[list[str]]:
    """The words of each command, comments left out."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def test_commands_are_known():
    pytest.importorskip("matplotlib")
    import finetune
    import ptb
    import recsys
    from _common import parse_arguments

    from farzi_hf import FarziConfig

    checked = set()
    for words in commands():
        script = next((word for word in words if word.startswith("recipes/")), None)
        if script is None:
            continue
        arguments = [
            str(ROOT / word) if word.startswith("recipes/") else word for word in words[words.index(script) + 1 :]
        ]
        if script == "recipes/finetune.py":
            HfArgumentParser(finetune.FinetuneArguments).parse_args_into_dataclasses(
                arguments, look_for_args_file=False
            )
        else:
            recipe = {"recipes/ptb.py": ptb, "recipes/recsys.py": recsys}[script]
            parse_arguments((recipe.RecipeArguments, FarziConfig), recipe.QUICK, arguments)
        checked.add(script)
    assert len(checked) == 3
    targets = {words[1] for words in commands() if words[0] == "make"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert not missing
