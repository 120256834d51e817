"""The card of a summary: the README of its folder and repository, rendered from `card_template.md`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import DatasetCard, DatasetCardData

from farzi_hf.hub import PLACEHOLDER
from farzi_hf.vocabulary import is_text, text_of

TABLES = ("latents", "decoder", "tokens")
"""The configs of the dataset repository."""

_TRAINING_ARGUMENTS = {
    "lr": "learning_rate",
    "eps": "adam_epsilon",
    "weight_decay": "weight_decay",
    "steps": "max_steps",
    "synthetic_batch_size": "per_device_train_batch_size",
}
_SAID_ELSEWHERE = ("table", "dataset", "data_bytes", "data_sequences", "split", "licence", "licence_text", "command")
"""Entries of metrics that have a place of their own on the card."""


def render_card(
    summary: Any,
    decoded: list,
    metrics: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    plots: Sequence[str] = (),
) -> str:
    """The README of the artefact. A section appears only when there is something to say.

    Args:
        summary: as in `publishing`.
        decoded: `summary.decode(…)`.
        metrics: figures and facts by name. The card lists all of them, and says more where these are there:
            `table`, a list of rows (dicts), becomes a table of results of its own, where `x_std` and `x_interval` stand
            beside `x`; `dataset`, `data_bytes` and `data_sequences`: what was distilled, and its size; `split`: what
            was held out, and its seed; `learner_parameters`; `distillation_seconds`, and in seconds per training
            `student_seconds` (on the summary) and `full_data_seconds` (on the full data, until it does as well; it takes
            `full_data_steps`), on `device`: what it cost and when that pays; `licence` (as the Hub names it) and
            `licence_text` of the source; `command`: what distils it again from `recipe.yaml`.
        recipe: shown as it is; its `learner`, a config as a mapping, is the teacher.
        plots: paths relative to the artefact.
    """
    config, vocabulary = summary.config, summary.processing_class
    metrics, recipe = metrics or {}, recipe or {}
    figures = {name: value for name, value in metrics.items() if name not in _SAID_ELSEWHERE}
    card = DatasetCard.from_template(
        _metadata(summary, metrics),
        template_path=str(Path(__file__).with_name("card_template.md")),
        repo=PLACEHOLDER,
        config=config,
        entries="tokens" if is_text(vocabulary) else "items",
        has_vocabulary=vocabulary is not None,
        facts=markdown_table([{"": k, " ": v} for k, v in _facts(summary, metrics, recipe).items()]),
        dataset=metrics.get("dataset"),
        training_arguments=training_arguments(config.inner or {}),
        results=markdown_table(_with_spread(metrics.get("table", []))),
        figures=markdown_table([{"figure": k, "value": v} for k, v in figures.items()]),
        cost=_cost(metrics),
        licence=metrics.get("licence_text"),
        command=metrics.get("command"),
        examples=[] if vocabulary is None else [" ".join(t.split()) for t in greedy_texts(vocabulary, decoded[:3])],
        positions=markdown_table([_position_row(j, p) for j, p in enumerate(decoded[0][:8])]),
        recipe=yaml_text(recipe).rstrip() if recipe else "",
        plots=plots,
    )
    return str(card)


def greedy_texts(vocabulary: Any, decoded: list) -> list[str]:
    """Each decoded sequence as the text of its likeliest tokens."""
    return [text_of(vocabulary, [position["tokens"][0] for position in sequence]) for sequence in decoded]


def yaml_text(content: Mapping[str, Any]) -> str:
    """`content`, anything JSON can hold, as YAML in its own order."""
    return yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows, by column, as Markdown; a cell that a row lacks stays empty. Nothing of no rows."""
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def training_arguments(inner: Mapping[str, Any]) -> dict[str, Any]:
    """A summary's `config.inner` under the names that `transformers.TrainingArguments` gives its settings."""
    arguments = {name: inner[key] for key, name in _TRAINING_ARGUMENTS.items() if inner.get(key) is not None}
    if inner.get("betas"):
        arguments["adam_beta1"], arguments["adam_beta2"] = inner["betas"]
    return arguments


# -- parts of the card -----------------------------------------------------------------------------------------------


