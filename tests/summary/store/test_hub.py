"""Pushing to dataset repositories and loading from them."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import load_dataset
from hub_server import TOKEN, Repository
from huggingface_hub import DatasetCard
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from pictures import png
from tiny_artefacts import METRICS, WORDS, tiny, word_tokenizer
from tiny_trainer import tiny_trainer

import farzi_hf.summary.store.hub
from farzi_hf.cli import main
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.card import OF_THE_DATA

PLAIN = {
    "README.md",
    "config.json",
    "farzi.safetensors",
    "viewer.html",
    *(f"{name}/train-00000-of-00001.parquet" for name in ("latents", "decoder", "tokens")),
}
# The trainers here begin with softened sequences of the data, so there is no page that shows rows.
OF_DATA = PLAIN - {"viewer.html"}
# huggingface_hub uploads large files in a way that its HTTP client calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}


def files_of(hub, branch="main", name="user/farzi") -> set[str]:
    return set(hub.repositories[name].files(branch)) - {".gitattributes"}


# -- pushing ---------------------------------------------------------------------------------------


def test_a_push_makes_a_repository_with_the_documented_files_in_one_commit(hub, plot):
    url = tiny().push_to_hub(
        "farzi",
        processing_class=word_tokenizer(),
        metrics=METRICS,
        recipe={"seed": 0},
        plots=[plot],
        commit_message="m",
    )
    repository = hub.repositories["user/farzi"]
    assert files_of(hub) == PLAIN | TOKENIZER | {"metrics.json", "recipe.yaml", "plots/curve.png"}
    assert repository.log["main"] == ["m"]
    assert url.endswith(f"/commit/{repository.branches['main']}")
    assert not repository.private


def test_a_second_push_replaces_the_first_and_files_of_others_stay_unread(hub, plot):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer(), metrics=METRICS, plots=[plot])
    repository = hub.repositories["user/farzi"]
    by_hand = {
        "plots/my_figure.png": b"by hand",
        "vocabulary.json": b"by hand",
        "latents/notes.txt": b"by hand",
    }
    repository.commit("main", {**repository.files(), **by_hand}, "by hand")
    tiny(tau=0.5).push_to_hub("user/farzi")
    assert files_of(hub) == PLAIN | set(by_hand)
    assert len(repository.log["main"]) == 3
    farzi = FarziData.from_pretrained("user/farzi")
    assert (
        farzi.config.tau,
        farzi.processing_class,
        farzi.results.metrics,
        farzi.results.plots,
    ) == (0.5, None, {}, {})


def test_pushing_what_is_there_already_adds_no_commit(hub):
    tiny().push_to_hub("farzi", processing_class=WORDS)
    tiny().push_to_hub("farzi", processing_class=WORDS)
    assert len(hub.repositories["user/farzi"].log["main"]) == 1


def test_nothing_but_the_artefact_leaves_a_folder_that_holds_more(hub, tmp_path):
    tiny().save_pretrained(tmp_path)
    for name in (
        "optimizer.pt",
        "checkpoint-3/optimizer.pt",
        "checkpoint-3/model.safetensors",
        "training_args.bin",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"state")
    main(["push", str(tmp_path), "farzi"])
    assert files_of(hub) == PLAIN


def test_of_a_strangers_summary_nothing_goes_up_as_it_was(hub, tmp_path, caplog):
    """Its page, card and tables could show other rows than one trains on, and run a script, under
    the name of whoever pushes it.
    """
    names = ("own.png", "half.png", "huge.png", "foreign.png", "script.svg", "photo.jpeg", "a.gif")
    plots = [tmp_path / name for name in names]
    for path in plots:
        path.write_bytes(png())
    tiny().save_pretrained(tmp_path / "own", word_tokenizer(), METRICS, {"seed": 0}, plots)
    shutil.copytree(tmp_path / "own", tmp_path / "folder")
    folder = tmp_path / "folder"
    script = "<script>alert('foreign')</script>"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "auto_map": {"foreign": "foreign"}, "note": script})
    )
    (folder / "README.md").write_text(f"---\nconfigs: [{{data_files: foreign.csv}}]\n---\n{script}")
    (folder / "viewer.html").write_text(script)
    for path in folder.glob("*/*.parquet"):
        pq.write_table(pa.table({"text": ["foreign"]}), path)
    wrong = {
        "half.png": png()[:-1],
        "huge.png": png(20_000, 20_000),
        "foreign.png": script.encode(),
        "script.svg": f"<svg>{script}</svg>".encode(),
        "photo.jpeg": b"\xff\xd8\xff" + script.encode(),
    }
    for name, content in wrong.items():
        (folder / "plots" / name).write_bytes(content)
    main(["push", str(folder), "farzi"])
    pushed = hub.repositories["user/farzi"].files()
    assert {name for name in pushed if name.startswith("plots/")} == {"plots/own.png"}
    assert not [name for name, content in pushed.items() if b"foreign" in content]
    *of_the_config, of_the_plots = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in of_the_config] == [
        f"{folder}/config.json.{name}" for name in ("auto_map", "note")
    ]
    assert of_the_plots == (
        "['a.gif', 'foreign.png', 'half.png', 'huge.png', 'photo.jpeg', 'script.svg']: not published;"
        " only images in PNG and JPEG are."
    )
    for name in PLAIN - {"README.md", "farzi.safetensors"}:  # these name the plots
        assert pushed[name] == (tmp_path / "own" / name).read_bytes(), name
    rows = load_dataset("user/farzi", split="train", cache_dir=str(tmp_path / "cache"))
    assert torch.equal(torch.tensor(list(rows["latents"])), tiny().latents)
    FarziData.from_pretrained(folder).save_pretrained(tmp_path / "mine")
    files = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    scripts = {path.parent.name for path in files if script.encode() in path.read_bytes()}
    assert scripts == {"plots"}
    for name in PLAIN - {"README.md", "farzi.safetensors"}:
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "own" / name).read_bytes()


def test_a_jpeg_is_published(hub, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 pixels \xff\xd9")
    tiny().push_to_hub("farzi", plots=[tmp_path / "photo.jpg"])
    assert "plots/photo.jpg" in files_of(hub)


def test_a_dry_run_lists_what_a_push_sends(hub, tmp_path, plot, capsys):
    drawing = tmp_path / "drawing.svg"
    drawing.write_text("<svg/>")
    tiny().save_pretrained(tmp_path / "own", word_tokenizer(), METRICS, None, [plot, drawing])
    (tmp_path / "own" / "README.md").write_text("foreign" * 1000)
    main(["push", str(tmp_path / "own"), "farzi", "--dry_run"])
    assert hub.repositories == {}
    *lines, total, licence = capsys.readouterr().out.splitlines()
    assert licence == "licence on the card: other"
    sizes = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in lines}
    main(["push", str(tmp_path / "own"), "farzi"])
    pushed = hub.repositories["user/farzi"].files()
    assert sizes.keys() == files_of(hub)
    for name in sizes.keys() - {"README.md"}:  # which gets the name of the repository
        assert sizes[name] == len(pushed[name])
    assert total.endswith("bytes would go to farzi, as one commit")


def test_a_push_names_the_licence_that_it_is_given(hub, tmp_path, capsys):
    """And keeps every other fact. Of data that this library knows, the licence is known."""
    tiny().save_pretrained(tmp_path / "own", metrics={"eval_loss": 3.0, "memory_warning": "Rows."})
    main(["push", str(tmp_path / "own"), "farzi", "--dry_run"])
    assert "unknown; name that of your data with --licence NAME" in capsys.readouterr().out
    words = ["push", str(tmp_path / "own"), "farzi", "--licence", "cc-by-4.0", "--language", "en"]
    main([*words, "--dry_run"])
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["licence on the card: cc-by-4.0", "Rows."]
    main(words)
    files = hub.repositories["user/farzi"].files()
    assert b"license: cc-by-4.0" in files["README.md"]
    assert b"language: en" in files["README.md"]
    assert json.loads(files["metrics.json"])["eval_loss"] == 3.0
    known = {"licence": "other", "licence_text": "The source is licensed."}
    tiny().save_pretrained(tmp_path / "known", metrics=known)
    with pytest.raises(SystemExit, match="the licence of these data is 'other'"):
        main(["push", str(tmp_path / "known"), "farzi", "--licence", "mit"])


def test_a_push_warns_of_a_teacher_that_knows_rows_by_heart(hub, caplog):
    tiny().push_to_hub("farzi", metrics={"memory": "little"})
    assert not caplog.records
    tiny().push_to_hub("farzi", metrics={"memory": "much", "memory_warning": "by heart\x1b[2J"})
    assert [record.getMessage() for record in caplog.records] == [
        "by heart\\x1b[2J much Everybody who can read farzi can look for them."
    ]


def test_a_private_repository_opens_with_the_token_alone(hub, tmp_path):
    tiny().push_to_hub("secret", private=True, token=TOKEN)
    farzi = FarziData.from_pretrained("user/secret", token=TOKEN, cache_dir=tmp_path / "cache")
    assert torch.equal(farzi.latents, tiny().latents)
    assert list((tmp_path / "cache").glob("datasets--user--secret/snapshots/*/farzi.safetensors"))
    assert hub.repositories["user/secret"].private
    with pytest.raises(
        FileNotFoundError, match="neither a folder nor a dataset repository within reach"
    ):
        FarziData.from_pretrained("user/secret")
    with pytest.raises(RepositoryNotFoundError):
        tiny().push_to_hub("user/secret", commit_message="without a token")
    assert len(hub.repositories["user/secret"].log["main"]) == 1


def test_a_revision_is_a_branch_of_its_own(hub):
    tiny().push_to_hub("farzi")
    tiny(tau=0.5).push_to_hub("farzi", revision="v2")
    tiny(tau=0.25).push_to_hub("farzi", revision="v2")
    assert [
        FarziData.from_pretrained("user/farzi", revision).config.tau for revision in (None, "v2")
    ] == [1.0, 0.25]
    repository = hub.repositories["user/farzi"]
    assert [len(repository.log[branch]) for branch in ("main", "v2")] == [1, 3]
    assert (
        FarziData.from_pretrained("user/farzi", repository.branches["main"]).config.tau == 1.0
    )  # a commit's name will do


def test_a_commit_of_somebody_else_meanwhile_is_not_overwritten(hub, monkeypatch):
    tiny().push_to_hub("farzi")
    repository, commit = (
        hub.repositories["user/farzi"],
        farzi_hf.summary.store.hub.HfApi.create_commit,
    )

    def beaten(api, *args, **kwargs):
        repository.commit("main", {**repository.files(), "NOTES.md": b"by hand"}, "notes")
        return commit(api, *args, **kwargs)

    monkeypatch.setattr(farzi_hf.summary.store.hub.HfApi, "create_commit", beaten)
    with pytest.raises(HfHubHTTPError, match="412"):
        tiny(tau=0.5).push_to_hub("farzi")
    assert repository.log["main"] == ["Upload Farzi data", "notes"]


# -- loading ---------------------------------------------------------------------------------------


def test_load_dataset_reads_the_three_configs(hub, tmp_path):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer())
    rows, tokens, decoder = (
        list(load_dataset("user/farzi", *config, split="train", cache_dir=str(tmp_path)))
        for config in ((), ("tokens",), ("decoder",))
    )
    assert torch.equal(torch.tensor([row["latents"] for row in rows]), tiny().latents)
    assert (len(tokens), len(decoder)) == (4 * 5, len(WORDS))
    assert all(row["text"] for row in rows)


@pytest.mark.parametrize("vocabulary", [word_tokenizer(), WORDS], ids=["tokenizer", "list"])
def test_from_pretrained_brings_everything_and_pushing_it_on_keeps_it(
    hub, tmp_path, vocabulary, plot
):
    tiny().push_to_hub(
        "farzi", processing_class=vocabulary, metrics=METRICS, recipe={"seed": 0}, plots=[plot]
    )
    farzi = FarziData.from_pretrained("user/farzi")
    assert farzi.results.metrics == METRICS
    farzi.push_to_hub("other/copy")
    copied, original = (hub.repositories[name].files() for name in ("other/copy", "user/farzi"))
    assert set(copied) == set(original)
    changed = {name for name in copied if copied[name] != original[name]}
    assert changed <= {"README.md", "tokenizer_config.json"}
    assert copied["README.md"] == original["README.md"].replace(b"user/farzi", b"other/copy")


def test_the_card_on_the_hub_parses_and_names_its_repository(hub):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer(), metrics=METRICS)
    card = DatasetCard.load("user/farzi")
    assert [config["config_name"] for config in card.data.configs] == [
        "latents",
        "decoder",
        "tokens",
    ]
    assert card.data.task_categories == ["text-generation"]
    assert 'load_dataset("user/farzi"' in card.text
    assert farzi_hf.summary.store.hub.PLACEHOLDER not in card.text
    card.validate(repo_type="dataset")


def test_an_unknown_repository_or_revision_gives_one_clear_error(hub):
    with pytest.raises(
        FileNotFoundError, match=r"folder_or_repo='user/none' is neither a folder nor .* reach"
    ):
        FarziData.from_pretrained("user/none")
    tiny().push_to_hub("farzi")
    with pytest.raises(FileNotFoundError, match=r"revision v9"):
        FarziData.from_pretrained("user/farzi", revision="v9")


# -- the trainer -----------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    return lambda **settings: tiny_trainer(tmp_path / "out", sequences, tokenizer, **settings)


def test_the_trainer_pushes_to_a_dataset_repository(hub, make):
    trainer = make(hub_model_id="farzi", hub_private_repo=True, hub_token=TOKEN, hub_revision="v2")
    trainer.evaluate()
    trainer.push_to_hub()
    assert hub.repositories["user/farzi"].private
    assert files_of(hub, "v2") == OF_DATA | TOKENIZER | {"metrics.json", "recipe.yaml"}


def test_the_trainer_keeps_the_table_and_plots_that_its_summary_was_saved_with(
    hub, make, plot, tmp_path
):
    trainer = make()
    trainer.evaluate()
    trainer.model.save_pretrained(
        tmp_path / "summary", metrics=METRICS, recipe={"seed": 7}, plots=[plot]
    )
    trainer.save_model()
    saved = FarziData.from_pretrained(tmp_path / "out").results
    assert saved.metrics["table"] == METRICS["table"]
    assert "eval_perplexity" in saved.metrics
    assert saved.recipe == {"seed": 7}
    assert set(saved.plots) == {"curve.png"}
    trainer.push_to_hub("farzi")
    assert "plots/curve.png" in files_of(hub)
    trainer.train()  # another summary: what was said of the old one does not hold
    trainer.save_model()
    saved = FarziData.from_pretrained(tmp_path / "out").results
    assert saved.metrics == {
        name: METRICS[name] for name in OF_THE_DATA if name in METRICS
    }  # which have not changed
    assert saved.plots == {}
    assert saved.recipe["learner"]["model_type"] == "gpt2"


@pytest.mark.parametrize("strategy", ["every_save", "all_checkpoints"])
def test_a_saved_summary_is_pushed_and_never_a_checkpoint(hub, make, strategy):
    trainer = make(
        push_to_hub=True,
        hub_model_id="farzi",
        hub_strategy=strategy,
        save_strategy="steps",
        save_steps=2,
    )
    assert files_of(hub) == set()  # made at the start
    trainer.train()
    assert hub.repositories["user/farzi"].log["main"] == ["End of training"]
    assert files_of(hub) == OF_DATA | TOKENIZER | {"recipe.yaml"}
    assert FarziData.from_pretrained("user/farzi").fingerprint() == trainer.model.fingerprint(), (
        "of the finished summary"
    )
    trainer.save_model()
    assert hub.repositories["user/farzi"].log["main"] == ["End of training"], "it is there already"
    trainer.evaluate()
    trainer.save_model()
    assert hub.repositories["user/farzi"].log["main"] == ["End of training", "Save summary"]


def test_a_push_that_fails_at_the_end_does_not_cost_the_training(
    hub, make, monkeypatch, caplog, tmp_path
):
    trainer = make(push_to_hub=True, hub_model_id="farzi", save_strategy="no")
    before = trainer.model.fingerprint()
    monkeypatch.setattr(
        hub.repositories["user/farzi"], "branches", {}
    )  # someone removed the branch meanwhile
    trainer.train()
    assert "not pushed" in caplog.text
    assert trainer.model.fingerprint() != before
    with pytest.raises(HfHubHTTPError):
        trainer.save_model()
    assert FarziData.from_pretrained(tmp_path / "out").fingerprint() == trainer.model.fingerprint()


def test_pushing_needs_a_name(make):
    with pytest.raises(
        ValueError, match=r"repo_id and args\.hub_model_id are both None; give a repository's name"
    ):
        make().push_to_hub()


def test_a_repository_of_other_data_is_refused(hub):
    """Its README.md and config.json were replaced. One that a page of the Hub has just made holds
    nothing that would be missed.
    """
    repository = hub.repositories["user/mine"] = Repository()
    repository.commit(
        "main", {".gitattributes": b"", "README.md": b"mine", "data/train.csv": b"a,b"}
    )
    with pytest.raises(ValueError, match=r"user/mine holds 'data/train\.csv' and no summary"):
        tiny().push_to_hub("user/mine")
    assert repository.files()["README.md"] == b"mine"
    repository.commit("main", {".gitattributes": b"", "README.md": b"empty"})
    tiny().push_to_hub("user/mine")
    assert files_of(hub, name="user/mine") == PLAIN


def test_files_of_others_that_a_push_does_not_replace_are_no_hindrance(hub):
    repository = hub.repositories["user/mine"] = Repository()
    repository.commit("main", {".gitattributes": b"", "notes.txt": b"mine"})
    tiny().push_to_hub("user/mine")
    assert files_of(hub, name="user/mine") == PLAIN | {"notes.txt"}
    assert repository.files()["notes.txt"] == b"mine"
