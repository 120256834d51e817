"""The artefact on disk and on its way to the Hub: readable by others, replaced whole
or not at all.
"""

from __future__ import annotations

import base64
import getpass
import json
import math
import platform
import re
import shutil
import socket
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import load_dataset
from fuzzing import fuzzed
from huggingface_hub import DatasetCard
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_artefacts import (
    INNER,
    METRICS,
    RECIPE,
    WORDS,
    save_variant,
    tiny,
    variant_on_disk,
    word_tokenizer,
)
from tiny_models import tiny_model
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from farzi_hf import FarziConfig, record_trajectories
from farzi_hf.common.text import publishable
from farzi_hf.data import vocabulary_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.farzi_data import _SHOWN_TOKENS as DECODED_TOP_K
from farzi_hf.summary.store import writing
from farzi_hf.summary.store.folder import ArtefactFolder
from farzi_hf.summary.store.writing import render_viewer


def test_metrics_that_are_not_finite_are_json_for_every_reader(tmp_path):
    metrics = {
        "table": [{"name": "diverged", "perplexity": math.inf, "spread": [1.5, -math.inf]}],
        "gap": math.nan,
        "note": "ok",
    }
    tiny().save_pretrained(tmp_path, processing_class=word_tokenizer(), metrics=metrics)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    text = (tmp_path / "metrics.json").read_text(encoding="utf-8")
    strict = json.loads(text, parse_constant=refuse)
    assert strict["table"][0] == {
        "name": "diverged",
        "perplexity": "Infinity",
        "spread": [1.5, "-Infinity"],
    }
    assert strict["gap"] == "NaN"
    found = FarziData.from_pretrained(tmp_path).results.metrics
    assert found["table"] == metrics["table"]
    assert math.isnan(found["gap"])
    assert found["note"] == "ok"


# -- what others read ------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "vocabulary", [word_tokenizer(), WORDS, None], ids=["tokenizer", "list", "none"]
)
def test_saved_folders_load_with_datasets(tmp_path, vocabulary, streaming):
    farzi, folder = tiny(), tmp_path / "artefact"
    farzi.save_pretrained(folder, processing_class=vocabulary, metrics=METRICS, recipe={"seed": 0})

    def load(*name):
        rows = load_dataset(
            str(folder),
            *name,
            split="train",
            streaming=streaming,
            cache_dir=str(tmp_path / "cache"),
        )
        return list(rows)

    latents, decoder, tokens = load(), load("decoder"), load("tokens")
    assert load("latents") == latents
    tensors = load_file(folder / "farzi.safetensors")
    assert torch.equal(torch.tensor([row["latents"] for row in latents]), tensors["latents"])
    assert torch.equal(torch.tensor([row["decoder"] for row in decoder]).T, tensors["decoder"])
    assert [row["index"] for row in latents] == [0, 1, 2, 3]
    assert [row["id"] for row in decoder] == list(range(len(WORDS)))
    assert [(row["sequence"], row["position"]) for row in tokens] == [
        (i, j) for i in range(4) for j in range(5)
    ]
    decoded = farzi.decode(DECODED_TOP_K)
    assert [row["tokens"] for row in tokens] == [
        position["tokens"] for sequence in decoded for position in sequence
    ]
    assert ("text" in latents[0]) == ("token" in decoder[0]) == (vocabulary is not None)
    if vocabulary is not None:
        assert [row["token"] for row in decoder] == WORDS
        assert latents[0]["text"].replace(" | ", " ") == " ".join(
            position["tokens"][0] for position in decoded[0]
        )


def test_the_artefact_holds_what_it_says(tmp_path, plot):
    tiny().save_pretrained(
        tmp_path, word_tokenizer(), METRICS, {"seed": 0, "betas": (0.9, 0.999)}, [plot]
    )
    assert json.loads((tmp_path / "metrics.json").read_text()) == METRICS
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text()) == {
        "seed": 0,
        "betas": [0.9, 0.999],
    }
    assert (tmp_path / "plots" / "curve.png").read_bytes() == plot.read_bytes()
    on_disk = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert on_disk == {*ArtefactFolder(tmp_path).names}


def test_a_vocabularys_hash_tells_ids_apart_and_nothing_else():
    assert vocabulary_of(word_tokenizer()).hash() == vocabulary_of(WORDS).hash()
    assert vocabulary_of(["a", "bc"]).hash() != vocabulary_of(["ab", "c"]).hash()


# -- card ------------------------------------------------------------------------------------------


