"""Pushing to dataset repositories and loading from them, over a connection that breaks."""

from __future__ import annotations

import time

import pytest
import torch
from datasets import load_dataset
from hub_server import TOKEN, Fault
from huggingface_hub import DatasetCard
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from tiny_artefacts import METRICS, WORDS, tiny, word_tokenizer
from tiny_trainer import tiny_trainer

import farzi_hf.summary.store.hub
from farzi_hf.summary import FarziData

PLAIN = {
    "README.md", "config.json", "farzi.safetensors", "viewer.html",
    *(f"{name}/train-00000-of-00001.parquet" for name in ("latents", "decoder", "tokens")),
}  # fmt: skip
# huggingface_hub uploads large files in a way that its HTTP client calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def plot(tmp_path):
    path = tmp_path / "curve.png"
    path.write_bytes(b"not really an image")
    return path


def files_of(hub, branch="main", name="user/farzi") -> set[str]:
    return set(hub.repositories[name].files(branch)) - {".gitattributes"}


# -- pushing ---------------------------------------------------------------------------------------------------------


def test_a_push_makes_a_repository_with_the_documented_files_in_one_commit(hub, plot):
    url = tiny().push_to_hub(
        "farzi", processing_class=word_tokenizer(), metrics=METRICS, recipe={"seed": 0}, plots=[plot], commit_message="m",
    )  # fmt: skip
    repository = hub.repositories["user/farzi"]
    assert files_of(hub) == PLAIN | TOKENIZER | {"metrics.json", "recipe.yaml", "plots/curve.png"}
    assert repository.log["main"] == ["m"]
    assert url.endswith(f"/commit/{repository.branches['main']}")
    assert not repository.private


def test_a_second_push_replaces_the_first_and_leaves_the_files_of_others(hub, plot):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer(), metrics=METRICS, plots=[plot])
    repository = hub.repositories["user/farzi"]
    repository.commit("main", {**repository.files(), "NOTES.md": b"by hand"}, "notes")
    second = tiny(tau=0.5)
    second.push_to_hub("user/farzi")
    assert files_of(hub) == PLAIN | {"NOTES.md"}
    assert len(repository.log["main"]) == 3
    assert FarziData.from_pretrained("user/farzi").config.tau == 0.5


@pytest.mark.parametrize("before", ["nothing", "an artefact", "a damaged one"])
def test_a_push_removes_no_file_that_no_artefact_lists(hub, before):
    tiny().push_to_hub("farzi")
    repository = hub.repositories["user/farzi"]
    files = repository.files() if before == "an artefact" else {}
    damaged = {"farzi.safetensors": b"no tensors"} if before == "a damaged one" else {}
    repository.commit("main", {**files, **damaged, "plots/my_figure.png": b"by hand"}, "by hand")
    tiny(tau=0.5).push_to_hub("user/farzi")
    assert files_of(hub) == PLAIN | {"plots/my_figure.png"}
    assert FarziData.from_pretrained("user/farzi").config.tau == 0.5
    for name in ("metrics.json", "vocabulary.json", "latents/train-1.parquet"):
        commits = len(repository.log["main"])
        repository.commit("main", {**repository.files(), name: b"by hand"}, "by hand")
        with pytest.raises(ValueError, match=rf"has {name}, which no summary there lists as its own.*choose another"):
            tiny(tau=0.25).push_to_hub("user/farzi")
        assert len(repository.log["main"]) == commits + 1
        repository.commit("main", {k: v for k, v in repository.files().items() if k != name}, "by hand")


def test_pushing_what_is_there_already_adds_no_commit(hub):
    tiny().push_to_hub("farzi", processing_class=WORDS)
    tiny().push_to_hub("farzi", processing_class=WORDS)
    assert len(hub.repositories["user/farzi"].log["main"]) == 1


