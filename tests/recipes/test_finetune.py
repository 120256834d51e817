"""The recipe that trains on a published summary: text and items, any architecture, pretrained
weights, and the Hub.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from tiny_recipes import small_interactions, small_text, use_small_data
from transformers import AutoModelForCausalLM

pytest.importorskip("matplotlib")
import finetune

from farzi_hf import FarziData, FarziDataConfig
from farzi_hf.data import word_tokenizer
from farzi_hf.report import RunSettings
from farzi_hf.tasks import LanguageModeling

INNER = {
    "optimizer": "adam",
    "lr": 0.01,
    "weight_decay": 0.0,
    "betas": [0.5, 0.999],
    "eps": 1e-4,
    "eps_root": 0.0,
    "steps": 4,
    "synthetic_batch_size": 2,
}
GPT2 = {**LanguageModeling.learner, "n_embd": 8, "n_positions": 64}
LLAMA = (
    '{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,'
    ' "intermediate_size": 8}'
)
METHODS = [
    "Farzi, soft tokens",
    "Farzi, 2 samples each",
    "Farzi, likeliest tokens",
    "full data",
    "full data, long",
    "random, same sequences",
    "random, same bytes",
]
FAST = ("--num_students", "1", "--long_steps", "6", "--use_cpu", "true")

# huggingface_hub uploads large files in a way that its HTTP client calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")


def summary(folder: Path, vocabulary, recipe: dict) -> Path:
    torch.manual_seed(0)
    farzi = FarziData(FarziDataConfig(4, 8, 4, len(vocabulary), latent_std=1.0, inner=INNER))
    farzi.save_pretrained(folder, processing_class=vocabulary, recipe=recipe)
    return folder


@pytest.fixture
def text(tmp_path, monkeypatch) -> Path:
    use_small_data(monkeypatch)
    data = RunSettings(dataset="sample", vocab_size=50, learner=GPT2).load()
    return summary(tmp_path / "summary", data.task.processing_class, data.recipe([42]))


def methods(folder: Path) -> list[str]:
    return [
        row["method"]
        for row in csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines())
    ]


@pytest.mark.slow
def test_text_from_the_hub_on_another_architecture(hub, text, tmp_path, capsys):
    FarziData.from_pretrained(text).push_to_hub("farzi-text", revision="v2")
    output = tmp_path / "out"
    named = ["--summary", "user/farzi-text", "--revision", "v2"]
    finetune.main([*named, "--learner", LLAMA, "--output_dir", str(output), *FAST])
    terminal = capsys.readouterr().out
    assert "llama, 4 steps" in terminal
    assert (output / "table.md").read_text() in terminal
    assert methods(output) == [
        *METHODS,
        "unigram",
        "interpolated bigram",
        "Kneser-Ney 3-gram, counted",
    ]
    assert (output / "comparison.png").stat().st_size > 1000


def test_pretrained_weights_are_where_training_starts(text, tmp_path, monkeypatch):
    data = RunSettings(dataset="sample", vocab_size=50).load()
    model = AutoModelForCausalLM.from_config(data.task.learner_config(GPT2, 8))
    with torch.no_grad():
        model.lm_head.weight.fill_(0.0)  # whatever it reads, it predicts all words alike
    model.save_pretrained(tmp_path / "pretrained")
    folders = [
        "--summary",
        str(text),
        "--model",
        str(tmp_path / "pretrained"),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    finetune.main([*folders, *FAST, "--steps", "1"])
    rows = rows_of(tmp_path / "out" / "table.csv")
    perplexity = {row["method"]: float(row["perplexity"]) for row in rows}
    assert perplexity["Farzi, soft tokens"] == pytest.approx(54, rel=0.2)
    monkeypatch.setattr(finetune, "train_stock", None)  # what is there is not trained again
    finetune.main([*folders, *FAST, "--steps", "1"])
    again = rows_of(tmp_path / "out" / "table.csv")
    for row in (*rows, *again):
        if not row["steps"]:  # what only counts is counted again
            row["seconds"] = None
    assert again == rows


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def pretrained(folder: Path) -> tuple[list[str], torch.nn.Module]:
    """The arguments that distil a file of a few lines for a small base, and the base."""
    lines = list(small_text()["train"]["text"])
    (folder / "notes.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = word_tokenizer(lines, 60)
    model = AutoModelForCausalLM.from_config(
        LanguageModeling(tokenizer).learner_config({**GPT2, "n_positions": 128}, 100)
    )
    for part in (model, tokenizer):
        part.save_pretrained(folder / "base")
    data, base, output = (str(folder / name) for name in ("notes.txt", "base", "out"))
    return ["--data", data, "--model", base, "--output_dir", output, *FAST, "--steps", "2"], model


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
def test_a_pretrained_model_is_fine_tuned_on_a_summary_of_a_file(tmp_path):
    pytest.importorskip("peft")
    given, model = pretrained(tmp_path)
    finetune.main([*given, "--lora", "2"])
    found = methods(tmp_path / "out")
    assert {
        "the model, not fine-tuned",
        "teacher",
        "Farzi, written ids",
        "Farzi, written ids, LoRA",
        "full data",
        "full data, LoRA",
    } <= set(found)
    again = FarziData.from_pretrained(tmp_path / "out" / "summary")
    assert (again.config.inputs, again.config.storage) == ("written", "coded5")
    assert {name: x.shape for name, x in again.teacher.named_parameters()} == {
        name: x.shape for name, x in model.named_parameters()
    }


def test_a_summary_of_one_file_is_not_taken_for_another(tmp_path, monkeypatch):
    given, _ = pretrained(tmp_path)
    (tmp_path / "others.txt").write_text("a b c\n" * 30, encoding="utf-8")
    with monkeypatch.context() as broken:
        broken.setattr(
            finetune.TaskData, "of_summary", None
        )  # the first run ends after the summary
        with pytest.raises(TypeError):
            finetune.main(given)
    assert (tmp_path / "out" / "summary").is_dir()
    with pytest.raises(
        SystemExit, match=r"has summary of a run with other settings .*choose another folder"
    ):
        finetune.main([*given, "--data", str(tmp_path / "others.txt")])


@pytest.mark.slow
def test_items(tmp_path, monkeypatch):
    use_small_data(monkeypatch)
    learner = {"model_type": "gru4rec", "hidden_size": 8}
    recipe = {
        "dataset": "sample_interactions",
        "min_interactions": 3,
        "learner": learner,
        "splits": [0],
    }
    folder = summary(tmp_path / "summary", small_interactions().vocabulary, recipe)
    finetune.main(["--summary", str(folder), "--output_dir", str(tmp_path / "out"), *FAST])
    assert methods(tmp_path / "out") == [
        *METHODS,
        "popularity",
        "item bigram",
        "rules of sequences, counted",
    ]


def test_a_summary_that_says_nothing_of_its_data_is_refused(tmp_path):
    folder = summary(tmp_path / "summary", ["a", "b"], {})
    with pytest.raises(
        SystemExit, match=r"finetune.py: summary: it has no recipe.yaml that names its dataset"
    ):
        finetune.main(["--summary", str(folder)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--summary", "no/such", "--num_students", "0"], "have to be at least 1"),
        (["--summary", "no/such", "--model", "a", "--learner", "{}"], "are both given"),
        (["--summary", "no/such", "--data", "notes.txt"], "give one of them"),
        (["--data", "notes.txt"], "for pretrained weights: give model"),
        (["--summary", "no/such"], "neither a folder nor a dataset repository"),
    ],
)
def test_bad_settings_are_refused(hub, arguments, message):
    with pytest.raises(SystemExit, match=f"finetune.py: .*{message}"):
        finetune.main(arguments)
