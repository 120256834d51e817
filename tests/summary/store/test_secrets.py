"""What is printed and published holds no token, and no folder, user or name of the machine that it comes from."""

from __future__ import annotations

import getpass
import platform
import re
import socket

import pytest
import yaml
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from farzi_hf import FarziConfig, FarziData, record_trajectories
from farzi_hf.summary.store.text import without_local_paths

TOKEN = "hf_SecretSecretSecret"


@pytest.mark.parametrize("text", [repr, str, "{!r}".format, "{}".format])
def test_no_token_is_printed(text):
    shown = text(FarziConfig("out", use_cpu=True, hub_token=TOKEN, num_sequences=17))
    assert TOKEN not in shown
    assert "num_sequences=17" in shown


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/ann/omega", "omega"), ("/home/ann/omega/", "omega"), ("C:\\Users\\ann\\omega", "omega"), ("\\\\host\\share\\omega", "omega"),
        ("~/omega", "omega"), ("~ann/omega", "omega"), ("outputs/omega", "outputs/omega"), ("a / b", "a / b"), ("ml-100k", "ml-100k"),
    ],
)  # fmt: skip
def test_of_a_path_outside_the_project_its_name_is_kept(path, kept):
    assert without_local_paths({"a": [path, 1, None], "b": {"c": path}}) == {"a": [kept, 1, None], "b": {"c": kept}}


def test_the_artefact_says_nothing_of_this_machine(tmp_path, sequences, tokenizer, monkeypatch):
    """Learner, tokenizer and trajectories all come from folders."""
    for module, name in ((socket, "gethostname"), (platform, "node"), (getpass, "getuser")):
        monkeypatch.setattr(module, name, lambda: "SecretName")
    home = tmp_path / "SecretHome"
    AutoModelForCausalLM.from_config(tiny_learner(len(tokenizer))).save_pretrained(home / "learner")
    tokenizer.save_pretrained(home / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(home / "tokenizer", config=PreTrainedConfig())

    def learner():
        return AutoModelForCausalLM.from_pretrained(home / "learner")

    plain = tiny_trainer(home / "out", sequences, tokenizer, {"learner_init": learner})
    record_trajectories(
        plain.learner, plain.args.make_inner_optimizer(), sequences["train"], plain.data_collator, home / "omega", num=1, steps=2,
        save_every=1, batch_size=8, seed=0,
    )  # fmt: skip
    settings = {"trajectories": str(home / "omega"), "hub_token": TOKEN, "run_name": "SecretRun", "max_steps": 1}
    trainer = tiny_trainer(home / "out", sequences, tokenizer, {"learner_init": learner}, **settings)
    trainer.train()
    trainer.evaluate()
    trainer.save_model(home / "summary")
    FarziData.from_pretrained(home / "summary").save_pretrained(home / "copy")  # a loaded config knows its folder

    for path in [*(home / "summary").rglob("*"), *(home / "copy").rglob("*")]:
        assert path.is_dir() or not re.search(b"Secret|" + str(tmp_path).encode(), path.read_bytes()), path.name
    for folder in ("summary", "copy"):
        assert yaml.safe_load((home / folder / "recipe.yaml").read_text())["trajectories"] == "omega"
    assert trainer.args.to_recipe()["trajectories"] == str(home / "omega")  # what a run compares when it goes on
