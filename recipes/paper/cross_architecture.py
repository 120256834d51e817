"""Tests whether a summary also works for architectures that it was not distilled with: teachers ×
students.

    python recipes/paper/cross_architecture.py --dataset ml-100k --data_dir FOLDER     # SASRec, GRU4Rec, FMLP
    python recipes/paper/cross_architecture.py --dataset ptb --data_dir FOLDER         # Transformer (GPT-2), RNN, Llama
    python recipes/paper/cross_architecture.py --dataset sample                        # embedded: text, or sample_interactions

By default each architecture is the teacher of a summary; `--teachers` chooses some of them.
`--teacher '[{"model_type": "gpt2", …}, …]'` makes one summary, with the labels of these models
together. `--labels teacher --inputs drawn --storage coded5` makes summaries that carry their
teacher.

This makes the paper's table; here FMLP is a teacher too. All architectures have the size of the
recipe's learner. Students train with the settings of the inner loop. Each (teacher, student, seed)
is stored in `output_dir`, and a later start does not repeat it. The settings are in
`configs/tables/own_DATASET_SCALE.yaml`, or with `--form paper` in `…/paper_DATASET_SCALE.yaml`; the
card goes to `model_cards/cross_architecture_DATASET/`, or to `…_shared/`.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cells import FULL, LONG, Cell, evidence_of, full_cells
from evidence import Claim
from experiment import OWN_FORM, PAPER_FORM, Experiment

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import RunSettings, markdown
from farzi_hf.summary.forms import LABELS
from farzi_hf.tasks import LanguageModeling, Recommendation, ResultRow, Task

Learners = dict[str, Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one data set."""
    keep_freed_memory()
    with ends_in_one_line("cross_architecture.py"):
        figure = "cross_architecture.png"
        forms = OWN_FORM | PAPER_FORM
        e = Experiment.parse(
            "cross_architecture", "Other architectures", argv, (figure,), forms=forms
        )
        learners = ARCHITECTURES[e.data.task_class](e.data.settings.learner)
        form = LABELS[e.args.labels]
        own = form.by_teachers and not form.carries_teacher
        if e.data.settings.teacher is not None and not own:
            given = f"teacher is given, but labels={e.args.labels!r} has none"
            raise ValueError(f"{given}; leave it out, or take --labels own")
        teachers = sources(e.settings.teachers, e.data.settings, learners)
        evidence = evidence_of(e, cells(teachers, learners))
    rows = list(evidence.rows.values())
    findings = [
        *evidence.verdicts(claims(list(teachers), list(learners))),
        *(evidence.finding(pair(LONG, n), pair(FULL, n)) for n in learners),
    ]
    more = f"\n{matrix(e.task, rows, [*teachers, FULL, LONG], list(learners))}\n{e.of_paper('cross_architecture')}"
    e.write(rows, findings, more)
    e.plot(
        [
            row if row["method"].startswith(FULL) else {**row, "method": f"Farzi, {row['method']}"}
            for row in rows
        ],
        figure,
    )


# All architectures are as wide as the run's own learner, which is the first, and have one layer.
# Recurrent networks do not normalise their embeddings. With a standard deviation of 0.02, they
# would stay at the level of popularity for a hundred steps.


def text_architectures(own: Mapping[str, Any]) -> Learners:
    """Learners by name."""
    width = own.get("n_embd", 16)
    rnn = {"model_type": "farzi_rnn", "hidden_size": width, "initializer_range": 0.1}
    llama = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
    }
    return {
        "Transformer": own,
        "RNN": rnn,
        "Llama": llama,
        "NeoX": {**llama, "model_type": "gpt_neox"},
    }


def recommenders(own: Mapping[str, Any]) -> Learners:
    """Learners by name."""
    size = {"hidden_size": own.get("hidden_size", 16), "num_hidden_layers": 1}
    return {
        "SASRec": own,
        "GRU4Rec": {"model_type": "gru4rec", **size, "initializer_range": 0.1},
        "FMLP": {
            "model_type": "fmlp",
            **size,
            "initializer_range": own.get("initializer_range", 0.02),
        },
    }


ARCHITECTURES = {LanguageModeling: text_architectures, Recommendation: recommenders}


def pair(teacher: str, student: str) -> str:
    """The name of a row."""
    return f"{teacher} → {student}"


def sources(teachers: Sequence[str], settings: RunSettings, learners: Learners) -> dict[str, str]:
    """The architecture that each summary is distilled with, by the name of the summary's teacher.

    It is its own teacher, unless the setting `teacher` names others: then there is one summary,
    which has their labels.

    Raises:
        ValueError: a name is unknown, or teachers are given in both ways.
    """
    for name in teachers:
        if name not in learners:
            raise ValueError(f"teachers: {name!r} is unknown; choose from {', '.join(learners)}")
    if settings.teacher is None:
        return {name: name for name in teachers or learners}
    if teachers:
        raise ValueError(
            f"teachers={list(teachers)} beside teacher={settings.teacher}; give one of the two"
        )
    return {" + ".join(one["model_type"] for one in settings.teachers): next(iter(learners))}


def cells(teachers: Mapping[str, str], learners: Learners) -> list[Cell]:
    """One cell per pair. The cell of the architecture of a summary distils; the other students
    train on that cell's summary.
    """
    rows = []
    for teacher, architecture in teachers.items():
        own = Cell(pair(teacher, architecture), learner=learners[architecture])
        others = [
            Cell(pair(teacher, name), learner=other, distils=False, source=own)
            for name, other in learners.items()
            if name != architecture
        ]
        rows += [own, *others]
    for name, learner in learners.items():
        rows += full_cells(learner, suffix=pair("", name))
    return rows


def claims(teachers: Sequence[str], learners: Sequence[str]) -> list[Claim]:
    """The paper's claims: students are as good on every summary as on full data, and best on a
    summary of their own kind.
    """
    pairs = [(teacher, student) for teacher in teachers for student in learners]
    reached = "{1} does at least 98 % as well on a summary distilled with {0} as on full data"
    own = "{1} does better on its own summary than on one of {0}"
    found = [
        Claim(reached.format(*names), pair(*names), pair(LONG, names[1]), 0.98) for names in pairs
    ]
    others = [
        (teacher, student) for student in teachers for teacher in teachers if teacher != student
    ]
    return found + [
        Claim(own.format(*names), pair(names[1], names[1]), pair(*names)) for names in others
    ]


def matrix(
    task: Task, rows: Sequence[ResultRow], teachers: Sequence[str], students: Sequence[str]
) -> str:
    """A table of the task's main figure, with a row per teacher and a column per student."""
    by_name = {row["method"]: row for row in rows}
    scale = 100 if task.percent else 1
    label = task.metric_label + (", %" if task.percent else "")
    return markdown(
        [
            {
                label: teacher,
                **{
                    name: f"{scale * by_name[pair(teacher, name)][task.metric]:.1f}"
                    for name in students
                },
            }
            for teacher in teachers
        ]
    )


if __name__ == "__main__":
    run(main)
