"""The card of a summary, which is the README of its folder and repository, rendered from
`templates/card.md`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, DatasetCardData
from transformers import CONFIG_MAPPING, PreTrainedConfig

from farzi_hf.common import text as markup
from farzi_hf.data import Vocabulary
from farzi_hf.summary.forms import Table
from farzi_hf.summary.forms.common_labels import model_in_words
from farzi_hf.summary.origins import shows_rows
from farzi_hf.summary.store.contents import Contents
from farzi_hf.summary.store.hub import PLACEHOLDER
from farzi_hf.summary.store.results import check_results
from farzi_hf.summary.store.untrusted import NOT_SHOWN, sizes_of
from farzi_hf.summary.student_starts import start_of

_NEEDED = {"lr": ("learning_rate", 0.01), "steps": ("max_steps", 100)}
"""Settings of the inner loop that a student needs: their names in TrainingArguments, and values to
begin with where a summary has none.
"""
UNKNOWN = "unknown"
"""How the Hub names a licence that nobody has stated."""

OF_THE_DATA = (
    "dataset",
    "data_bytes",
    "data_bytes_flat",
    "data_bytes_after_xz",
    "data_sequences",
    "language",
    "licence",
    "licence_text",
    "privacy",
    "memory",
    "memory_warning",
)
"""Entries of metrics that hold for whatever is made of a summary, too."""
_SAID_ELSEWHERE = ("table", "split", "command", "verdict", *OF_THE_DATA)
"""Those that have a place of their own on the card."""


@dataclass(frozen=True)
class Excerpt:
    """What a card prints of the rows of a summary, in Markdown; both are "" where entries have no
    names.
    """

    examples: str
    """The first sequences as text."""

    positions: str
    """The first positions of the first sequence, as a table."""

    @classmethod
    def of(cls, contents: Contents) -> Excerpt:
        """That of a summary."""
        if not contents.vocabulary.named:
            return cls("", "")
        return cls(_examples(contents), _positions(contents))


def render_card(
    contents: Contents,
    metrics: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    plots: Sequence[str] = (),
    show_rows: bool = False,
    excerpt: Excerpt | None = None,
) -> str:
    """The README of the artefact. A section without content is left out. Raises ValueError if a
    cost, a size or the licence has another type than it needs, or no licence allows to show rows.

    Args:
        contents: of the artefact.
        metrics: figures and facts by name. The card lists all of them. These have a place of their
            own: `table`, a list of rows (dicts) in which `x_std` and `x_interval` go into the cell
            of `x`; `dataset` and `data_sequences` of what was distilled, and its bytes:
            `data_bytes` that one must keep, `data_bytes_flat` in flat bits, `data_bytes_after_xz`;
            `split`, what was held out; `learner_parameters`; `distillation_seconds` and
            `device`; `student_seconds` of one training on the summary; `verdict`, whether it is
            worth it, a line each; `full_data_seconds` and `full_data_steps` of one on the full data
            that gets as good; `privacy`, in place of the words that say that nothing was done;
            `memory`, what a carried teacher gives away, and `memory_warning`, before it; `licence`
            and `language`, as the Hub names them, and `licence_text`; `command`, which distils again from
            `recipe.yaml`.
        recipe: shown unchanged. Its `learner`, a config as a mapping, is the model of "Train on
            it".
        plots: paths relative to the artefact.
        show_rows: see `farzi_hf.summary.origins.shows_rows`.
        excerpt: what is printed where rows are shown; None: that of `contents`.

    Strings are escaped: none of them is read as Markdown, HTML, YAML or Python.
    """
    metrics = metrics or {}
    recipe = recipe or {}
    check_results(metrics, recipe, "metrics", "recipe")
    config = contents.config
    vocabulary = contents.vocabulary
    forms = contents.forms
    origin = forms.inputs.origin
    shown = shows_rows(origin, metrics, show_rows)
    if not shown:
        excerpt = Excerpt("", "")
    elif excerpt is None:
        excerpt = Excerpt.of(contents)
    inputs = forms.inputs.words(vocabulary)
    labels = forms.labels.words(inputs, vocabulary, contents.nbytes)
    learner = recipe.get("learner")
    learner_known = isinstance(learner, Mapping) and isinstance(learner.get("model_type"), str)
    teachers = recipe.get("teacher")
    teachers = teachers if isinstance(teachers, list) else [teachers]
    inner = config.inner or {}
    card = DatasetCard.from_template(
        _metadata(contents, metrics, labels.tags),
        template_path=str(Path(__file__).parent / "templates" / "card.md"),
        repo=PLACEHOLDER,
        config=config,
        vocabulary=vocabulary,
        inputs=inputs,
        labels=labels,
        browse=labels.browse if shown and forms.inputs.browsed is not None else "",
        facts={**inputs.facts, **labels.facts},
        input_tables=forms.inputs.tables(contents),
        label_tables=forms.labels.tables(contents),
        torch_code=forms.inputs.torch_code() + forms.labels.torch_code(),
        commands=forms.labels.commands(PLACEHOLDER),
        metrics=metrics,
        storage=contents.storage,
        nbytes=contents.nbytes,
        learner_facts=model_in_words(learner, metrics.get("learner_parameters")),
        teachers=(
            ", ".join(filter(None, map(model_in_words, teachers)))
            if forms.labels.by_teachers
            else ""
        ),
        endless=forms.inputs.is_endless,
        shown=shown,
        origin=origin,
        learner_known=learner_known,
        learner=_learner_code(
            learner if learner_known else vocabulary.small_learner, config, vocabulary
        ),
        start=start_of(config.inner, forms.labels.carries_teacher),
        guessed={name: value for key, (name, value) in _NEEDED.items() if key not in inner},
        inner=markdown_table([{"setting": k, "value": str(v)} for k, v in inner.items()]),
        results=markdown_table(_with_spread(metrics.get("table", []))),
        figures=markdown_table(
            [{"figure": k, "value": v} for k, v in metrics.items() if k not in _SAID_ELSEWHERE]
        ),
        command=(
            markup.markdown_fence(str(metrics["command"]), "bash") if metrics.get("command") else ""
        ),
        examples=excerpt.examples,
        positions=excerpt.positions,
        recipe=markup.markdown_fence(markup.yaml_text(recipe).rstrip(), "yaml") if recipe else "",
        plots=[markup.markdown_image(plot) for plot in plots],
        ceil=math.ceil,
        cell=_cell,
        code=markup.markdown_code,
        plain=markup.number,
        text=markup.markdown_text,
    )
    return str(card)


def tables_of(contents: Contents) -> list[Table]:
    """The tables of a summary, the default one first."""
    forms = contents.forms
    return [*forms.inputs.tables(contents), *forms.labels.tables(contents)]


def _examples(contents: Contents) -> str:
    """The first sequences as text."""
    sequences = contents.decoded[:3]
    texts = (contents.forms.inputs.text(one, contents.vocabulary) for one in sequences)
    return markup.markdown_fence("\n".join(" ".join(text.split()) for text in texts), "text")


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows, which need not have all columns, as a Markdown table; "" without rows. Numbers are
    rounded, strings escaped.
    """
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = [markup.markdown_text(column) for column in columns]
    lines = [
        head,
        ["---"] * len(columns),
        *([_cell(row.get(column, "")) for column in columns] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def name_of(contents: Contents, metrics: Mapping[str, Any]) -> str:
    """What the summary is called: after its source, if that is known."""
    config = contents.config
    source = metrics.get("dataset")
    of_source = f" of {source}" if source else ""
    return f"Farzi data{of_source} [{config.num_sequences}×{config.sequence_length}]"


def _metadata(
    contents: Contents, metrics: Mapping[str, Any], tags: Sequence[str]
) -> DatasetCardData:
    """The YAML header. It holds no results, because the Hub knows no `model-index` of datasets."""
    config = contents.config
    vocabulary = contents.vocabulary
    sizes = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M")
    tables = [
        {
            "config_name": table.name,
            "data_files": [{"split": "train", "path": f"{table.name}/train-*.parquet"}],
        }
        for table in tables_of(contents)
    ]
    tables[0]["default"] = True
    return DatasetCardData(
        pretty_name=markup.one_line(name_of(contents, metrics)),
        language=markup.one_line(metrics.get("language") or "") or None,
        license=markup.one_line(metrics.get("licence") or UNKNOWN),
        tags=["farzi", *tags, *vocabulary.tags],
        task_categories=list(vocabulary.task_categories) or None,
        size_categories=[sizes[bisect_right([10**3, 10**4, 10**5, 10**6], config.num_sequences)]],
        configs=tables,
    )


def _learner_code(
    learner: Mapping[str, Any], config: PreTrainedConfig, vocabulary: Vocabulary
) -> str:
    """Python that makes the learner's config: sizes that follow from the summary, and the fields
    that differ from their class's defaults.
    """
    kind = learner["model_type"]
    sizes = sizes_of(learner, config, vocabulary)
    of_class = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else None  # noqa: SIM401
    default = {"dtype": "float32"}  # a class leaves it open
    changed = {
        name: value
        for name, value in learner.items()
        if name not in NOT_SHOWN | sizes.keys()
        and value != default.get(name, getattr(of_class, name, ...))
    }

    def argument(name: str, value: Any) -> str:
        # In ASCII: Python normalises other names, and two could become equal.
        plain = name.isidentifier() and name.isascii() and not iskeyword(name)
        if plain:
            return f"{name}={markup.python_literal(value)}"
        return f"**{markup.python_literal({name: value})}"

    arguments = [markup.python_literal(kind)]
    arguments += [argument(name, value) for name, value in {**sizes, **changed}.items()]
    lines = "".join(f"    {each},\n" for each in arguments)
    return f"config = AutoConfig.for_model(\n{lines})"


def _with_spread(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with `x ± x_std (x_interval)` in one cell."""

    def cell(row: Mapping[str, Any], name: str) -> Any:
        text = _cell(row[name])
        spread = row.get(f"{name}_std")
        interval = row.get(f"{name}_interval")
        if spread is not None:
            text += f" ± {_cell(spread, 2)}"
        return markup.Markdown(text if interval is None else f"{text} ({_cell(interval)})")

    def part(row: Mapping[str, Any], name: str) -> bool:
        return any(
            name.endswith(end) and name.removesuffix(end) in row for end in ("_std", "_interval")
        )

    return [{name: cell(row, name) for name in row if not part(row, name)} for row in rows]


def _cell(value: Any, digits: int = 4) -> markup.Markdown:
    if isinstance(value, bool) or value is None:
        return markup.Markdown(value)
    if isinstance(value, float):
        return markup.Markdown(markup.number(value, digits))
    if isinstance(value, int):
        return markup.Markdown(f"{value:,}")
    if isinstance(value, list | tuple):
        return markup.Markdown(" to ".join(map(_cell, value)))
    return markup.markdown_text(value)


def _positions(contents: Contents) -> str:
    """The first positions of the first sequence, as a table."""

    def likeliest(tokens: Sequence[Any], probabilities: Sequence[float]) -> markup.Markdown:
        shown = zip(tokens, probabilities, strict=True)
        return markup.Markdown(
            ", ".join(
                f"{markup.markdown_code(str(token))} {probability:.2f}"
                for token, probability in shown
            )
        )

    forms = contents.forms
    return markdown_table(
        [
            {
                "position": str(j),
                **forms.inputs.card_cells(position, likeliest),
                **forms.labels.card_cells(position, likeliest),
            }
            for j, position in enumerate(contents.decoded[0][:8])
        ]
    )