def sections(card: str) -> list[str]:
    """Its headings, and what is folded."""
    return re.findall(
        r"^(?:## |<summary>)(.*?)(?:</summary>)?$",
        re.sub(r"```.*?```", "", card, flags=re.S),
        flags=re.M,
    )


@pytest.mark.parametrize(
    ("labels", "teacher", "shown"),
    [
        (
            "own",
            [{"model_type": "gpt2", "n_embd": 32}, {"model_type": "farzi_rnn"}],
            "gpt2 (n_embd 32), farzi_rnn",
        ),
        ("own", None, None),
        ("shared", {"model_type": "gpt2", "n_embd": 32}, None),
    ],
)
def test_card_names_teachers_that_are_not_the_learner(tmp_path, labels, teacher, shown):
    tiny(inner=INNER, labels=labels).save_pretrained(
        tmp_path, recipe={**RECIPE, "teacher": teacher}
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert ("| teachers, whose labels it has |" in card) == (shown is not None)
    assert shown is None or f"| teachers, whose labels it has | {shown} |" in card


def test_card_shows_everything_it_is_given(tmp_path, plot):
    farzi = tiny(inner=INNER)
    farzi.save_pretrained(tmp_path, word_tokenizer(), METRICS, RECIPE, [plot])
    card = DatasetCard.load(tmp_path / "README.md")
    assert [config["config_name"] for config in card.data.configs] == [
        "latents",
        "decoder",
        "tokens",
    ]
    assert card.data.configs[0]["default"] is True
    assert card.data.size_categories == ["n<1K"]
    assert card.data.task_categories == ["text-generation"]
    assert card.data.license == "other"
    assert "language-modeling" in card.data.tags
    assert sections(card.text) == [
        "How to use it",
        "Where it comes from",
        "All facts and figures",
        "What it says",
        "The same numbers with PyTorch alone",
        "Distil it again",
        "Citation",
    ]
    for line in (
        "# 4 synthetic sequences that stand in for the corpus",
        f"| all of its numbers | {farzi.nbytes} bytes |",
        "| the data | 1,000 bytes, 50 sequences |",
        f"| size of the data | {farzi.nbytes / 10:.3g} % of the bytes, 8 % of the sequences |",
        "| learner | gpt2, 1,234 parameters (n_embd 16) |",
        "| split | official |",
        f"| vocabulary hash (SHA-256) | `{farzi.config.vocabulary_hash}` |",
        "| method | perplexity | bytes |",
        "| Farzi | 101.2 ± 1.5 (99 to 104.5) | 300 |",
        "| random | 2,827 |  |",
        "| distillation_seconds | 1,200 |",
        "![plots/curve.png](plots/curve.png)",
        'student = farzi.trainer(model, "student")',
        "| eps | 0.0001 |",
        "| betas | [0.9, 0.999] |",
        "accelerate launch recipes/ptb.py --config recipe.yaml",
        "one on the full data that does as well takes 80 s, 4,000 steps.",
        "after 16 trainings (break-even), each of which saves 75 s.",
        "- The corpus is its owner's.",
    ):
        assert line in card.text


def test_a_summary_that_saves_no_time_says_so(tmp_path):
    tiny().save_pretrained(tmp_path, metrics={**METRICS, "full_data_seconds": 4.0})
    assert (
        "So the summary does not save time; it saves data." in (tmp_path / "README.md").read_text()
    )


def test_a_card_says_what_was_done_for_privacy(tmp_path):
    tiny().save_pretrained(tmp_path, metrics={"privacy": "Differentially private: ε = 0.5."})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "- Differentially private: ε = 0.5." in card
    assert "No differential privacy" not in card


def test_card_of_a_bare_summary_has_no_empty_sections(tmp_path):
    tiny().save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert sections(card) == [
        "How to use it",
        "Where it comes from",
        "All facts and figures",
        "The same numbers with PyTorch alone",
        "Citation",
    ]
    assert "None" not in re.sub(r"```.*?```", "", card, flags=re.S)
    assert "\n\n\n" not in card
    assert "task_categories" not in card


# -- replacing a folder ----------------------------------------------------------------------------


def test_files_of_others_stay_and_stale_files_go(tmp_path, plot):
    (tmp_path / "optimizer.pt").write_bytes(b"state")
    tiny().save_pretrained(tmp_path, word_tokenizer(), METRICS, {"seed": 0}, [plot])
    bare = tiny()
    bare.save_pretrained(tmp_path)
    assert (tmp_path / "optimizer.pt").read_bytes() == b"state"
    assert not any(
        (tmp_path / name).exists() for name in ("tokenizer.json", "metrics.json", "plots/curve.png")
    )
    assert FarziData.from_pretrained(tmp_path).processing_class is None


def test_a_plot_that_lies_in_the_folder_already_is_kept(tmp_path, plot):
    tiny().save_pretrained(tmp_path, plots=[plot])
    tiny().save_pretrained(tmp_path, plots=[tmp_path / "plots" / "curve.png"])
    assert (tmp_path / "plots" / "curve.png").read_bytes() == plot.read_bytes()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        tiny().save_pretrained(tmp_path / "file")


@pytest.mark.parametrize("name", ["../victim", "/etc/victim", "plots/../../victim"])
def test_an_artefact_cannot_name_files_outside_its_folder(tmp_path, name):
    victim, folder = tmp_path / "victim", tmp_path / "artefact"
    victim.touch()
    tiny().save_pretrained(folder)
    tensors, names = load_file(folder / "farzi.safetensors"), [*ArtefactFolder(folder).names, name]
    save_file(
        tensors, folder / "farzi.safetensors", metadata={"farzi": json.dumps({"files": names})}
    )
    assert FarziData.from_pretrained(folder).results.plots == {}
    tiny(tau=0.5).save_pretrained(folder)
    assert victim.exists()


class Death(BaseException):
    """Stands for kill -9: nothing catches it, and nothing touches the disk after it."""


class Reaper:
    """Lets `life` file operations under `folder` happen, then none."""

    EVENTS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"})
    folder, life = None, 0

    def __call__(self, event, args):
        if self.folder and event in self.EVENTS and str(args[0]).startswith(str(self.folder)):
            self.life -= 1
            if self.life < 0:
                raise Death


@pytest.fixture(scope="session")
def reaper():
    reaper = Reaper()
    sys.addaudithook(reaper)  # cannot be removed, but sleeps without a folder
    return reaper


def test_a_crash_at_any_point_leaves_the_old_artefact_or_the_new_one(tmp_path, reaper):
    folder, found = tmp_path / "artefact", []
    save_variant(0, folder)
    for life in range(1000):
        old, new = found[-1] if found else 0, 1 + (found[-1] if found else 0)
        reaper.folder, reaper.life = folder, life
        try:
            save_variant(new, folder)
            break
        except Death:
            pass
        finally:
            reaper.folder = None
        found.append(variant_on_disk(folder))
        assert found[-1] in (old, new)
    assert 0 < life < 999
    assert found[0] == 0
    assert found[-1] > 0  # some crashes came after the commit
    save_variant(2, folder)
    assert variant_on_disk(folder) == 2
    assert not list(folder.glob(".*"))


# -- viewer.html -----------------------------------------------------------------------------------


EVIL = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "&amp;",
    "__SUMMARY__",
    "ü",
    '"\\',
]


