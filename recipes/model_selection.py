"""Can a summary choose models and settings for you? Rank correlation of cheap trainings with long ones on all real data.

    python recipes/model_selection.py --dataset ml-100k --data_dir FOLDER     # about 20 minutes on one core
    python recipes/model_selection.py                                         # the embedded interactions, about a minute

Each configuration (architecture, width, layers, learning rate, weight decay) is trained on summaries, on real windows with a teacher's
labels, on random users, and on all real data: with as many steps, at the cost of the summary with its teachers, and for long. The last
one is the truth: how well do the validation metrics of the others rank the configurations, and what does their choice lose on test
users? Everything is kept in `output_dir`, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from model_selection_problem import LONG, PARTS, PROXIES, START, WAYS, SelectionProblem, parse
from model_selection_rows import METRICS, Results, cost_rows, findings_of, results_of, same_cost_fact
from tqdm.auto import tqdm

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.data import flatten_sequences
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text
from farzi_hf.report.plots import plot_model_selection
from farzi_hf.report.rendering import environment

FILES = ("table.json", "table.md", "table.csv", "model_selection.png")


def main(argv: Sequence[str] | None = None) -> None:
    """Trains all configurations in all ways, and writes the card."""
    keep_freed_memory()
    with ends_in_one_line("model_selection.py"):
        name, problem, folder = parse(argv)
        check_outputs(folder, FILES)
        problem.check_files()
    trainings = trainings_of(problem)
    write(name, problem, folder, trainings, [problem.summary_seconds(split) for split in problem.splits])


def trainings_of(problem: SelectionProblem) -> list[dict[str, Any]]:
    """A row per split, configuration and way. The ways take turns, so that the time left is a fair guess."""
    every = list(product(problem.splits, problem.configurations, WAYS))
    rows = []
    for split, configuration, way in tqdm(every, "Trainings", disable=problem.args.disable_tqdm, dynamic_ncols=True):
        done = problem.trained(split, configuration, way)
        metrics = {part: {name: round(done[part][name], 4) for name in METRICS} for part in PARTS}
        rows.append({"split": split, "way": way.name, **asdict(configuration), "seconds": done["seconds"], **metrics})
    return rows


# -- the card --------------------------------------------------------------------------------------------------------


def write(
    name: str, problem: SelectionProblem, folder: Path, trainings: list[dict[str, Any]], before: list[dict[str, float]]
) -> None:
    """The card: `table.json`, `table.md`, `table.csv` and the figure."""
    results = {metric: results_of(trainings, metric) for metric in METRICS}
    rows = [found.row(way.name, metric) for metric, found in results.items() for way in WAYS]
    costs = cost_rows(trainings, before)
    findings, facts = findings_of(results, costs), facts_of(problem, results)
    facts["the same cost"] = same_cost_fact(costs, problem.selection.same_cost_steps)
    tables = [(f"Ranking by {title} on validation users", ranking(rows, metric)) for metric, title in METRICS.items()]
    tables.append(("CPU seconds per split", cost_table(costs)))
    parts = [f"# Model selection, {name}, quick scale", *findings[:2], "\n".join(f"- {text}" for text in findings[2:])]
    parts += [f"**{title}**\n\n{table}" for title, table in tables]
    parts += [RULE, listed(facts), "![model selection](model_selection.png)"]
    folder.mkdir(parents=True, exist_ok=True)
    save_text("\n\n".join(parts) + "\n", folder / "table.md")
    content = {"findings": findings, "rows": rows, "costs": costs, **facts, "trainings": trainings}
    save_json(content, folder / "table.json")
    save_csv([*rows, *costs], folder / "table.csv")
    plot_model_selection(points(trainings), titles(rows), folder / "model_selection.png", metric_label="HR@100")
    print(f"\n{(folder / 'table.md').read_text(encoding='utf-8')}\nTable: {folder / 'table.md'}", flush=True)


RULE = (
    "τ compares validation metrics with those of the truth, on the same users. Brackets hold the middle 95 % over resampled "
    "configurations; splits of the users are averaged. Within architectures: the mean of each one's τ. Regret, in points of the metric on "
    "test users: the best truth less the truth of the chosen configuration. The row of the truth is the ceiling: what it loses is the "
    "difference between validation and test users."
)


def facts_of(problem: SelectionProblem, results: dict[str, Results]) -> dict[str, Any]:
    """What the tables depend on."""
    args, own, split = problem.args, problem.selection, problem.splits[0]
    c = problem.comparison(split, problem.configurations[0], START)
    users = ", ".join(f"{name} {len(rows)}" for name, rows in c.splits.items())
    blind = ", ".join(f"{METRICS[metric]} {100 * found.blind_regret():.1f}" for metric, found in results.items())
    names = ("architectures", "widths", "layers", "learning_rates", "weight_decays")
    axes = "; ".join(f"{name.replace('_', ' ')} {', '.join(map(str, getattr(own, name)))}" for name in names)
    return {
        "configurations": f"{len(problem.configurations)}, {own.per_architecture} random combinations for each architecture: {axes}",
        "splits of the users, each with summaries of its own": problem.splits,
        "users of each split": users,
        "summary": f"[{args.num_sequences}×{args.sequence_length}], {args.max_steps} outer steps",
        "teachers": f"{args.num_teachers} of {json.dumps(problem.data.settings.learner)}, "
        f"{args.teacher_steps} steps of {args.teacher_batch_size} windows each",
        "bytes of the summary, and of all real data": f"{c.farzi.nbytes:,}, {c.nbytes(c.splits['train']):,}",
        "items of the random users": f"{args.num_sequences * args.sequence_length:,} of {len(flatten_sequences(c.splits['train'])[0]):,}",
        "steps": f"{args.inner_steps}, at the same cost {own.same_cost_steps}, about {c.tokens_per_step} tokens each",
        "truth": f"{own.truth_steps} steps of {own.truth_batch_size} windows, a learning rate that falls",
        "regret of a random choice, points": blind,
        **environment(args),
    }


def ranking(rows: Sequence[dict[str, Any]], metric: str) -> str:
    def cell(row: dict[str, Any], name: str, unit: float = 1.0, digits: int = 2) -> str:
        low, high = (unit * edge for edge in row[f"{name}_interval"])
        return f"{unit * row[name]:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"

    return markdown(
        [
            {
                "trained on": row["chosen by"],
                "Kendall's τ": cell(row, "kendall"),
                "of each split": ", ".join(f"{x:.2f}" for x in row["kendall_splits"]),
                "τ within architectures": cell(row, "kendall_within"),
                "Spearman's ρ": cell(row, "spearman"),
                "τ to test": cell(row, "kendall_test"),
                "regret on test, points": cell(row, "regret", 100.0, 1),
            }
            for row in rows
            if row["metric"] == metric
        ]
    )


def cost_table(costs: Sequence[dict[str, Any]]) -> str:
    (truth,) = (row["all"] for row in costs if row["trained on"] == LONG)
    return markdown(
        [
            {
                "trained on": row["trained on"],
                "teachers, outer steps": f"{row['before']:,.1f}",
                "all configurations": f"{row['trainings']:,.1f}",
                "in all": f"{row['all']:,.1f}",
                "share of the truth's": f"{row['all'] / truth:.0%}",
            }
            for row in costs
        ]
    )


def points(trainings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A point of the figure per proxy, split and configuration: HR@100 on validation users of the proxy and of the truth."""
    truths = {place(row): row["validation"]["hr@100"] for row in trainings if row["way"] == LONG}
    return [
        {**row, "proxy": row["validation"]["hr@100"], "truth": truths[place(row)]}
        for row in trainings
        if row["way"] != LONG
    ]


def place(row: dict[str, Any]) -> tuple:
    """The split and the configuration of a training."""
    return tuple(row[name] for name in ("split", "architecture", "width", "layers", "learning_rate", "weight_decay"))


def titles(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The title of each panel, by way."""
    taus = {row["chosen by"]: row["kendall"] for row in rows if row["metric"] == "hr@100"}
    return {way.name: f"{way.name}, τ = {taus[way.name]:.2f}" for way in PROXIES}


if __name__ == "__main__":
    run(main)