def test_nothing_but_the_artefact_leaves_a_folder_that_holds_more(hub, tmp_path):
    tiny().save_pretrained(tmp_path)
    for name in ("optimizer.pt", "checkpoint-3/optimizer.pt", "checkpoint-3/model.safetensors", "training_args.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"state")
    farzi_hf.summary.store.hub.push_folder(tmp_path, "farzi")
    assert files_of(hub) == PLAIN


def test_a_private_repository_opens_with_the_token_alone(hub, tmp_path):
    tiny().push_to_hub("secret", private=True, token=TOKEN)
    farzi = FarziData.from_pretrained("user/secret", token=TOKEN, cache_dir=tmp_path / "cache")
    assert torch.equal(farzi.latents, tiny().latents)
    assert list((tmp_path / "cache").glob("datasets--user--secret/snapshots/*/farzi.safetensors"))
    assert hub.repositories["user/secret"].private
    with pytest.raises(FileNotFoundError, match="neither a folder nor a dataset repository within reach"):
        FarziData.from_pretrained("user/secret")
    with pytest.raises(RepositoryNotFoundError):
        tiny().push_to_hub("user/secret", commit_message="without a token")
    assert len(hub.repositories["user/secret"].log["main"]) == 1


def test_a_revision_is_a_branch_of_its_own(hub):
    tiny().push_to_hub("farzi")
    tiny(tau=0.5).push_to_hub("farzi", revision="v2")
    tiny(tau=0.25).push_to_hub("farzi", revision="v2")
    assert [FarziData.from_pretrained("user/farzi", revision).config.tau for revision in (None, "v2")] == [1.0, 0.25]
    repository = hub.repositories["user/farzi"]
    assert [len(repository.log[branch]) for branch in ("main", "v2")] == [1, 3]
    assert (
        FarziData.from_pretrained("user/farzi", repository.branches["main"]).config.tau == 1.0
    )  # a commit's name will do


# -- broken connections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "repos/create"),
        Fault("POST", "repos/create", after=True),
        Fault("POST", "branch/v2", after=True),
        Fault("GET", "api/datasets/user/farzi", times=2),
        Fault("POST", "validate-yaml"),
        Fault("POST", "preupload", status=503),
        Fault("POST", "objects/batch"),
        Fault("PUT", "lfs", times=3),
        Fault("PUT", "lfs", after=True),
        Fault("POST", "/commit/", status=500),
        Fault("POST", "/commit/", after=True),
        Fault("POST", "/commit/", times=3),
    ],
    ids=lambda fault: f"{fault.method} {fault.path}{' answer lost' if fault.after else ''}",
)
def test_a_flaky_connection_is_tried_again_until_there_is_one_commit(hub, fault):
    hub.faults = [fault]
    tiny().push_to_hub("farzi", revision="v2", processing_class=word_tokenizer())
    assert fault.times == 0
    assert hub.repositories["user/farzi"].log["v2"] == ["Upload Farzi data"]
    assert files_of(hub, "v2") == PLAIN | TOKENIZER


def test_a_push_that_broke_off_resumes_without_sending_large_files_again(hub):
    hub.faults = [Fault("POST", "/commit/", times=10**6)]
    with pytest.raises(ConnectionError, match=r"repo_id='user/farzi' could not be reached in 5 attempts .* try again"):
        tiny().push_to_hub("farzi")
    assert files_of(hub) == set()  # nothing half there
    sent = [path for method, path in hub.requests if method == "PUT"]
    assert len(sent) == 4  # the tensors and three tables, once each
    hub.faults, hub.requests[:] = [], []
    tiny().push_to_hub("farzi")
    assert files_of(hub) == PLAIN
    assert not [path for method, path in hub.requests if method == "PUT"]


def test_a_refusal_is_not_tried_again(hub):
    hub.faults = [Fault("POST", "repos/create", status=403)]
    with pytest.raises(OSError, match="403"):
        tiny().push_to_hub("farzi")
    assert [path for method, path in hub.requests if method == "POST"] == ["/api/repos/create"]


def test_a_commit_of_somebody_else_meanwhile_is_kept(hub, monkeypatch):
    tiny().push_to_hub("farzi")
    repository, commit = hub.repositories["user/farzi"], farzi_hf.summary.store.hub.HfApi.create_commit

    def beaten(api, *args, **kwargs):
        if len(repository.log["main"]) == 1:
            repository.commit("main", {**repository.files(), "NOTES.md": b"by hand"}, "notes")
        return commit(api, *args, **kwargs)

    monkeypatch.setattr(farzi_hf.summary.store.hub.HfApi, "create_commit", beaten)
    tiny(tau=0.5).push_to_hub("farzi")
    assert repository.log["main"] == ["Upload Farzi data", "notes", "Upload Farzi data"]
    assert files_of(hub) == PLAIN | {"NOTES.md"}


def test_a_download_that_broke_off_is_tried_again(hub):
    tiny().push_to_hub("farzi-flaky")
    hub.faults = [Fault("GET", "resolve/.*farzi.safetensors"), Fault("HEAD", "resolve/.*config.json", status=503)]
    assert torch.equal(FarziData.from_pretrained("user/farzi-flaky").latents, tiny().latents)


# -- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_load_dataset_reads_the_three_configs(hub, tmp_path, streaming):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer())
    name = "user/farzi"
    rows, tokens, decoder = (
        list(load_dataset(name, *config, split="train", streaming=streaming, cache_dir=str(tmp_path)))
        for config in ((), ("tokens",), ("decoder",))
    )
    assert torch.equal(torch.tensor([row["latents"] for row in rows]), tiny().latents)
    assert (len(tokens), len(decoder)) == (4 * 5, len(WORDS))
    assert all(row["text"] for row in rows)