class Elements(HTMLParser):
    """Counts tags and collects what refers to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href")]


def page(farzi: FarziData, folder: Path) -> str:
    farzi.save_pretrained(folder)
    return (folder / "viewer.html").read_text(encoding="utf-8")


def numbers(html: str) -> dict:
    return json.loads(
        re.search(r'<script type="application/json" id="summary">(.*?)</script>', html, re.S).group(
            1
        )
    )


def with_vocabulary(vocabulary, **changes) -> FarziData:
    farzi = tiny(**changes)
    farzi.processing_class = vocabulary
    return farzi


@pytest.mark.parametrize(
    "vocabulary", [word_tokenizer(), WORDS, None], ids=["tokenizer", "list", "none"]
)
def test_the_page_stands_alone_and_names_every_entry(tmp_path, vocabulary):
    html = page(with_vocabulary(vocabulary), tmp_path)
    elements = Elements()
    elements.feed(html)
    assert elements.references == []
    assert "http" not in html
    assert numbers(html)["tokens"] == (
        [f"[{i}]" for i in range(len(WORDS))] if vocabulary is None else WORDS
    )


def parts(html: str) -> tuple[list[str], dict]:
    """The tags of a page, and the data in it."""
    elements = Elements()
    elements.feed(html)
    return elements.tags, numbers(html)


@fuzzed
@given(
    st.lists(
        st.sampled_from(EVIL) | st.text(st.characters()), min_size=len(WORDS), max_size=len(WORDS)
    )
)
@example(EVIL)
@example(["</SCRIPT >", "]]>", "<!--<script>", "\u2028", "\ud83d", "\x00", "\r"])
def test_any_vocabulary_comes_back_equal_and_is_never_markup(vocabulary):
    farzi = with_vocabulary(vocabulary)
    html = render_viewer(farzi.contents())
    tags, data = parts(html.encode().decode())
    assert data["tokens"] == vocabulary
    assert tags == parts(render_viewer(tiny().contents()))[0]
    assert "innerHTML" not in html


def test_the_page_is_titled_with_its_source():
    html = render_viewer(tiny().contents(), "Farzi data of </script> my notes [4×5]")
    assert parts(html)[1]["title"] == "Farzi data of </script> my notes [4×5]"
    ids = re.findall(r' id="([\w-]+)"', html)
    assert len(ids) == len(set(ids))
    assert '$("source").textContent = farzi.title;' in html


def run_javascript(html: str, program: str, folder: Path) -> dict:
    """What `program`, run by node behind the page's own script, gives for the page's numbers."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, so the page's script cannot be run")
    script = re.findall(r"<script>(.*?)</script>", html, re.S)[-1]
    (folder / "numbers.json").write_text(json.dumps(numbers(html)), encoding="utf-8")
    (folder / "page.js").write_text(
        f"{script}\nconst farzi = parse(require('fs').readFileSync('numbers.json', 'utf8'));\n"
        f"console.log(JSON.stringify((() => {{ {program} }})()));",
        encoding="utf-8",
    )
    run = subprocess.run([node, "page.js"], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_where_inputs_are_ids_it_shows_them_with_their_labels(tmp_path):
    """A carried teacher too: its page shows the first rows."""
    taught = FarziData.from_teacher(
        tiny_model("gpt2", len(WORDS)), sequence_length=5, num_sequences=4, tokenizer=WORDS
    )
    for farzi in (with_vocabulary(WORDS, inputs="tokens", labels="own"), taught):
        html = page(farzi, tmp_path)
        program = """const all = [];
        for (let i = 0; i < farzi.num_sequences; i++)
          for (let j = 0; j < farzi.sequence_length; j++) all.push(words(farzi, i, j, likeliest(farzi, i, j)[0].id));
        return all;"""
        decoded = [position for sequence in farzi.decode(1) for position in sequence]
        assert run_javascript(html, program, tmp_path) == [
            f"{position['tokens'][0]} → {position['label_tokens'][0]}" for position in decoded
        ]


def test_all_other_entries_together_have_a_bar(tmp_path):
    """It was empty, though they can be likelier than any entry that is shown."""
    program = (
        "return bars([{id: 1, probability: 0.3}, {id: 4, probability: 0.25}], 5).map((row) =>"
        " [row.id, row.probability, row.share]);"
    )
    found = run_javascript(page(with_vocabulary(WORDS), tmp_path), program, tmp_path)
    assert found == [
        pytest.approx(row)
        for row in ([1, 0.3, 0.3 / 0.45], [4, 0.25, 0.25 / 0.45], [-1, 0.45, 1.0])
    ]


def test_its_script_reads_the_likeliest_entries_entropies_and_orders(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_LIKELIEST", 3)
    farzi = with_vocabulary(WORDS, tau=0.5, latent_dim=2)
    html = page(farzi, tmp_path)
    found = run_javascript(
        html,
        """const all = [];
        for (let i = 0; i < farzi.num_sequences; i++)
          for (let j = 0; j < farzi.sequence_length; j++) {
            all.push({top: likeliest(farzi, i, j), entropy: farzi.entropyOf(i, j)});
          }
        return {all, sure: ordered(4, "sure", farzi.meanEntropy), unsure: ordered(4, "unsure", farzi.meanEntropy),
                index: ordered(4, "index", farzi.meanEntropy)};""",
        tmp_path,
    )
    soft = farzi(torch.arange(4)).detach().flatten(0, 1).topk(3)
    assert [[row["id"] for row in at["top"]] for at in found["all"]] == soft.indices.tolist()
    probabilities = torch.tensor([[row["probability"] for row in at["top"]] for at in found["all"]])
    torch.testing.assert_close(probabilities, soft.values)
    decoded = [position for sequence in farzi.decode(3) for position in sequence]
    assert [[WORDS[row["id"]] for row in at["top"]] for at in found["all"]] == [
        position["tokens"] for position in decoded
    ]
    entropies = torch.tensor([position["entropy"] for position in decoded])
    torch.testing.assert_close(torch.tensor([at["entropy"] for at in found["all"]]), entropies)
    by_entropy = entropies.view(4, -1).mean(1).argsort().tolist()
    assert (found["sure"], found["unsure"], found["index"]) == (
        by_entropy,
        by_entropy[::-1],
        [0, 1, 2, 3],
    )


def test_the_page_of_a_large_summary_holds_its_first_sequences(tmp_path, monkeypatch):
    farzi, few = with_vocabulary(WORDS), 2
    assert numbers(page(farzi, tmp_path))["num_sequences"] == farzi.config.num_sequences > few
    monkeypatch.setattr(writing, "SHOWN", few)
    data = numbers(page(farzi, tmp_path))
    assert (data["num_sequences"], data["all_sequences"]) == (few, farzi.config.num_sequences)
    held = np.frombuffer(base64.b64decode(data["ids"]), dtype="<u4").reshape(
        few, farzi.config.sequence_length, -1
    )
    best = farzi(torch.arange(few)).detach().topk(held.shape[-1]).indices
    assert np.array_equal(held, best.numpy())
    assert len(base64.b64decode(data["entropy"])) == 4 * few * farzi.config.sequence_length


# -- secrets ---------------------------------------------------------------------------------------

SECRET_TOKEN = "hf_SecretSecretSecret"


@pytest.mark.parametrize("text", [repr, str, "{!r}".format, "{}".format])
def test_no_token_is_printed(text):
    shown = text(FarziConfig("out", use_cpu=True, hub_token=SECRET_TOKEN, num_sequences=17))
    assert SECRET_TOKEN not in shown
    assert "num_sequences=17" in shown


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/ann/omega", "omega"),
        ("/home/ann/omega/", "omega"),
        ("C:\\Users\\ann\\omega", "omega"),
        ("\\\\host\\share\\omega", "omega"),
        ("~/omega", "omega"),
        ("~ann/omega", "omega"),
        ("outputs/omega", "outputs/omega"),
        ("a / b", "a / b"),
        ("ml-100k", "ml-100k"),
        ("file:///home/ann/omega", "omega"),
        ("https://ann:pass@word@host/a.csv?b=1", "https://host/a.csv?b=1"),
        ("read hf://ann@host/a\nand s3://key:secret@b", "read hf://host/a\nand s3://b"),
        (
            "https://host/a?X-Amz-Signature=1f&b=2#token=x",
            "https://host/a?X-Amz-Signature=…&b=2#token=…",
        ),
        ("ann@host, token=x", "ann@host, token=x"),
    ],
)
def test_of_a_path_or_an_address_what_others_may_know_is_kept(path, kept):
    assert publishable({"a": [path, 1, None], "b": {"c": path}, path: {path: 1}}) == {
        "a": [kept, 1, None],
        "b": {"c": kept},
        kept: {kept: 1},
    }


