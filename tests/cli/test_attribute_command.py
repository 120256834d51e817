"""`farzi attribute`: rows of a text are scored, saved and printed; bad input ends in one line."""

from __future__ import annotations

import json

import pytest
from tiny_models import config_of
from transformers import AutoModelForCausalLM

from farzi_hf.attribution import Attribution
from farzi_hf.cli import main
from farzi_hf.data import load_sample_text, word_tokenizer

pytestmark = [
    # peft asks transformers for a property by its old name
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    # and does not find that GPT-2 keeps its matrices transposed before it is told
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with dropout and its tokenizer, data and queries."""
    folder = tmp_path_factory.mktemp("attribute")
    texts = load_sample_text(60)["train"]["text"]
    tokenizer = word_tokenizer(texts, 60)
    tokenizer.save_pretrained(folder / "model")
    AutoModelForCausalLM.from_config(config_of("gpt2", len(tokenizer), resid_pdrop=0.1)).save_pretrained(folder / "model")
    (folder / "data.jsonl").write_text("".join(json.dumps({"said": text}) + "\n" for text in texts[:12]))
    (folder / "test.csv").write_text("said\n" + "\n".join(f'"{text}"' for text in texts[12:20]))
    return folder


def attribute(folder, *more: str) -> None:
    fixed = [
        "--test",
        str(folder / "test.csv"),
        "--column",
        "said",
        "--use_cpu",
        "True",
        "--disable_tqdm",
        "True",
        "--max_steps",
        "3",
    ]
    main(["attribute", str(folder / "model"), str(folder / "data.jsonl"), *fixed, *more])


@pytest.mark.parametrize("more", [(), ("--lora", "2", "--learning_rate", "1e-2", "--adjoint", "reversible")], ids=["all", "lora"])
def test_rows_are_scored_saved_and_printed(folder, tmp_path, capsys, more):
    attribute(folder, "--output_dir", str(tmp_path / "out"), "--queries", "3", "--top", "2", "--check", *more)
    printed = capsys.readouterr().out
    found = Attribution.load(tmp_path / "out")
    assert found.scores.shape == (3, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "Dropout is switched off: resid_pdrop" in printed
    for row in (*found.top(2), *found.bottom(2)):
        assert f"{row.row:>7} {row.score:>+11.3e}  {row.text}" in printed
    assert float(printed.rsplit("differ from the replay's by ", 1)[1].split()[0]) < 1e-4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--column", "text"), r"data\.jsonl' has no rows, or some without text in 'text'; name the --column"),
        (("--output_dir", "model"), r"--output_dir '.*model' exists already and is not empty: choose another folder"),
        (("--label_smoothing_factor", "0.1"), "trainer cannot be replayed: its first gradient"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_line(folder, tmp_path, more, message):
    if more[0] == "--output_dir":
        more = (more[0], str(folder / more[1]))
    with pytest.raises(SystemExit, match=f"farzi attribute: .*{message}"):
        attribute(folder, "--output_dir", str(tmp_path / "out"), *more)
    assert not (tmp_path / "out" / "scores.safetensors").exists()
