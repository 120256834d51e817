"""The artefact: how a summary lies on disk and on the Hub, and how it gets there without ever being half there.

Layout of the folder, which is also a dataset repository:

```
README.md                      card; its YAML declares the three configs below
latents/train-*.parquet        default config: index, latents (ξ, d) and, with a vocabulary, the greedy text
decoder/train-*.parquet        id, token where known, decoder (d,)
tokens/train-*.parquet         sequence, position, top-k tokens with probabilities, entropy in nats
farzi.safetensors              latents, decoder: the source of truth; its metadata lists the artefact's files
config.json                    FarziDataConfig
tokenizer files or vocabulary.json, recipe.yaml, metrics.json, plots/*: where there are any
```

Functions take any `summary` with `latents`, `decoder`, `config`, `nbytes`, `processing_class` and `decode(top_k)`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    DatasetCard,
    DatasetCardData,
    HfApi,
    snapshot_download,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import Tensor

from farzi_hf.atomic_folder import TENSORS, artefact_files, finish_commit, replace_files

VOCABULARY = "vocabulary.json"
TABLES = ("latents", "decoder", "tokens")
PLACEHOLDER = "path/to/this/folder"  # stands for the repository's name in a card until it is pushed
DECODED_TOP_K = 5

_VOCABULARY_FILES = (VOCABULARY, "tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json",
                     "vocab.*", "merges.txt", "*.model")  # fmt: skip
_OWNED = ("latents/*", "decoder/*", "tokens/*", "plots/*", "recipe.yaml", "metrics.json", *_VOCABULARY_FILES)


# -- vocabulary ------------------------------------------------------------------------------------------------------


def token_strings(vocabulary: Any, size: int) -> list[str] | None:
    """The names of entries 0 … size − 1 of a tokenizer or list, `[id]` where it has none; `None` without vocabulary."""
    if vocabulary is None:
        return None
    names = [f"[{i}]" for i in range(size)]
    for i, token in _entries(vocabulary):
        if i < size:
            names[i] = token
    return names


def vocabulary_hash(vocabulary: Any) -> str:
    """SHA-256 over the (id, entry) pairs of a tokenizer or a list of strings: equal where all ids mean the same."""
    return hashlib.sha256(json.dumps(_entries(vocabulary)).encode()).hexdigest()


def load_vocabulary(folder: Path) -> Any:
    """The tokenizer or the item list saved in an artefact, `None` where it has neither."""
    if (folder / "tokenizer_config.json").exists():
        from transformers import AutoTokenizer, PreTrainedConfig  # heavy, and not needed by those who only write

        # Given a config, it does not read ours and warn that "farzi_data" is no model.
        return AutoTokenizer.from_pretrained(folder, config=PreTrainedConfig())
    if (folder / VOCABULARY).exists():
        return json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
    return None


def _save_vocabulary(vocabulary: Any, folder: Path) -> None:
    if hasattr(vocabulary, "save_pretrained"):
        vocabulary.save_pretrained(folder)
    elif vocabulary is not None:
        (folder / VOCABULARY).write_text(json.dumps(list(vocabulary), ensure_ascii=False, indent=0), encoding="utf-8")


def _entries(vocabulary: Any) -> list[tuple[int, str]]:
    if hasattr(vocabulary, "get_vocab"):
        return sorted((i, token) for token, i in vocabulary.get_vocab().items())
    return list(enumerate(vocabulary))


def _text(vocabulary: Any, tokens: Sequence[str]) -> str:
    """Tokens as the text they stand for, special tokens included."""
    if hasattr(vocabulary, "decode"):
        return vocabulary.decode(vocabulary.convert_tokens_to_ids(list(tokens)))
    return " | ".join(tokens)


# -- tables ----------------------------------------------------------------------------------------------------------


def latents_table(latents: Tensor, column: str) -> pa.Table:
    """(μ, ξ, d) as one column of μ fixed-size float32 lists."""
    _, length, dim = latents.shape
    rows = pa.FixedSizeListArray.from_arrays(_float_lists(latents.flatten(0, 1), dim), length)
    return pa.table({column: rows})


def _float_lists(rows: Tensor, dim: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.detach().float().cpu().reshape(-1).numpy()), dim)


def _tables(summary: Any, decoded: list) -> dict[str, pa.Table]:
    size = summary.config.vocab_size
    names = token_strings(summary.processing_class, size)
    latents = latents_table(summary.latents, "latents").add_column(0, "index", pa.array(range(len(decoded))))
    decoder = {"id": range(size), "token": names, "decoder": _float_lists(summary.decoder.T, summary.config.latent_dim)}
    if names is None:
        del decoder["token"]
    else:
        latents = latents.append_column("text", pa.array(greedy_texts(summary.processing_class, decoded)))
    rows = [
        {"sequence": i, "position": j, **position}
        for i, sequence in enumerate(decoded)
        for j, position in enumerate(sequence)
    ]
    return {"latents": latents, "decoder": pa.table(decoder), "tokens": pa.Table.from_pylist(rows)}


def greedy_texts(vocabulary: Any, decoded: list) -> list[str]:
    """Each decoded sequence as the text of its likeliest tokens."""
    return [_text(vocabulary, [position["tokens"][0] for position in sequence]) for sequence in decoded]


# -- folder ----------------------------------------------------------------------------------------------------------


def write_artefact(
    summary: Any,
    folder: Path,
    metrics: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    plots: Sequence[str | os.PathLike] = (),
) -> None:
    """Writes the whole artefact into `folder`, atomically; see `atomic_folder.replace_files`.

    Args:
        metrics, recipe: left out of the artefact where empty. Anything JSON can hold.
        plots: image files to copy.
    """
    plots = [Path(plot) for plot in plots]

    def write(staging: Path) -> None:
        decoded = summary.decode(DECODED_TOP_K)
        for name, table in _tables(summary, decoded).items():
            (staging / name).mkdir()
            pq.write_table(table, staging / name / "train-00000-of-00001.parquet")
        summary.config.to_json_file(staging / "config.json")
        _save_vocabulary(summary.processing_class, staging)
        if recipe:
            _write_text(staging / "recipe.yaml", _yaml(recipe))
        if metrics:
            _write_text(staging / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        for plot in plots:
            (staging / "plots").mkdir(exist_ok=True)
            shutil.copyfile(plot, staging / "plots" / plot.name)
        shown = [f"plots/{plot.name}" for plot in plots]
        _write_text(staging / "README.md", render_card(summary, decoded, metrics, recipe, shown))

    tensors = {name: getattr(summary, name).detach().cpu().contiguous() for name in ("latents", "decoder")}
    replace_files(folder, write, tensors)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def fetch_artefact(folder_or_repo: str | os.PathLike, revision: str | None = None) -> Path:
    """The folder of an artefact with at least tensors and config: `folder_or_repo` itself or a download of one commit.

    Raises:
        FileNotFoundError: neither a folder nor a dataset repository within reach, or files are missing.
    """
    folder = Path(folder_or_repo)
    if folder.is_dir():
        finish_commit(folder)
    else:
        try:
            patterns = [TENSORS, "config.json", *_VOCABULARY_FILES]
            folder = Path(
                snapshot_download(str(folder_or_repo), repo_type="dataset", revision=revision, allow_patterns=patterns)
            )
        except (OSError, HfHubHTTPError, HFValidationError) as error:
            raise FileNotFoundError(
                f"folder_or_repo={str(folder_or_repo)!r} is neither a folder nor a dataset repository within reach "
                f"(revision {revision or 'main'}): {error}"
            ) from error
    for name in (TENSORS, "config.json"):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"folder_or_repo={str(folder_or_repo)!r} has no {name}, so it is not a Farzi summary; "
                "name a folder or repository written by FarziData.save_pretrained or push_to_hub"
            )
    return folder


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True)


# -- card and Hub ----------------------------------------------------------------------------------------------------


def render_card(
    summary: Any,
    decoded: list,
    metrics: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    plots: Sequence[str] = (),
) -> str:
    """The README of the artefact, from `card_template.md`. A section appears only when there is something to say.

    Args:
        decoded: `summary.decode(…)`.
        metrics: numbers by name; an entry `table`, a list of rows (dicts), becomes a table of results of its own.
        plots: paths relative to the artefact.
    """
    config, vocabulary = summary.config, summary.processing_class
    text = hasattr(vocabulary, "decode")
    data = DatasetCardData(
        pretty_name=f"Farzi data [{config.num_sequences}×{config.sequence_length}]",
        tags=["farzi", "dataset-distillation", "synthetic"],
        task_categories=["text-generation"] if text else None,
        size_categories=[_size_category(config.num_sequences)],
        configs=[
            {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train-*.parquet"}]}
            | ({"default": True} if name == "latents" else {})
            for name in TABLES
        ],
    )
    card = DatasetCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card_template.md")),
        repo=PLACEHOLDER,
        config=config,
        nbytes=summary.nbytes,
        entries="tokens" if text else "items",
        has_vocabulary=vocabulary is not None,
        training_arguments=_training_arguments(config.inner or {}),
        results=_markdown_table((metrics or {}).get("table", [])),
        figures=_markdown_table([{"figure": k, "value": v} for k, v in (metrics or {}).items() if k != "table"]),
        examples=[] if vocabulary is None else [" ".join(t.split()) for t in greedy_texts(vocabulary, decoded[:3])],
        positions=_markdown_table([_position_row(j, p) for j, p in enumerate(decoded[0][:8])]),
        recipe=_yaml(recipe).rstrip() if recipe else "",
        plots=plots,
    )
    return str(card)


def push_folder(
    folder: str | os.PathLike,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload Farzi data",
) -> str:
    """Uploads a saved artefact to the dataset repository `repo_id`, made if need be, as one commit.

    Files that an earlier artefact left in the repository go; files that never were an artefact's stay. `revision` names
    a branch, made if need be. Returns the commit's address.
    """
    folder = fetch_artefact(folder)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
    if revision is not None:
        api.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True)
    files = [*artefact_files(folder), TENSORS]
    operations = [CommitOperationAdd(name, folder / name) for name in files if name != "README.md"]
    card = (folder / "README.md").read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    operations.append(CommitOperationAdd("README.md", card.encode()))
    for name in api.list_repo_files(repo_id, repo_type="dataset", revision=revision):
        if name not in files and any(fnmatch(name, pattern) for pattern in _OWNED):
            operations.append(CommitOperationDelete(name))
    commit = api.create_commit(
        repo_id, operations, commit_message=commit_message, repo_type="dataset", revision=revision
    )
    return commit.commit_url


_TRAINING_ARGUMENTS = {
    "lr": "learning_rate",
    "eps": "adam_epsilon",
    "weight_decay": "weight_decay",
    "steps": "max_steps",
    "synthetic_batch_size": "per_device_train_batch_size",
}


def _training_arguments(inner: Mapping[str, Any]) -> dict[str, Any]:
    """The inner loop's settings under the names that `transformers.TrainingArguments` gives them."""
    arguments = {name: inner[key] for key, name in _TRAINING_ARGUMENTS.items() if inner.get(key) is not None}
    if inner.get("betas"):
        arguments["adam_beta1"], arguments["adam_beta2"] = inner["betas"]
    return arguments


def _markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " to ".join(_cell(part) for part in value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def _position_row(j: int, position: Mapping[str, Any]) -> dict[str, Any]:
    shown = zip(position["tokens"], position["probabilities"], strict=True)
    tokens = ", ".join(f"`{token}` {probability:.2f}" for token, probability in shown)
    return {"position": str(j), "likeliest entries": tokens, "entropy (nats)": position["entropy"]}


def _size_category(rows: int) -> str:
    limits = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
    return next((name for limit, name in limits.items() if rows < limit), "1M<n<10M")