def _metadata(summary: Any, metrics: Mapping[str, Any]) -> DatasetCardData:
    """The YAML header. The Hub has no `model-index` for datasets; results are in the text and in metrics.json."""
    config, vocabulary = summary.config, summary.processing_class
    kind = [] if vocabulary is None else ["language-modeling" if is_text(vocabulary) else "recommendation"]
    return DatasetCardData(
        pretty_name=f"Farzi data [{config.num_sequences}×{config.sequence_length}]",
        license=metrics.get("licence"),
        tags=["farzi", "dataset-distillation", "synthetic", *kind],
        task_categories=["text-generation"] if is_text(vocabulary) else ["other"] if kind else None,
        size_categories=[_size_category(config.num_sequences)],
        configs=[
            {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train-*.parquet"}]}
            | ({"default": True} if name == "latents" else {})
            for name in TABLES
        ],
    )


def _facts(summary: Any, metrics: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The first table: what the summary is, and of what."""
    config, size, rows = summary.config, metrics.get("data_bytes"), metrics.get("data_sequences")
    facts = {
        "distilled from": metrics.get("dataset"),
        "synthetic sequences (μ)": config.num_sequences,
        "positions per sequence (ξ)": config.sequence_length,
        "latent dimension (d)": config.latent_dim,
        "vocabulary (V)": config.vocab_size,
        "temperature (τ)": config.tau,
        "latents and decoder": f"{summary.nbytes:,} bytes",
        "the data": f"{size:,} bytes" + (f", {rows:,} sequences" if rows else "") if size else None,
        "size of the data": f"{100 * summary.nbytes / size:.3g} % of the bytes" if size else None,
        "teacher": _teacher(metrics, recipe),
        "split": metrics.get("split"),
        "vocabulary hash (SHA-256)": f"`{config.vocabulary_hash}`" if config.vocabulary_hash else None,
    }
    if size and rows:
        facts["size of the data"] += f", {100 * config.num_sequences / rows:.3g} % of the sequences"
    return {name: value for name, value in facts.items() if value is not None}


def _teacher(metrics: Mapping[str, Any], recipe: Mapping[str, Any]) -> str | None:
    """The learner that the summary was distilled with."""
    learner, count = recipe.get("learner"), metrics.get("learner_parameters")
    if not isinstance(learner, Mapping) or "model_type" not in learner:
        return None
    size = f", {count:,} parameters" if count else ""
    # Sizes; what else there is stands in the recipe.
    settings = ", ".join(f"{k} {v}" for k, v in learner.items() if type(v) is int and not k.endswith("_token_id"))
    return f"{learner['model_type']}{size}" + (f" ({settings})" if settings else "")


def _cost(metrics: Mapping[str, Any]) -> str:
    """What the distillation cost, and how many trainings on the summary pay for it."""
    cost, student, full = (metrics.get(f"{name}_seconds") for name in ("distillation", "student", "full_data"))
    if cost is None:
        return ""
    text = f"The distillation took {cost:,.0f} s" + (f" on {metrics['device']}" if "device" in metrics else "") + "."
    if student is None:
        return text
    text += f" A training on the summary takes {student:,.3g} s"
    if full is None:
        return text + "."
    steps = f", {metrics['full_data_steps']:,} steps" if "full_data_steps" in metrics else ""
    text += f"; one on the full data that does as well takes {full:,.3g} s{steps}."
    if full <= student:
        return text + " So the summary does not save time; it saves data."
    return text + (
        f" The distillation has paid for itself after {math.ceil(cost / (full - student)):,} trainings (break-even), each of "
        f"which saves {full - student:,.3g} s."
    )


def _with_spread(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows in which `x ± x_std (x_interval)` is one cell."""

    def cell(row: Mapping[str, Any], name: str) -> Any:
        text, spread, interval = row[name], row.get(f"{name}_std"), row.get(f"{name}_interval")
        if spread is not None:
            text = f"{_cell(text)} ± {spread:.2g}"
        return text if interval is None else f"{_cell(text)} ({_cell(interval)})"

    def part(row: Mapping[str, Any], name: str) -> bool:
        return any(name.endswith(end) and name.removesuffix(end) in row for end in ("_std", "_interval"))

    return [{name: cell(row, name) for name in row if not part(row, name)} for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
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
