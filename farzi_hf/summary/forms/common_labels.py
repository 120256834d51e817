"""What kinds of labels have in common: labels of stored rows, and the tables of positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farzi_hf.summary.forms.base import Labels, Likeliest, Position, Table
from farzi_hf.summary.forms.words import InputWords, LabelWords

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents

BY_OUTER_STEPS: dict[str, Any] = {
    "inner_steps": 100,
    "inner_learning_rate": 0.02,
    "inner_betas": [0.7, 0.999],
    "inner_lr_scheduler_type": "constant",
    "storage": "exact",
    "max_steps": 400,
    "inner_optimizer": "adam",
    "student_start": "random",
}
"""Settings of a `FarziConfig` whose labels outer steps improve."""

RESULTS = (
    "Each row is trained or counted on something else and measured alike. ± is the standard"
    " deviation over students, brackets hold 95 % bootstrap intervals over the test set, fractions"
    " are of 1."
)
"""What is said of the results of students."""

DISTILLED = ("dataset-distillation", "synthetic")
"""Tags of a summary whose rows or labels were made."""

PREDICTED = "The labels are what models predict that were trained on the data."
"""How labels were made that teachers gave."""

POSITIONS = "tokens"
"""The name of the table with what positions or rows say."""

READING_AID = "This is a reading aid: students learn from the whole distributions."
"""What is said of tokens that stand for distributions."""


def same_entries(config: FarziDataConfig) -> str:
    """What a student needs whose labels are distributions."""
    return f"A student needs the same {config.vocab_size:,} entries in the same order"


def commands_of_students(repo: str) -> list[str]:
    """Commands for every summary that students train on."""
    return [
        f"farzi show {repo}",
        f"farzi train {repo} --output_dir student",
        f"farzi export {repo} rows --rows 10000",
    ]


class StoredLabels(Labels):
    """Labels of stored rows, without a model."""

    carries_teacher = False
    of_students = ()
    model = None
    teacher = None

    def words_of_sequences(
        self, inputs: InputWords, of_labels: str, origin: str, facts: Mapping[str, Any]
    ) -> LabelWords:
        """The words of a summary that consists of sequences.

        Args:
            inputs: what is said of the inputs.
            of_labels: sentences on the labels, at the end of the description.
            origin, facts: see `LabelWords`.
        """
        count = self.config.num_sequences
        length = self.config.sequence_length
        numbers = inputs.numbers + self.numbers_per_position
        return LabelWords(
            tags=DISTILLED,
            title=f"{count} synthetic sequences that stand in for",
            description=(
                f"A summary made by *autoregressive data distillation*: {count} sequences of"
                f" {length} {inputs.positions}, from which a model trains from scratch.\n"
                f"{inputs.position}{of_labels}"
            ),
            browse=" To browse them, download `viewer.html` and open it.",
            training=None,
            origin=origin,
            results=RESULTS,
            needs=same_entries(self.config),
            reading=READING_AID,
            size="all of its numbers",
            short_size="bytes",
            facts=facts,
            short={
                "sequences × positions": f"{count:,} × {length:,}",
                "numbers per position": f"{numbers:,}",
            },
        )


def refuse_teacher(config: FarziDataConfig) -> None:
    """Raises ValueError if a config has a teacher, which its labels do not need."""
    if config.teacher:
        raise ValueError(
            f"labels={config.labels!r} with teacher={config.teacher!r:.200}: labels='teacher'"
            " alone need one"
        )


def refuse_label_dim(config: FarziDataConfig) -> None:
    """Raises ValueError if a config has a dimension of labels, which its labels do not have."""
    if config.label_dim is not None:
        raise ValueError(
            f"label_dim={config.label_dim!r} with labels={config.labels!r}: such labels have none;"
            ' set labels="own"'
        )


def positions_table(contents: Contents) -> Table:
    """The table of a summary that has a row for each position."""
    comment = f"per position: likeliest {contents.vocabulary.entries}, probabilities, entropy"
    return Table(POSITIONS, comment, lambda: contents.positions)


def card_cells_of_label(position: Position, likeliest: Likeliest) -> dict[str, Any]:
    """The cells of a label in the card's table."""
    return {
        "its label": likeliest(position["label_tokens"], position["label_probabilities"]),
        "entropy of the label": position["label_entropy"],
    }


def terminal_cells_of_label(position: Position, likeliest: Likeliest) -> dict[str, str]:
    """The cells of a label in the table of `farzi show`."""
    return {
        "entropy of the label (nats)": f"{position['label_entropy']:.2f}",
        "its label": likeliest(position["label_tokens"], position["label_probabilities"]),
    }


def of_label(sequences: list[list[Position]]) -> list[list[Position]]:
    """Distributions as those of labels: with `label_` before each key."""
    return [
        [{f"label_{name}": value for name, value in position.items()} for position in sequence]
        for sequence in sequences
    ]


def model_in_words(model: Any, parameters: float | None = None) -> str | None:
    """The config of a model, as a recipe has it, in words; None if it is none."""
    if not isinstance(model, Mapping) or "model_type" not in model:
        return None
    size = f", {parameters:,} parameters" if parameters else ""
    # Sizes only: the recipe lists the other settings.
    settings = ", ".join(
        f"{name} {value}"
        for name, value in model.items()
        if type(value) is int and not name.endswith("_token_id")
    )
    return f"{model['model_type']}{size}" + (f" ({settings})" if settings else "")
