"""Cards that are written again from what they say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import card_again
import pytest
from pictures import png
from tiny_artefacts import INNER, METRICS, WORDS, tiny, word_tokenizer
from tiny_models import tiny_model

from farzi_hf.summary import FarziData
from farzi_hf.summary.origins import MADE_UP, REAL, SOFTENED

CARDS = sorted(
    path.parent for path in (Path(__file__).parents[2] / "model_cards").glob("*/README.md")
)


@pytest.mark.slow
@pytest.mark.parametrize("folder", CARDS, ids=lambda folder: folder.name)
def test_committed_cards_are_by_todays_template(folder, tmp_path):
    again = Path(shutil.copytree(folder, tmp_path / folder.name))
    card_again.main([str(again)])
    assert (again / "README.md").read_text("utf-8") == (folder / "README.md").read_text("utf-8")
    names = [sorted(each.name for each in place.rglob("*")) for place in (again, folder)]
    assert names[0] == names[1]


def test_code_of_committed_cards_fits_beside_their_text():
    blocks = [
        block
        for folder in CARDS
        for block in re.findall(
            r"^```python\n(.*?)^```", (folder / "README.md").read_text("utf-8"), re.M | re.S
        )
    ]
    assert len(blocks) >= 2 * len(CARDS)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 88] == []


# -- summaries of each kind of inputs and labels ---------------------------------------------------

RECIPE = {
    "seed": 0,
    "num_sequences": 4,
    "sequence_length": 5,
    "latent_dim": 3,
    "tau": 1.0,
    "initialization": "clusters",
    "input_sequences": "made_up",
    "learner": {"model_type": "gpt2", "n_embd": 16, "embd_pdrop": 0.0},
}
FACTS = {
    **METRICS,
    "verdict": "Worth it for 1 kB, with 3 < 4 | 5 of *it*.\n- quality: 97 %\n- size: a_b_c",
    "dataset": "the *corpus* | of a_b",
    "language": "en",
    "data_bytes_flat": 1200,
    "data_bytes_after_xz": 1100,
    "memory": "0.1 % of the 8-grams; an AUC of 0.51; chance is 0.5.",
    "memory_warning": "The teacher has memorised rows.",
    "commit": "1234567",
    "farzi_hf": "1.0",
    "device": "cpu",
    "outer_steps": 12345,
    "memory_auc": 0.5123,
}


def stored(inputs: str, labels: str, **settings) -> FarziData:
    """[4×5], without a teacher."""
    farzi = tiny(inputs=inputs, labels=labels, inner=INNER, **settings)
    farzi.processing_class = word_tokenizer()
    return farzi


def carried(inputs: str) -> FarziData:
    """[4×5], which carries a teacher."""
    sizes = {"sequence_length": 5, "num_sequences": 4, "tokenizer": word_tokenizer()}
    return FarziData.from_teacher(tiny_model("gpt2", len(WORDS)), inputs=inputs, **sizes)


def of_items() -> FarziData:
    """[4×5] of items whose names could be taken for markup."""
    farzi = tiny(inputs="tokens", labels="own", origin=MADE_UP.name, storage="int5")
    farzi.processing_class = ["a | b", "`c`", "d", "e_f_g", "*h*", "<i>", "j"]
    return farzi


KINDS: dict[str, tuple[Callable[[], FarziData], dict[str, str]]] = {
    "soft": (lambda: stored("soft", "shared"), {}),
    "softened": (
        lambda: stored("soft", "own", label_dim=2, origin=SOFTENED.name),
        {"initialization": "spectral"},
    ),
    "made up": (lambda: stored("tokens", "own", origin=MADE_UP.name), {}),
    "real": (
        lambda: stored("tokens", "own", origin=REAL.name),
        {"input_sequences": "covering_windows"},
    ),
    "drawn": (lambda: carried("drawn"), {}),
    "written": (lambda: carried("written"), {}),
    "items": (of_items, {}),
}


def saved(kind: str, folder: Path) -> Path:
    """The artefact of one kind of summary."""
    make, settings = KINDS[kind]
    farzi = make()
    recipe = {
        **RECIPE,
        "inputs": farzi.config.inputs,
        "labels": farzi.config.labels,
        **settings,
    }
    (folder / "curve.png").write_bytes(png())
    (folder / "tokens.png").write_bytes(png())
    plots = [folder / "curve.png", folder / "tokens.png"]
    farzi.save_pretrained(folder / "summary", metrics=FACTS, recipe=recipe, plots=plots)
    return folder / "summary"


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_of_today_stays_as_it_is(kind, tmp_path):
    folder = saved(kind, tmp_path)
    card = (folder / "README.md").read_text("utf-8")
    (folder / "farzi.safetensors").unlink()
    card_again.main([str(folder)])
    assert (folder / "README.md").read_text("utf-8") == card


def test_words_code_and_header_of_an_older_card_are_written_anew(tmp_path, capsys):
    folder = saved("drawn", tmp_path)
    card = (folder / "README.md").read_text("utf-8")
    title = re.search(r"^# .*\n", card, re.M)[0]
    card = card.replace(title, f"{title}\n> **A remark** of somebody,\n> in two lines.\n")
    older = card.replace("has the biases", "keeps the biases")
    older = older.replace('farzi.trainer(model, "student")', "Trainer(model=model)")
    older = older.replace("Held out: official.", "")
    older = older.replace("pretty_name: Farzi data of the", "pretty_name: The")
    (folder / "README.md").write_text(older, encoding="utf-8")
    card_again.main([str(folder)])
    assert (folder / "README.md").read_text("utf-8") == card
    assert "written again" in capsys.readouterr().out


def test_a_card_that_prints_no_rows_loses_the_figure_of_one(tmp_path):
    folder = saved("made up", tmp_path)
    assert (folder / "plots" / "tokens.png").exists()
    recipe = (folder / "recipe.yaml").read_text("utf-8")
    (folder / "recipe.yaml").write_text(recipe.replace("made_up", "real_windows"), encoding="utf-8")
    card_again.main([str(folder)])
    card = (folder / "README.md").read_text("utf-8")
    assert "This card prints no rows" in card
    assert "tokens.png" not in card
    assert [path.name for path in (folder / "plots").iterdir()] == ["curve.png"]


# -- folders without such a card -------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["README.md", "recipe.yaml"])
def test_a_folder_without_a_card_is_named(missing, tmp_path):
    folder = saved("soft", tmp_path)
    (folder / missing).unlink()
    with pytest.raises(SystemExit, match=f"has no {missing}; name a folder"):
        card_again.main([str(folder)])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("## Where it comes from", "has no '## Where it comes from'"),
        ("| vocabulary (V) |", r"has no row 'vocabulary \(V\)'"),
        ("| all of its numbers |", "has no row 'what one must keep to train'"),
    ],
)
def test_another_page_is_refused_and_left_as_it_is(part, message, tmp_path):
    folder = saved("soft", tmp_path)
    page = (folder / "README.md").read_text("utf-8").replace(part, "| another |")
    (folder / "README.md").write_text(page, encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        card_again.main([str(folder)])
    assert (folder / "README.md").read_text("utf-8") == page
