"""A summary as the memory of a recommender that goes on training, beside real histories of the same bytes, no memory, and all data.

    python recipes/continual.py --dataset ml-100k --data_dir FOLDER
    python recipes/continual.py                                         # the embedded interactions, under a minute

Interactions are cut into blocks of time. Block by block, a model goes on training on the new rows and on a memory of the old blocks. After
each block it is measured on users of old blocks, and on users whom it sees for the first time: it should rank the last item of their history
up to then, which is held out. All memories get the same new rows and equally many steps. Results and models are kept in `output_dir`, so a run
that was stopped goes on. `continual_blocks.py` cuts, `continual_memory.py` has the memories, `continual_problem.py` trains and measures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from continual_blocks import NEW, OLD, groups
from continual_memory import MEMORIES, Summary
from continual_problem import ContinualProblem, parse
from tqdm.auto import tqdm

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text
from farzi_hf.report.plots import plot_continual
from farzi_hf.tasks.metrics import bootstrap_interval, mean_and_spread, rank_metrics, ranking_intervals

FILES = ("table.json", "table.md", "table.csv", "continual.png")
GROUPS = {OLD: "users of old blocks", NEW: "users of the new block"}
VERDICTS = {1: "better", 0: "not decided", -1: "worse"}
Results = dict[tuple[str, int, int], dict[str, Any]]
"""By memory, block and seed."""


def main(argv: Sequence[str] | None = None) -> None:
    """The results of all memories on one data set, and their card."""
    keep_freed_memory()
    with ends_in_one_line("continual.py"):
        name, problem, folder = parse(sys.argv[1:] if argv is None else list(argv))
        check_outputs(folder, FILES)
        problem.blocks  # noqa: B018  data that cannot be cut end here
    results = all_results(problem)
    rows = [row for memory in problem.own.memories for row in memory_rows(problem, results, memory)]
    write(name, problem, folder, rows, differences(problem, results))


def all_results(problem: ContinualProblem) -> Results:
    """What is not kept is computed, and the time left is shown."""
    own = problem.own
    cells = [(m, b, seed) for seed in own.seeds for m in own.memories for b in range(own.blocks)]
    own_cells = [(m, b, seed) for m, b, seed in cells if b or m == own.memories[0]]  # all share the first block
    missing = [(m, b, seed) for m, b, seed in own_cells if not problem.is_kept(seed, m, b)]
    for memory, block, seed in tqdm(missing, "Blocks", disable=problem.args.disable_tqdm, dynamic_ncols=True):
        problem.result(seed, memory, block)
    return {(memory, block, seed): problem.result(seed, memory, block) for memory, block, seed in cells}


# -- figures ---------------------------------------------------------------------------------------------------------


def memory_rows(problem: ContinualProblem, results: Results, memory: str) -> list[dict[str, Any]]:
    """A row per block and group of users: metrics as means over the seeds, and their intervals over the users."""
    rows = []
    for block in range(problem.own.blocks):
        found = [results[memory, block, seed] for seed in problem.own.seeds]
        seconds = {
            f"{what}_seconds": np.mean([x[f"{what}_seconds"] for x in found]) for what in ("training", "renewal")
        }
        for group in groups(block):
            measured = np.array([x["measured"][group] for x in found])
            facts = {"memory": MEMORIES[memory].title, "block": block + 1, "users": group, "n": measured.shape[1]}
            metrics = mean_and_spread([rank_metrics(users) for users in measured])
            intervals = {f"{name}_interval": list(edges) for name, edges in ranking_intervals(measured).items()}
            nbytes = round(np.mean([x["bytes"] for x in found]))
            rows.append({**facts, **metrics, **intervals, "bytes": nbytes, **seconds})
    return rows


def hits(problem: ContinualProblem, results: Results, memory: str, group: str) -> np.ndarray:
    """(N,), the share of the seeds that rank a user's item among the first hundred.

    Old users are those of the last block. New users are those of all blocks but the first, which no memory has changed: each is new once.
    """
    last = problem.own.blocks - 1
    blocks = [last] if group == OLD else range(1, last + 1)
    return np.concatenate(
        [
            np.mean(
                [np.array(results[memory, b, s]["measured"][group])[:, 0] <= 100 for s in problem.own.seeds], axis=0
            )
            for b in blocks
        ]
    )


def differences(problem: ContinualProblem, results: Results) -> list[dict[str, Any]]:
    """A row per group of users, kind of summary and other memory: HR@100 in points, the summary's less the other's."""
    names = problem.own.memories
    summaries = [name for name in names if isinstance(MEMORIES[name], Summary)]
    return [
        difference(summary, other, group, *(hits(problem, results, name, group) for name in (summary, other)))
        for group in GROUPS
        for summary in summaries
        for other in names
        if other not in summaries[: summaries.index(summary) + 1]
    ]


def difference(summary: str, other: str, group: str, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """One of these rows, with its interval over the users, and +1, 0 or −1 as the interval decides."""
    values = 100 * (ours - theirs)
    low, high = bootstrap_interval(values)
    return {
        "summary": summary, "other": other, "users": group, "n": len(values), "points": float(values.mean()), "interval": [low, high],
        "decided": int(low > 0) - int(high < 0),
    }  # fmt: skip


# -- the card --------------------------------------------------------------------------------------------------------


def verdict(found: Sequence[dict[str, Any]]) -> str:
    """Whether the summary is worth it beside real histories of the same bytes."""
    decided = {x["users"]: x["decided"] for x in found if (x["summary"], x["other"]) == ("summary", "reservoir")}
    worse, better = ([GROUPS[group] for group in GROUPS if decided[group] == sign] for sign in (-1, 1))
    if worse:
        return f"The summary is not worth it here: real histories of the same bytes are better for {' and for '.join(worse)}."
    if better:
        return f"The summary is worth it here: it is better than real histories of the same bytes for {' and for '.join(better)}."
    return "The summary is not worth it here: no difference from real histories of the same bytes is shown, and those are never renewed."


def finding(row: dict[str, Any]) -> str:
    """One difference in words."""
    low, high = row["interval"]
    ours, theirs = (MEMORIES[row[name]].title for name in ("summary", "other"))
    when = "after the last block" if row["users"] == OLD else "after each block but the first"
    return (
        f"- {GROUPS[row['users']]}, {when} ({row['n']}): {ours} less {theirs}: {row['points']:+.1f} points "
        f"({low:+.1f} … {high:+.1f}), {VERDICTS[row['decided']]}"
    )


def write(name: str, problem: ContinualProblem, folder: Path, rows: list[dict], found: list[dict]) -> None:
    """The card: `table.json`, `table.md`, `table.csv` and the figure."""
    facts = card_facts(problem)
    tables = "\n\n".join(f"**HR@100, {title}**\n\n{table(rows, group)}" for group, title in GROUPS.items())
    rule = "Intervals are 95 % over users; the seeds are averaged. Blocks are counted from 1; in the first, no memory exists yet."
    findings = "\n".join(finding(row) for row in found)
    text = f"# Continual training, {name}, quick scale\n\n**{verdict(found)}**\n\nHR@100:\n\n{findings}\n\n{tables}\n\n{costs(rows)}\n\n{rule}"
    save_text(f"{text}\n\n{listed(facts)}\n\n![continual](continual.png)\n", folder / "table.md")
    content = {"findings": [verdict(found), *found], "rows": rows, **facts}
    save_json(content, folder / "table.json")
    save_csv(rows, folder / "table.csv")
    plot_continual(rows, GROUPS, folder / "continual.png")
    print(f"\n{(folder / 'table.md').read_text(encoding='utf-8')}\nTable: {folder / 'table.md'}", flush=True)


def card_facts(problem: ContinualProblem) -> dict[str, Any]:
    """How it was done."""
    args, blocks = problem.args, problem.blocks
    sizes = [sum(map(len, blocks.training_rows(b)["input_ids"])) for b in range(len(blocks))]
    return {
        "training items of each block": sizes,
        "held out": "the last item of a user's history up to the end of a block; no training, memory or label of that or an earlier block has it",
        "catalogue": f"all {len(problem.task.processing_class) - 1} items from the start",
        "learner": json.dumps(problem.data.settings.learner),
        "training on a block": f"{args.teacher_steps} steps, each of {args.teacher_batch_size} new windows and {args.synthetic_batch_size} sequences "
        "of the memory, whose loss counts as often as there are old blocks",
        "summary": f"[{args.num_sequences}×{args.sequence_length}], {problem.summary_config.label_dim} numbers per label, inputs "
        f"{args.input_sequences}, labels of the model after each block; of its {problem.summary_bytes:,} bytes, "
        f"{4 * problem.summary_config.label_dim * problem.learner.vocab_size:,} are the label decoder",
        "distilled": f"{args.max_steps} outer steps, T = {args.inner_steps}, window {args.window}",
        "bytes of real histories": f"{problem.token_bytes} for an item",
        "seeds": problem.own.seeds,
        "torch": torch.__version__,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]], group: str) -> str:
    """A row per memory and a column per block."""

    def cell(row: dict[str, Any]) -> str:
        low, high = row["hr@100_interval"]
        return f"{100 * row['hr@100']:.1f} ({100 * low:.1f}–{100 * high:.1f})"

    chosen = [row for row in rows if row["users"] == group]
    return markdown(
        [
            {
                "memory": name,
                **{f"block {row['block']}, n = {row['n']}": cell(row) for row in chosen if row["memory"] == name},
            }
            for name in dict.fromkeys(row["memory"] for row in chosen)
        ]
    )


def costs(rows: Sequence[dict[str, Any]]) -> str:
    """A row per memory: nDCG@10, bytes and CPU seconds of the last block."""
    last = max(row["block"] for row in rows)
    return f"**Block {last}**\n\n" + markdown(
        [
            {
                "memory": row["memory"],
                **{f"nDCG@10, {GROUPS[x['users']]}, %": f"{100 * x['ndcg@10']:.1f}" for x in (row, new)},
                "bytes": f"{row['bytes']:,}",
                "CPU s, renewal": f"{row['renewal_seconds']:.1f}",
                "CPU s, training": f"{row['training_seconds']:.1f}",
            }
            for row, new in zip(
                *([r for r in rows if (r["block"], r["users"]) == (last, g)] for g in GROUPS), strict=True
            )
        ]
    )


if __name__ == "__main__":
    run(main)
