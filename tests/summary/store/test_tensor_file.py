"""How the tensors of a summary are stored."""

from __future__ import annotations

import pytest
import torch
from datasets import load_dataset
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_trainer import tiny_trainer

from farzi_hf import FarziData, FarziDataConfig
from farzi_hf.summary.store import tensor_file
from farzi_hf.summary.store.folder import CARD, TENSORS
from farzi_hf.summary.store.tensor_file import STORAGES

ROUNDED = [name for name in STORAGES if name != "exact"]
OWN = {"labels": "own", "inputs": "tokens"}


def summary(vocab_size: int = 40, **changes) -> FarziData:
    torch.manual_seed(0)
    settings = {"latent_std": 1.0, **OWN, **changes}
    own = {"label_dim": 4} if settings["labels"] == "own" else {}
    return FarziData(FarziDataConfig(6, 5, 3, vocab_size, **own | settings))


@given(
    values=st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=12, max_size=12),
    name=st.sampled_from(["latents", "label_decoder"]),
    way=st.sampled_from(
        [name for name in ROUNDED if "coded" not in name]
    ),  # their scales are of half precision
)
def test_a_number_is_off_by_half_a_scale_at_most_and_is_stored_the_same_again(values, name, way):
    x = torch.tensor(values).view(2, 2, 3) if name == "latents" else torch.tensor(values).view(3, 4)
    storage = STORAGES[way]
    stored = storage.stored({name: x})
    loaded = storage.loaded(stored, {name: x.shape})
    scale = stored[f"{name}.scale"]
    assert loaded[name].shape == x.shape
    assert scale.shape == (3,)
    along = scale if name == "latents" else scale[:, None]
    largest = x.abs().amax((0, 1)) if name == "latents" else x.abs().amax(1)
    assert ((loaded[name] - x).abs() <= along * (0.5 + 1e-5)).all()
    exact = (loaded[name] == x).all(0).all(0) if name == "latents" else (loaded[name] == x).all(1)
    smallest = (largest / (2 ** (storage.bits - 1) - 1) * (1 + 2**-10)).clamp(min=2.0**-100)
    assert ((scale <= smallest) | exact).all()
    again = storage.stored(loaded)
    assert all(torch.equal(again[key], stored[key]) for key in stored)


@pytest.mark.parametrize(
    ("way", "dtype", "last"),
    [
        ("int8", torch.int8, 5),
        ("int6", torch.uint8, 4),
        ("int5", torch.uint8, 4),
        ("int4", torch.uint8, 3),
    ],
)
def test_numbers_have_no_more_bits_than_they_need(way, dtype, last):
    """Five numbers of a position have 40, 30, 25 or 20 bits."""
    shapes = {"latents": (2, 3, 5), "decoder": (5, 7)}
    stored = STORAGES[way].stored({name: torch.randn(shape) for name, shape in shapes.items()})
    layout = STORAGES[way].layout(shapes, list(shapes))
    assert {name: tuple(x.shape) for name, x in stored.items()} == {
        name: part.shape for name, part in layout.items()
    }
    assert (stored["latents"].dtype, stored["latents"].shape) == (dtype, (2, 3, last))
    assert stored["decoder"].shape == ((5, 7) if way == "int8" else (7, last))


def test_four_bits_are_in_the_order_that_is_documented():
    x = torch.tensor([[[7.0, -7.0, 0.0]]])
    stored = STORAGES["int4"].stored({"latents": x})
    assert stored["latents.scale"].tolist() == [1.0, 1.0, 2.0**-100]
    assert stored["latents"].tolist() == [[[0xF1, 0x80]]]  # 7 + 8, −7 + 8, 0 + 8


@pytest.mark.parametrize(("largest", "dtype"), [(32_767, torch.int16), (32_768, torch.int32)])
def test_ids_take_two_bytes_where_they_fit(largest, dtype):
    ids = torch.tensor([[0, largest]], dtype=torch.int32)
    stored = STORAGES["int8"].stored({"input_ids": ids})
    assert stored["input_ids"].dtype == dtype
    assert torch.equal(STORAGES["int8"].loaded(stored, {"input_ids": ids.shape})["input_ids"], ids)


