"""A tokenizer in a folder of somebody else is made of tokenizer.json alone, and is the one that
transformers makes of an honest folder.
"""

from __future__ import annotations

import json
import os

import pytest
from tiny_artefacts import word_tokenizer
from tiny_tokenizers import KINDS, facts
from transformers import AutoTokenizer, ByT5Tokenizer, GPT2Config
from transformers.models.auto import tokenization_auto

from farzi_hf.data import DataUnavailableError
from farzi_hf.data.tokenizer_file import load_tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_folder_gives_the_tokenizer_of_transformers(tmp_path, kind):
    kind().save_pretrained(tmp_path)
    assert facts(load_tokenizer(tmp_path)) == facts(
        AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    )


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "GPT2TokenizerFast"}], ids=str)
def test_special_tokens_that_only_the_class_knows_are_there(tmp_path, settings):
    """As in GPT-2's own repository."""
    (gpt2,) = [kind for kind in KINDS if kind.__name__ == "byte_bpe"]
    gpt2().save_pretrained(tmp_path)
    GPT2Config().save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.bos_token == tokenizer.eos_token == tokenizer.unk_token == "<|endoftext|>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": None}))
    assert load_tokenizer(tmp_path).bos_token is None


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_the_chat_template_comes_with_it(tmp_path, file):
    word_tokenizer().save_pretrained(tmp_path)
    template = "{{ messages }}"
    written = template if file.endswith("jinja") else json.dumps({"chat_template": template})
    (tmp_path / file).write_text(written)
    assert load_tokenizer(tmp_path).chat_template == template


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_no_link_and_no_pipe_is_read(tmp_path, name):
    word_tokenizer().save_pretrained(tmp_path / "own")
    path = tmp_path / "own" / name
    path.unlink(missing_ok=True)
    (tmp_path / "secret").write_text("{}")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=f"{name} is a link, which is not followed"):
        load_tokenizer(tmp_path / "own")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{name} is not a plain file"):
        load_tokenizer(tmp_path / "own")


def test_a_download_in_the_cache_has_links_of_the_hub_alone(tmp_path):
    """A snapshot of a model leads to files of the same repository."""
    repository = tmp_path / "models--user--model"
    snapshot = repository / "snapshots" / "1f"
    word_tokenizer().save_pretrained(repository / "blobs")
    snapshot.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).symlink_to(os.path.relpath(repository / "blobs" / name, snapshot))
    assert load_tokenizer(snapshot).get_vocab() == word_tokenizer().get_vocab()


@pytest.mark.parametrize("key", ["vocab_file", "vocab", "spm_file", "sentencepiece_model_ckpt"])
def test_a_folder_without_tokenizer_json_reads_nothing_else(tmp_path, key):
    (tmp_path / "secret").write_text("SECRET\n[UNK]\n")
    settings = {"tokenizer_class": "BertTokenizer", key: str(tmp_path / "secret")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"has no tokenizer\.json: give a fast one"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_is_not_fast_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no tokenizer\.json: give a fast one"):
        load_tokenizer(tmp_path)


def test_settings_of_another_type_and_code_are_not_taken(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    evil = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "chat_template": 5}
    for name in (*evil, 7, ["BertTokenizer"], "pipeline", "AutoModel"):
        settings = {**evil, "tokenizer_class": name}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert load_tokenizer(tmp_path).chat_template is None


def test_a_repository_that_names_a_file_of_this_machine_is_refused(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **how: made.append(how))
    for key in ("vocab", "vocab_file", "source_spm"):
        settings = {key: str(tmp_path)}
        monkeypatch.setattr(tokenization_auto, "get_tokenizer_config", lambda _, s=settings: s)
        with pytest.raises(ValueError, match=f"would read the file .* of this machine .{key} in"):
            load_tokenizer("user/model")
    assert made == []


def test_a_name_that_leads_nowhere_is_said():
    with pytest.raises(
        DataUnavailableError,
        match="tokenizer='no/such' is neither a folder nor a repository with a tok",
    ):
        load_tokenizer("no/such")


@pytest.mark.parametrize("largest", [2**32 - 2, 2**31, 4 * 10**8, 10**6])
def test_an_id_far_beyond_the_others_is_refused_by_its_number(tmp_path, largest):
    """A copy of the tokenizer walks all ids up to the largest."""
    word_tokenizer().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = largest
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"tokenizer\.json .*its largest id is {largest}"):
        load_tokenizer(tmp_path)