@pytest.mark.parametrize("vocabulary", [word_tokenizer(), WORDS, None], ids=["tokenizer", "list", "none"])
def test_from_pretrained_brings_everything_and_pushing_it_on_keeps_it(hub, tmp_path, vocabulary, plot):
    tiny().push_to_hub("farzi", processing_class=vocabulary, metrics=METRICS, recipe={"seed": 0}, plots=[plot])
    farzi = FarziData.from_pretrained("user/farzi")
    assert farzi.decode() == tiny_with(vocabulary).decode()
    assert farzi.results.metrics == METRICS
    farzi.push_to_hub("other/copy")
    copied, original = (hub.repositories[name].files() for name in ("other/copy", "user/farzi"))
    assert set(copied) == set(original)
    changed = {name for name in copied if copied[name] != original[name]}
    assert changed <= {"README.md", "tokenizer_config.json"}  # transformers notes there where a tokenizer came from
    assert copied["README.md"] == original["README.md"].replace(b"user/farzi", b"other/copy")


def tiny_with(vocabulary) -> FarziData:
    farzi = tiny()
    farzi.processing_class = vocabulary
    return farzi


def test_the_card_on_the_hub_parses_and_names_its_repository(hub):
    tiny().push_to_hub("farzi", processing_class=word_tokenizer(), metrics=METRICS)
    card = DatasetCard.load("user/farzi")
    assert [config["config_name"] for config in card.data.configs] == ["latents", "decoder", "tokens"]
    assert card.data.task_categories == ["text-generation"]
    assert 'load_dataset("user/farzi"' in card.text
    assert farzi_hf.summary.store.hub.PLACEHOLDER not in card.text
    card.validate(repo_type="dataset")


def test_another_vocabulary_in_the_repository_is_refused(hub):
    tiny().push_to_hub("farzi", processing_class=WORDS)
    repository = hub.repositories["user/farzi"]
    repository.commit("main", {**repository.files(), "vocabulary.json": b'["another", "list"]'})
    with pytest.raises(ValueError, match="folder_or_repo brings a vocabulary with hash"):
        FarziData.from_pretrained("user/farzi")


def test_an_unknown_repository_or_revision_gives_one_clear_error(hub):
    with pytest.raises(FileNotFoundError, match=r"folder_or_repo='user/none' is neither a folder nor .* reach"):
        FarziData.from_pretrained("user/none")
    tiny().push_to_hub("farzi")
    with pytest.raises(FileNotFoundError, match=r"revision v9"):
        FarziData.from_pretrained("user/farzi", revision="v9")


def test_an_unreachable_hub_gives_one_clear_error(monkeypatch):
    def download(*args, **kwargs):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(farzi_hf.summary.store.hub, "snapshot_download", download)
    with pytest.raises(FileNotFoundError, match=r"folder_or_repo='user/none' is neither a folder nor .* no connection"):
        FarziData.from_pretrained("user/none")


# -- the trainer -----------------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    return lambda **settings: tiny_trainer(tmp_path / "out", sequences, tokenizer, **settings)


def test_the_trainer_pushes_to_a_dataset_repository(hub, make):
    trainer = make(hub_model_id="farzi", hub_private_repo=True, hub_token=TOKEN, hub_revision="v2")
    trainer.evaluate()
    trainer.push_to_hub()
    assert hub.repositories["user/farzi"].private
    assert files_of(hub, "v2") == PLAIN | TOKENIZER | {"metrics.json", "recipe.yaml"}


def test_the_trainer_keeps_the_table_and_plots_that_its_summary_was_saved_with(hub, make, plot, tmp_path):
    trainer = make()
    trainer.evaluate()
    trainer.model.save_pretrained(tmp_path / "summary", metrics=METRICS, recipe={"seed": 7}, plots=[plot])
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
    assert saved.metrics == {}
    assert saved.plots == {}
    assert saved.recipe["learner"]["model_type"] == "gpt2"


@pytest.mark.parametrize("strategy", ["every_save", "all_checkpoints"])
def test_a_saved_summary_is_pushed_and_never_a_checkpoint(hub, make, strategy):
    trainer = make(push_to_hub=True, hub_model_id="farzi", hub_strategy=strategy, save_strategy="steps", save_steps=2)
    assert files_of(hub) == set()  # made at the start
    trainer.train()
    assert hub.repositories["user/farzi"].log["main"] == []
    trainer.save_model()
    assert hub.repositories["user/farzi"].log["main"] == ["Save summary"]
    assert files_of(hub) == PLAIN | TOKENIZER | {"recipe.yaml"}


def test_only_the_first_process_pushes(hub, make, monkeypatch):
    trainer = make()
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    assert trainer.push_to_hub("farzi") is None
    assert trainer.push_to_hub() is None  # the first process alone knows the default name
    assert hub.repositories == {}


def test_pushing_needs_a_name(make):
    with pytest.raises(
        ValueError, match=r"repo_id and args\.hub_model_id are both None; give the dataset repository's name"
    ):
        make().push_to_hub()