@pytest.mark.parametrize("way", ROUNDED)
@pytest.mark.parametrize(
    "form", [OWN, {"inputs": "soft", "labels": "own"}, {"inputs": "soft", "labels": "shared"}]
)
def test_a_rounded_summary_is_saved_and_loaded(tmp_path, form, way):
    farzi = summary(**form)
    before = {name: x.detach().clone() for name, x in farzi.tensors.items()}
    exact = farzi.nbytes
    farzi.store_as(way)
    assert farzi.nbytes < exact / 2
    for name, x in farzi.tensors.items():
        assert x.dtype == before[name].dtype
        scale = before[name].abs().max() / (2 ** (STORAGES[way].bits - 1) - 1)
        torch.testing.assert_close(x.detach(), before[name], atol=0.51 * float(scale), rtol=0)
    farzi.save_pretrained(tmp_path)
    loaded = FarziData.from_pretrained(tmp_path)
    assert loaded.config.storage == way
    assert all(
        x.is_contiguous() for x in loaded.tensors.values()
    )  # as safetensors demands of a checkpoint
    assert (loaded.fingerprint(), loaded.nbytes) == (farzi.fingerprint(), farzi.nbytes)
    stored = load_file(tmp_path / TENSORS)
    assert farzi.nbytes == sum(x.numel() * x.element_size() for x in stored.values())
    assert f"| stored | {STORAGES[way].description} |" in (tmp_path / CARD).read_text(
        encoding="utf-8"
    )
    loaded.save_pretrained(tmp_path / "again")
    assert all(
        torch.equal(x, stored[name]) for name, x in load_file(tmp_path / "again" / TENSORS).items()
    )


def test_the_tables_hold_the_numbers_of_the_file(tmp_path):
    farzi = summary(storage="int4")  # its tensors were never rounded
    farzi.save_pretrained(tmp_path)
    table = load_dataset(str(tmp_path), "labels", split="train").with_format("torch")
    loaded = FarziData.from_pretrained(tmp_path)
    assert torch.equal(torch.stack(list(table["labels"])), loaded.label_latents.detach())
    assert not torch.equal(loaded.label_latents, farzi.label_latents)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_float32_is_rounded(dtype):
    with pytest.raises(ValueError, match=r"storage='int8' is for float32, and .*; call float"):
        summary().to(dtype).store_as("int8")


def test_exact_rounds_nothing(tmp_path):
    farzi = summary()
    before = farzi.fingerprint()
    farzi.store_as("exact")
    assert farzi.fingerprint() == before
    with pytest.raises(ValueError, match=r"storage must be one of 'exact', 'int8', .*, got 'int2'"):
        farzi.store_as("int2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {**x, "label_decoder": x["label_decoder"].float()}, "has 'label_decoder' F32"),
        (
            lambda x: {name: y for name, y in x.items() if name != "label_decoder.scale"},
            "has 'label_decoder.scale' missing",
        ),
        (
            lambda x: {**x, "label_decoder.scale": x["label_decoder.scale"] * torch.inf},
            "NaN or infinity",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    farzi = summary()
    farzi.store_as("int8")
    farzi.save_pretrained(tmp_path)
    save_file(change(load_file(tmp_path / TENSORS)), tmp_path / TENSORS)
    with pytest.raises(ValueError, match=message):
        FarziData.from_pretrained(tmp_path)


def test_a_distillation_rounds_its_finished_summary_and_no_checkpoint(
    tmp_path, sequences, tokenizer
):
    settings = {"storage": "int8", "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    trainer = tiny_trainer(tmp_path / "a", sequences, tokenizer, **settings)
    trainer.train()
    exact = tiny_trainer(tmp_path / "b", sequences, tokenizer, **{**settings, "storage": "exact"})
    exact.train()
    last = load_file(tmp_path / "a" / "checkpoint-2" / "model.safetensors")
    assert all(torch.equal(last[name], x) for name, x in exact.model.tensors.items())
    assert trainer.model.fingerprint() != exact.model.fingerprint()
    assert trainer.model.nbytes < exact.model.nbytes / 3
    assert trainer.evaluate()["eval_loss"] > 0
    trainer.save_model(str(tmp_path / "saved"))
    saved = FarziData.from_pretrained(tmp_path / "saved")
    assert saved.fingerprint() == trainer.model.fingerprint()
    assert "eval_loss" in saved.results.metrics
    resumed = tiny_trainer(tmp_path / "a", sequences, tokenizer, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert resumed.model.fingerprint() == trainer.model.fingerprint()


def test_a_file_that_goes_while_it_is_opened_is_one_that_is_not_there(tmp_path, monkeypatch):
    """torch opens it by its name after safetensors has, and raises a RuntimeError."""
    summary().save_pretrained(tmp_path)
    path = tmp_path / TENSORS

    def open_twice(name, framework):
        path.unlink()
        return torch.UntypedStorage.from_file(str(name), shared=False, nbytes=8)

    monkeypatch.setattr(tensor_file, "safe_open", open_twice)
    with pytest.raises(FileNotFoundError, match="has gone while it was read"):
        tensor_file.listed_files(path)
