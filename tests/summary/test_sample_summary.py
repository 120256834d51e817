"""The summary that comes with the library."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM

from farzi_hf import FarziData, sample
from farzi_hf.summary.store.untrusted import learner_config


def test_it_loads_from_the_installed_library_and_trains_a_student(tmp_path):
    farzi = FarziData.from_pretrained(sample())
    assert farzi.origin.is_made_up
    assert farzi.decode(1)  # with its tokenizer
    learner = farzi.results.recipe["learner"]
    config = learner_config(learner, farzi.config, farzi.vocabulary, "recipe")
    model = AutoModelForCausalLM.from_config(config)
    trainer = farzi.trainer(model, tmp_path, max_steps=20)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def test_it_is_small_and_part_of_the_package():
    files = sorted(path.name for path in Path(sample()).iterdir())
    assert files == ["config.json", "farzi.safetensors", "recipe.yaml", "tokenizer.json"]
    assert sum(path.stat().st_size for path in Path(sample()).iterdir()) < 200_000
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"summary/sample/*"' in pyproject