def test_keys_that_become_the_same_are_told_apart():
    paths = {"/a/x": 1, "x": 2, "/b/x": 3, "x (2)": 4}
    assert publishable(paths) == {"x (3)": 1, "x": 2, "x (4)": 3, "x (2)": 4}


def test_no_key_of_the_metrics_publishes_a_path_or_a_password(tmp_path):
    key = "https://ann:Secret@host/a.csv"
    metrics = {key: 1.0, "/home/Secret/b.csv": 2.0, "table": [{"method": "a", key: 1.0}]}
    tiny().save_pretrained(tmp_path, WORDS, metrics, {"data_files": {"/home/Secret/b.csv": key}})
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"Secret" not in path.read_bytes(), path.name


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
        plain.learner,
        plain.args.make_inner_optimizer(),
        sequences["train"],
        plain.data_collator,
        home / "omega",
        num=1,
        steps=2,
        save_every=1,
        batch_size=8,
        seed=0,
    )
    settings = {
        "trajectories": str(home / "omega"),
        "hub_token": SECRET_TOKEN,
        "run_name": "SecretRun",
        "max_steps": 1,
    }
    trainer = tiny_trainer(
        home / "out", sequences, tokenizer, {"learner_init": learner}, **settings
    )
    trainer.train()
    trainer.evaluate()
    trainer.save_model(home / "summary")
    FarziData.from_pretrained(home / "summary").save_pretrained(
        home / "copy"
    )  # a loaded config knows its folder

    for path in [*(home / "summary").rglob("*"), *(home / "copy").rglob("*")]:
        assert path.is_dir() or not re.search(
            b"Secret|" + str(tmp_path).encode(), path.read_bytes()
        ), path.name
    for folder in ("summary", "copy"):
        assert (
            yaml.safe_load((home / folder / "recipe.yaml").read_text())["trajectories"] == "omega"
        )
    assert trainer.args.to_recipe()["trajectories"] == str(
        home / "omega"
    )  # what a run compares when it goes on
