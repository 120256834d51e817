"""Folders that somebody else filled: read without following links or changing anything, or refused
by the name of the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import snapshot_download
from pictures import png
from safetensors.torch import load_file, save_file
from tiny_artefacts import METRICS, WORDS, listing, tiny, word_tokenizer

from farzi_hf.summary import FarziData

SECRET = b"root:x:0:0"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """An artefact with a tokenizer, metrics, a recipe and a plot."""
    place = tmp_path_factory.mktemp("saved")
    plot = place / "curve.png"
    plot.write_bytes(png())
    tiny().save_pretrained(place / "artefact", word_tokenizer(), METRICS, {"seed": 0}, [plot])
    return place / "artefact"


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy of that artefact."""
    return shutil.copytree(saved, tmp_path / "artefact")


@pytest.fixture
def outside(tmp_path) -> Path:
    """What no artefact may read, change or remove."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret.png").write_bytes(SECRET)
    return path


def push(folder: Path, repo: str) -> None:
    """As `farzi push` does."""
    FarziData.from_pretrained(folder).push_to_hub(repo)


def refused(folder: Path, name: str, error: type[Exception] = ValueError) -> None:
    """Asserts that loading fails, names the file, and changes nothing."""
    before = listing(folder.parent)
    with pytest.raises(error, match=re.escape(name)):
        FarziData.from_pretrained(folder)
    assert listing(folder.parent) == before


def rewrite(folder: Path, tensors: dict[str, torch.Tensor], **metadata) -> None:
    save_file(
        tensors,
        folder / "farzi.safetensors",
        metadata={k: json.dumps(v) for k, v in metadata.items()},
    )


def claim(folder: Path, *names: str) -> None:
    """Makes the artefact say that these files belong to it."""
    rewrite(folder, load_file(folder / "farzi.safetensors"), farzi={"files": list(names)})


# -- links -----------------------------------------------------------------------------------------


READ = [
    "farzi.safetensors",
    "config.json",
    "metrics.json",
    "recipe.yaml",
    "plots/curve.png",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocabulary.json",
]
SHOWN = ["README.md", "viewer.html", "latents/train-00000-of-00001.parquet"]


@pytest.mark.parametrize("name", READ + SHOWN)
@pytest.mark.parametrize(
    ("link", "message"), [(Path.symlink_to, "a link"), (Path.hardlink_to, "not a plain file")]
)
def test_a_link_is_neither_read_nor_published(hub, folder, outside, name, link, message):
    """The other name of a hard link can be that of a private file."""
    if name == "vocabulary.json":
        tiny().save_pretrained(folder, WORDS)
    (folder / name).rename(outside / "moved")
    link(folder / name, outside / "moved")
    if name in READ:
        refused(folder, f"{name} is {message}")
        with pytest.raises(ValueError, match=f"{re.escape(name)} is {message}"):
            push(folder, "farzi")
        assert hub.repositories == {}
        return
    moved = listing(outside)
    (outside / "moved").write_bytes(SECRET)
    push(folder, "farzi")  # which reads no such file: it makes it anew
    assert SECRET not in b"".join(hub.repositories["user/farzi"].files().values())
    assert moved.keys() == listing(outside).keys()


def test_a_device_is_not_read(folder):
    (folder / "plots" / "curve.png").unlink()
    (folder / "plots" / "curve.png").symlink_to("/dev/zero")
    refused(folder, "curve.png")
    (folder / "plots" / "curve.png").unlink()
    os.mkfifo(folder / "plots" / "curve.png")
    with pytest.raises(ValueError, match=r"curve\.png is not a plain file"):
        FarziData.from_pretrained(folder)


def test_a_linked_folder_is_refused_by_loading_saving_and_pushing(hub, folder, outside):
    shutil.move(folder / "plots", outside / "plots")
    (folder / "plots").symlink_to(outside / "plots")
    before = listing(outside)
    refused(folder, "plots")
    for call in (lambda: tiny().save_pretrained(folder), lambda: push(folder, "farzi")):
        with pytest.raises(ValueError, match="plots is a link"):
            call()
    assert listing(outside) == before
    assert hub.repositories == {}


@pytest.mark.parametrize("name", [".farzi-committed", ".farzi-committed/config.json"])
def test_a_linked_commit_is_neither_read_nor_moved(folder, outside, name):
    tiny(tau=0.5).save_pretrained(folder / ".farzi-committed")
    (folder / name).rename(outside / "moved")
    (folder / name).symlink_to(outside / "moved")
    before = listing(outside)
    refused(folder, f"{name} is a link")
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is a link"):
        tiny().save_pretrained(folder)
    assert listing(outside) == before


def test_a_commit_is_not_finished_over_folders(folder, outside):
    """Found by fuzzing."""
    shutil.copytree(folder, outside / "whole")
    shutil.move(outside / "whole", folder / ".farzi-committed")
    (folder / "decoder" / "train-00000-of-00001.parquet").unlink()
    (folder / "decoder" / "train-00000-of-00001.parquet").mkdir()
    before = listing(folder)
    with pytest.raises(ValueError, match=r"train-00000-of-00001\.parquet is not a plain file"):
        tiny().save_pretrained(folder)
    assert set(listing(folder)) == set(before)


def test_nothing_is_saved_through_a_link(folder, outside):
    (folder.parent / "summary").symlink_to(outside)
    with pytest.raises(ValueError, match=f"is a link, which is not followed; name '{outside}'"):
        tiny().save_pretrained(folder.parent / "summary")
    assert [path.name for path in outside.iterdir()] == ["secret.png"]


def test_all_files_have_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        tiny().save_pretrained(tmp_path / "new", word_tokenizer(), METRICS, {"seed": 0})
    finally:
        os.umask(before)
    assert {
        path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_file()
    } == {0o640}


# -- names -----------------------------------------------------------------------------------------


def test_files_that_no_artefact_has_are_not_touched_whatever_is_claimed(hub, folder, outside):
    names = [
        "precious.txt",
        "notes/precious.txt",
        "plots/.hidden.png",
        "plots/deep/precious.png",
        "checkpoint-5",
        "plots",
        ".farzi-lock",
    ]
    (folder / "precious.txt").write_text("mine")
    for name in ("notes/precious.txt", "plots/.hidden.png", "plots/deep/precious.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    claim(
        folder,
        *names,
        "README.md",
        "config.json",
        "viewer.html",
        "metrics.json",
        "recipe.yaml",
        "plots/curve.png",
        "tokenizer.json",
        "tokenizer_config.json",
        *(f"{t}/train-00000-of-00001.parquet" for t in ("latents", "decoder", "tokens")),
    )
    farzi = FarziData.from_pretrained(folder)
    assert set(farzi.results.plots) == {"curve.png"}
    push(folder, "farzi")
    assert not any(
        "precious" in name or "hidden" in name for name in hub.repositories["user/farzi"].files()
    )
    tiny().save_pretrained(folder)
    for name in (
        "precious.txt",
        "notes/precious.txt",
        "plots/.hidden.png",
        "plots/deep/precious.png",
    ):
        assert (folder / name).read_text() == "mine"
    assert not (folder / "plots" / "curve.png").exists()


@pytest.mark.parametrize("name", ["config.json", *READ[2:6], *SHOWN[:2]])
def test_files_of_somebody_else_are_not_overwritten(tmp_path, plot, name):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    before = listing(tmp_path)
    with pytest.raises(ValueError, match=f"has a {re.escape(name)} but no farzi.safetensors"):
        tiny().save_pretrained(tmp_path / "mine", word_tokenizer(), METRICS, {"seed": 0}, [plot])
    assert {path: facts for path, facts in listing(tmp_path).items() if path != "mine"} == {
        path: facts
        for path, facts in before.items()
        if path != "mine"  # whose time of change is another
    }


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plots/curve.png", "config.json", "metrics.json", "recipe.yaml", "tokenizer.json"]
)
def test_a_file_of_an_absurd_size_is_refused_at_once(folder, name):
    os.truncate(folder / name, 2**40)  # it takes no room on the disk
    start = time.process_time()
    message = (
        "plots has images of 1,099" if name.startswith("plots/") else f"{name} is larger than the"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        FarziData.from_pretrained(folder)
    assert time.process_time() - start < 10


def test_a_plot_has_to_be_an_image_of_its_own_name(tmp_path, plot):
    huge, text, twin, pipe = (
        tmp_path / name for name in ("huge.png", "notes.txt", "curve.png", "pipe.png")
    )
    for path in (huge, text, twin):
        path.touch()
    os.truncate(huge, 2**30)
    os.mkfifo(pipe)
    own = "plots has .*; give image files, each with a name of its own, like curve.png"
    for plots, message in (
        ([huge], "plots has images of 1,073"),
        ([text], own),
        ([plot, twin], own),
        ([pipe], own),
    ):
        with pytest.raises(ValueError, match=message):
            tiny().save_pretrained(tmp_path / "new", plots=plots)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("num_sequences", 2**63),
        ("sequence_length", 2**64),
        ("latent_dim", 10**30),
        ("vocab_size", 2**40),
    ],
)
def test_an_absurd_size_is_named(folder, name, size):
    change(folder / "config.json", **{name: size})
    refused(
        folder,
        f"config.json is not a config of a summary: {name} must be an integer of at most"
        f" 2,147,483,647, got {size}",
    )


def change(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# -- texts -----------------------------------------------------------------------------------------


NO_MAPPINGS = [
    b"[1, 2]",
    b"[" * 100_000,
    b'{"a":' * 400 + b"1" + b"}" * 400,
    b"\xff\xfe\x00",
    b"{",
    b'"text"',
    b"3",
]
ALIASES = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(30)]
BROKEN = {
    **dict.fromkeys(("config.json", "metrics.json", "tokenizer_config.json"), NO_MAPPINGS),
    "recipe.yaml": [
        *NO_MAPPINGS,
        "\n".join(ALIASES).encode(),
        b"!!python/object/apply:os.system ['true']",
        b"day: !!timestamp 2024-01-01",
        b"x: !!set {a, b}",
        b"x: !!binary aGk=",
        b"1: 2",
    ],
    "vocabulary.json": [b"{}", b"[1, 2]", b"[" * 100_000, b'["a", null]', b"\xff", b"[["],
    "tokenizer.json": [
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"\xff",
        b'{"version": "1.0", "model": {"type": "WordLevel", "vocab": 3}}',
    ],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name in BROKEN for content in BROKEN[name]]
)
def test_a_file_that_holds_something_else_is_named_at_once(folder, name, content):
    if name == "vocabulary.json":
        tiny().save_pretrained(folder, WORDS)
    (folder / name).write_bytes(content)
    start = time.process_time()
    refused(folder, name)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "change_to",
    [
        {"vocabulary_hash": 123},
        {"vocabulary_hash": ["a"]},
        {"tau": "1"},
        {"tau": 10**400},
        {"tau": None},
        {"inner": [["lr", 1]]},
        {"inner": {"lr": float("nan")}},
        {"inner": 3},
        {"model_type": "gpt2"},
        {"num_sequences": "4"},
        {"vocab_size": 7.0},
    ],
    ids=str,
)
def test_a_broken_config_is_named(folder, change_to):
    change(folder / "config.json", **change_to)
    refused(folder, "config.json")


def test_what_transformers_would_make_of_other_entries_is_left_out(folder):
    change(
        folder / "config.json",
        dtype="load",
        id2label=5,
        to_dict="x",
        torch_dtype="os",
        rope_scaling=3,
        per_layer_config=[],
        note="of somebody",
        auto_map={"AutoConfig": "code.Config"},
    )
    farzi = FarziData.from_pretrained(folder)
    assert farzi.config.note == "of somebody"
    assert not hasattr(farzi.config, "auto_map")
    assert farzi.config.dtype is None
    farzi.save_pretrained(folder)


# -- tensors ---------------------------------------------------------------------------------------


def changed(tensors: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    tensors["latents"][1, 2, 0] = value
    return tensors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_numbers_that_are_not_finite_are_refused(folder, value):
    rewrite(folder, changed(load_file(folder / "farzi.safetensors"), value))
    refused(folder, "farzi.safetensors")


def test_numbers_too_large_for_a_softmax_are_not_saved(tmp_path):
    farzi = tiny(tau=1e-30)
    farzi.latents.data[0, 0, 0] = 1e20
    with pytest.raises(ValueError, match="overflow the softmax for tau=1e-30"):
        farzi.save_pretrained(tmp_path / "new")


def test_tensors_of_two_types_are_not_saved(tmp_path):
    farzi = tiny()
    farzi.latents.data = farzi.latents.data.double()
    with pytest.raises(
        ValueError, match=r"latents is torch\.float64, decoder is torch\.float32; call"
    ):
        farzi.save_pretrained(tmp_path / "new")


def test_numbers_other_than_those_that_were_saved_are_refused(folder):
    path = folder / "farzi.safetensors"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    refused(folder, "another checksum than it was saved with")


def test_tensors_that_say_nothing_of_themselves_load(folder):
    before = FarziData.from_pretrained(folder)
    rewrite(folder, load_file(folder / "farzi.safetensors"))
    after = FarziData.from_pretrained(folder)
    assert torch.equal(after.latents, before.latents)
    assert (after.results.metrics, after.processing_class) == ({}, None)  # no file is listed


@pytest.mark.parametrize(
    ("change_to", "message"),
    [
        ({"extra": torch.ones(1)}, r"has 'extra' F32 \(1,\), where config\.json says nothing"),
        (
            {"latents": torch.ones(4, 5, 3, dtype=torch.int64)},
            r"has 'latents' I64 \(4, 5, 3\), where config\.json says BF16 or F16 or F32 or F64",
        ),
        (
            {"decoder": torch.ones(3, 7, dtype=torch.float64)},
            "holds floats of several types, F32, F64",
        ),
        (
            {
                "latents": torch.ones(4, 5, 3).to(torch.float8_e4m3fn),
                "decoder": torch.ones(3, 7).to(torch.float8_e4m3fn),
            },
            "F8_E4M3",
        ),
        (
            {"latents": torch.ones(4, 15)},
            r"has 'latents' F32 \(4, 15\), where config\.json says .* \(4, 5, 3\)",
        ),
    ],
    ids=["extra", "integers", "mixed", "float8", "shape"],
)
def test_other_tensors_are_named(folder, change_to, message):
    rewrite(folder, {**load_file(folder / "farzi.safetensors"), **change_to})
    with pytest.raises(ValueError, match=message) as raised:
        FarziData.from_pretrained(folder)
    assert "farzi.safetensors" in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}", b"half"], ids=range(5)
)
def test_a_damaged_file_of_tensors_is_named(folder, content):
    path = folder / "farzi.safetensors"
    path.write_bytes(path.read_bytes()[:200] if content == b"half" else content)
    refused(folder, "farzi.safetensors")


@pytest.mark.parametrize(
    "metadata",
    [{"farzi": []}, {"farzi": {"files": "x"}}, {"farzi": {"files": [1]}}, {"farzi": {"sha256": 1}}],
)
def test_metadata_of_another_kind_are_named(folder, metadata):
    rewrite(folder, load_file(folder / "farzi.safetensors"), **metadata)
    refused(folder, "farzi.safetensors")


# -- snapshots of the Hub --------------------------------------------------------------------------


@pytest.fixture
def snapshot(hub, tmp_path, plot) -> Path:
    """A download, in a cache of links."""
    tiny().push_to_hub(
        "farzi-linked", processing_class=word_tokenizer(), metrics=METRICS, plots=[plot]
    )
    return Path(
        snapshot_download("user/farzi-linked", repo_type="dataset", cache_dir=tmp_path / "cache")
    )


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")


def test_a_snapshot_in_the_cache_loads_by_its_path_and_can_be_pushed_on(hub, snapshot, tmp_path):
    assert (snapshot / "plots" / "curve.png").is_symlink()
    (tmp_path / "link").symlink_to(snapshot)  # of the user's own
    for path in (snapshot, Path(os.path.relpath(snapshot)), tmp_path / "link"):
        before = listing(tmp_path)
        farzi = FarziData.from_pretrained(path)
        assert torch.equal(farzi.latents, tiny().latents)
        assert farzi.results.plots == {"curve.png": png()}
        assert listing(tmp_path) == before
    push(snapshot, "copy")
    assert set(hub.repositories["user/copy"].files()) == set(
        hub.repositories["user/farzi-linked"].files()
    )


@pytest.mark.parametrize("kind", ["elsewhere", "chain", "blobs", "renamed"])
def test_other_links_in_a_snapshot_are_not_followed(snapshot, outside, kind):
    link, blobs = snapshot / "plots" / "curve.png", snapshot.parent.parent / "blobs"
    blob = link.resolve()
    if kind == "blobs":
        shutil.move(blobs, outside / "blobs")
        blobs.symlink_to(outside / "blobs")
    elif kind == "renamed":
        snapshot = (
            snapshot.parent.parent.rename(snapshot.parent.parent.with_name("stuff"))
            / "snapshots"
            / snapshot.name
        )
    elif kind == "chain":
        blob.unlink()
        blob.symlink_to(outside / "secret.png")
    else:
        link.unlink()
        link.symlink_to(outside / "secret.png")
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        FarziData.from_pretrained(snapshot)
