"""FarziData: soft tokens, decoding, the dataset it turns into, and loading what it saved."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_bytes import LiveBytes
from tiny_artefacts import WORDS, tiny, word_tokenizer

from farzi_hf.summary import FarziData, FarziDataConfig, reading, soft_tokens
from farzi_hf.summary.forms import Forms

INNER = {"optimizer": "adam", "lr": 0.01, "eps": 1e-4, "betas": (0.9, 0.999), "steps": 300}


# -- config ----------------------------------------------------------------------------------------


def test_config_survives_a_save(tmp_path):
    FarziDataConfig()  # as transformers builds it
    config = FarziDataConfig(4, 5, 3, 7, tau=2, inner=INNER, vocabulary_hash="abc")
    config.save_pretrained(tmp_path)
    loaded = FarziDataConfig.from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert loaded.inner == {**INNER, "betas": [0.9, 0.999]}
    assert loaded != FarziDataConfig(5, 5, 3, 7)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_sequences": 0}, "num_sequences"),
        ({"sequence_length": 1}, "sequence_length"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"vocab_size": 1}, "vocab_size"),
        ({"vocab_size": 7.5}, "vocab_size"),
        ({"num_sequences": True}, "num_sequences"),
        ({"tau": 0.0}, "tau"),
        ({"tau": float("nan")}, "tau"),
        ({"tau": float("inf")}, "tau"),
        ({"latent_std": -1.0}, "latent_std"),
        ({"inner": {"lr": torch.ones(1)}}, "inner"),
    ],
)
def test_bad_config_names_the_argument_and_the_value(changes, named):
    with pytest.raises(ValueError, match=f"{named} must .* got"):
        FarziDataConfig(**changes)


# -- soft tokens -----------------------------------------------------------------------------------


def test_forward_gives_the_soft_tokens_of_the_indexed_sequences():
    farzi = tiny(tau=0.5)
    indices = torch.tensor([2, 0])
    expected = torch.softmax(
        torch.einsum("bld,dv->blv", farzi.latents[indices], farzi.decoder) / 0.5, -1
    )
    torch.testing.assert_close(farzi(indices), expected)
    torch.testing.assert_close(
        farzi(indices), soft_tokens(farzi.latents[indices], farzi.decoder, 0.5)
    )
    assert farzi(indices).shape == (2, 5, 7)


def test_forward_evaluates_a_functional_where_hooks_see_it():
    farzi, seen = tiny(), []
    farzi.register_forward_hook(lambda module, inputs, output: seen.append(output))
    objective = farzi(
        functional=lambda tensors: tensors["latents"].square().sum() + tensors["decoder"].sum()
    )
    objective.backward()
    assert seen == [objective]
    torch.testing.assert_close(farzi.latents.grad, 2 * farzi.latents)
    torch.testing.assert_close(farzi.decoder.grad, torch.ones_like(farzi.decoder))


@pytest.mark.parametrize(
    "indices",
    [None, torch.tensor(1), torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor([True])],
)
def test_bad_indices_are_refused(indices):
    with pytest.raises(ValueError, match=r"indices must be an integer tensor of shape \(b,\), got"):
        tiny()(indices)


def test_initial_soft_tokens_are_close_to_uniform():
    torch.manual_seed(0)
    farzi = FarziData(FarziDataConfig(50, 10, 8, 40))
    assert farzi.latents.std().item() == pytest.approx(0.1, rel=0.1)
    assert farzi.decoder.std().item() == pytest.approx(0.1, rel=0.1)
    assert (farzi(torch.arange(50)) - 1 / 40).abs().max() < 0.2 / 40
    assert farzi.nbytes == 4 * (50 * 10 * 8 + 8 * 40)


# -- dataset and collator --------------------------------------------------------------------------


def test_dataset_and_collator_give_the_soft_tokens():
    farzi = tiny(tau=0.5)
    dataset, collator = farzi.as_dataset(), pickle.loads(pickle.dumps(farzi.collator()))
    assert dataset.column_names == ["input_ids"]
    assert str(dataset.features["input_ids"]) == "List(List(Value('float32'), length=3), length=5)"
    batch = collator([dataset[2], dataset[0]])
    torch.testing.assert_close(batch["input_ids"], farzi(torch.tensor([2, 0])).detach())
    assert torch.equal(batch["labels"], batch["input_ids"])
    assert batch["shift_labels"].shape == (2, 4)
    assert not batch["shift_labels"].is_floating_point()
    assert (batch["shift_labels"] >= 0).all()


# -- hard tokens -----------------------------------------------------------------------------------


def test_drawn_labels_are_independent_of_drawn_inputs():
    config = FarziDataConfig(50, 20, 4, 100, latent_std=1e-3, labels="own")
    rows = FarziData(config).as_hard_dataset(20)[:]
    equal = (rows["labels"][:, 1:] == rows["input_ids"][:, :-1]).float().mean().item()
    assert equal == pytest.approx(0.01, abs=0.004)  # both are almost uniform over 100 entries


def test_the_hard_dataset_of_likeliest_tokens():
    farzi = tiny()
    rows = farzi.as_hard_dataset()
    assert rows.column_names == ["input_ids", "labels"]
    assert torch.equal(rows[:]["input_ids"], farzi(torch.arange(4)).argmax(-1))
    assert torch.equal(rows[:]["labels"], rows[:]["input_ids"])
    assert not rows[0]["input_ids"].is_floating_point()


def test_drawn_tokens_follow_the_distributions(monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 3)  # chunks that end within a sequence
    farzi, n = tiny(tau=0.5), 4000
    drawn = farzi.as_hard_dataset(n, seed=1)[:]["input_ids"].view(4, n, 5)
    shares = torch.nn.functional.one_hot(drawn, 7).float().mean(1)
    assert (shares - farzi(torch.arange(4))).abs().max() < 5 * 0.5 / n**0.5  # standard errors


def test_draws_are_a_function_of_the_seed():
    first, again, other = (tiny().as_hard_dataset(3, seed)[:]["input_ids"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (12, 5)


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_bad_numbers_of_samples_and_tokens_are_refused(number):
    for name, read in (("samples_per_sequence", tiny().as_hard_dataset), ("top_k", tiny().decode)):
        with pytest.raises(
            ValueError, match=f"{name} must be an integer of at least 1, got {number}"
        ):
            read(number)


# -- decode ----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    mu=st.integers(1, 4),
    length=st.integers(2, 4),
    size=st.integers(2, 9),
    top_k=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_decode_agrees_with_the_soft_tokens(mu, length, size, top_k, seed):
    torch.manual_seed(seed)
    farzi = FarziData(FarziDataConfig(mu, length, 2, size, latent_std=2.0))
    soft = farzi(torch.arange(mu)).detach()
    decoded = farzi.decode(top_k)
    assert (len(decoded), len(decoded[0]), len(decoded[0][0]["tokens"])) == (
        mu,
        length,
        min(top_k, size),
    )
    for i, sequence in enumerate(decoded):
        for j, position in enumerate(sequence):
            p = soft[i, j]
            assert position["probabilities"] == sorted(position["probabilities"], reverse=True)
            torch.testing.assert_close(
                torch.tensor(position["probabilities"]), p[position["tokens"]]
            )
            assert position["entropy"] == pytest.approx(
                torch.distributions.Categorical(p).entropy().item(), abs=1e-4
            )


def test_decode_names_tokens_where_there_is_a_vocabulary():
    farzi = tiny()
    ids = farzi.decode(2)[0][0]["tokens"]
    farzi.processing_class = word_tokenizer()
    assert farzi.decode(2)[0][0]["tokens"] == [WORDS[i] for i in ids]
    farzi.processing_class = WORDS[
        :1
    ]  # a padded output layer: entries beyond the vocabulary show as ids
    assert farzi.decode(2)[0][0]["tokens"] == [WORDS[0] if i == 0 else f"[{i}]" for i in ids]


@pytest.mark.parametrize("form", [{}, {"inputs": "tokens", "labels": "own", "label_dim": 2}])
def test_the_contents_decode_a_few_sequences_at_a_time(form, monkeypatch):
    farzi, read = tiny(**form), []
    whole, decode = farzi.decode(5), Forms.decode

    def noted(forms, *arguments):
        sequences = decode(forms, *arguments)
        read.append(len(sequences))
        return sequences

    monkeypatch.setattr(Forms, "decode", noted)
    monkeypatch.setattr(reading, "_AT_ONCE", 3)
    decoded = farzi.contents().decoded
    assert (len(decoded), read) == (4, [])
    assert list(decoded) == whole
    assert (decoded[0], decoded[-1], decoded[1:3]) == (whole[0], whole[-1], whole[1:3])
    assert read == [3, 1, 1, 1, 2]
    with pytest.raises(IndexError):
        decoded[4]


def test_nothing_of_size_mu_xi_v_exists(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "CHUNK", 16)
    farzi = tiny(num_sequences=20, sequence_length=10, vocab_size=300)
    with LiveBytes() as largest:
        farzi(torch.tensor([0, 1])).sum().backward()
        farzi.save_pretrained(tmp_path)
        farzi.collator()([farzi.as_dataset()[0]])
    assert largest.elements <= 20 * 300


# -- save and load ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load(tmp_path, dtype):
    farzi = tiny(inner=INNER, tau=0.7).to(dtype)
    farzi.save_pretrained(tmp_path / "new" / "folder")
    loaded = FarziData.from_pretrained(tmp_path / "new" / "folder")
    for name, parameter in farzi.named_parameters():
        assert torch.equal(getattr(loaded, name), parameter)
        assert getattr(loaded, name).dtype == dtype
        assert getattr(loaded, name).requires_grad
    assert loaded.config.to_diff_dict() == farzi.config.to_diff_dict()
    assert loaded.processing_class is None


@pytest.mark.parametrize("vocabulary", [word_tokenizer(), WORDS], ids=["tokenizer", "list"])
def test_the_vocabulary_travels_along(tmp_path, vocabulary):
    farzi = tiny()
    farzi.save_pretrained(tmp_path, processing_class=vocabulary)
    loaded = FarziData.from_pretrained(tmp_path)
    assert farzi.config.vocabulary_hash == loaded.config.vocabulary_hash is not None
    assert loaded.decode() == farzi.decode()
    assert loaded.decode()[0][0]["tokens"][0] in WORDS


def test_another_vocabulary_is_refused_on_save_and_on_load(tmp_path):
    farzi, other = tiny(), word_tokenizer([*WORDS[:-1], "dog"])
    farzi.save_pretrained(tmp_path, processing_class=word_tokenizer())
    with pytest.raises(ValueError, match="processing_class brings a vocabulary with hash"):
        farzi.save_pretrained(tmp_path, processing_class=other)
    assert (
        FarziData.from_pretrained(tmp_path).processing_class.get_vocab()
        == word_tokenizer().get_vocab()
    )
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="folder_or_repo brings a vocabulary with hash"):
        FarziData.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="brings 8 entries, the summary has 7"):
        tiny().save_pretrained(tmp_path, processing_class=[*WORDS, "dog"])


def test_a_broken_summary_is_not_saved(tmp_path):
    farzi = tiny()
    farzi.save_pretrained(tmp_path)
    before = farzi.latents.detach().clone()
    farzi.latents.data[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="latents holds NaN or infinity"):
        farzi.save_pretrained(tmp_path)
    assert torch.equal(FarziData.from_pretrained(tmp_path).latents, before)


def test_files_of_different_summaries_are_refused_and_a_missing_one_is_named(tmp_path):
    tiny().save_pretrained(tmp_path)
    FarziDataConfig(9, 5, 3, 7).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"has .latents. F32 \(4, 5, 3\), where config\.json says .* \(9, 5, 3\)"
    ):
        FarziData.from_pretrained(tmp_path)
    for name in ("farzi.safetensors", "config.json"):
        tiny().save_pretrained(folder := tmp_path / f"without {name}")
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"has no {name}"):
            FarziData.from_pretrained(folder)


def test_what_it_was_saved_with_is_remembered_as_long_as_it_holds(tmp_path):
    farzi = tiny()
    farzi.save_pretrained(tmp_path / "a", metrics={"x": 1}, recipe={"seed": 0})
    loaded = FarziData.from_pretrained(tmp_path / "a")
    assert loaded.results == farzi.results
    loaded.save_pretrained(tmp_path / "b", recipe={"seed": 1})
    assert (loaded.results.metrics, loaded.results.recipe) == ({"x": 1}, {"seed": 1})
    assert FarziData.from_pretrained(tmp_path / "b").results == loaded.results
    loaded.latents.data += 1
    assert loaded.results.metrics == {}
    loaded.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b" / "metrics.json").exists()


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for name in "ab":
        tiny().save_pretrained(tmp_path / name, processing_class=WORDS, metrics={"x": 1})
    files = [
        path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()
    ]
    assert all(
        (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        for file in files
    )
