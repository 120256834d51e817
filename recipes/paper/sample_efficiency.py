"""Shows how much data is enough: performance against μ, for a summary, for as many real sequences, and for full data.

    python recipes/paper/sample_efficiency.py --dataset ml-100k --data_dir FOLDER
    python recipes/paper/sample_efficiency.py --dataset ptb --data_dir FOLDER --budgets 10 50
    python recipes/paper/sample_efficiency.py --dataset sample                        # embedded: text, or sample_interactions
    python recipes/paper/sample_efficiency.py --dataset ptb --form paper              # the paper's form of a summary
    python recipes/paper/sample_efficiency.py --dataset ptb --form paper --scale paper # for a GPU

This makes the paper's figures of sample efficiency and its table of sizes. All students take the same number of steps, except in
the row "full data, long". Each (method, μ, seed) is stored in `output_dir`, and a later start does not repeat it. The settings are
in `configs/tables/own_DATASET_SCALE.yaml`, or with `--form paper` in `configs/tables/paper_DATASET_SCALE.yaml`; the card goes to
`model_cards/sample_efficiency_DATASET/`, with `--form paper` to `…_DATASET_shared/`, or to `--card_dir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cells import FULL, LONG, Cell, Students, evidence_of, full_cells, on_head, on_random, on_random_bytes, on_summary
from experiment import OWN_FORM, PAPER_FORM, Experiment, full_data_claim

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import Claim, markdown
from farzi_hf.report.evidence import PAPER, PAPER_TEXT
from farzi_hf.report.plots import plot_budget

FAMILIES: dict[str, tuple[Students, bool, str]] = {  # students, whether they need a summary, title of a row
    "Farzi": (on_summary, True, "Farzi [{size}×{length}]"),
    "random": (on_random, False, "random, {size} sequences"),
    "random, same bytes": (on_random_bytes, False, "random, bytes of [{size}×{length}]"),
    "head (longest)": (on_head, False, "head (longest), {size} sequences"),
}
Share = tuple[float, tuple[float, float]]
"""A share of full data's quality, and its interval."""


def main(argv: Sequence[str] | None = None) -> None:
    """The table and the figure of one data set."""
    keep_freed_memory()
    with ends_in_one_line("sample_efficiency.py"):
        figure = "sample_efficiency.png"
        e = Experiment.parse("sample_efficiency", "Sample efficiency", argv, (figure,), forms=OWN_FORM | PAPER_FORM)
        budgets = sorted(e.settings.budgets)
        sized = {(family, size): sized_cell(e, family, size) for family in FAMILIES for size in budgets}
        evidence = evidence_of(e, [*sized.values(), *full_cells()])
    rows, largest = evidence.rows, sized["Farzi", budgets[-1]].method
    shares = {f"{size}×{e.args.sequence_length}": evidence.ratio(sized["Farzi", size].method, LONG) for size in budgets}
    theirs = paper_shares(e.dataset)
    findings = [*evidence.verdicts(claims(e, sized, budgets)), evidence.finding(largest, FULL), *behind(shares, theirs)]
    e.write([*rows.values(), *e.counted()], findings, f"\n{share_table(e.task.ratio_label, shares, theirs)}\n")
    sizes = {size: rows[sized["Farzi", size].method]["bytes"] for size in budgets}  # of summaries, for the upper axis
    curves = [
        {**rows[cell.method], "method": family, "num_sequences": size, "bytes": sizes[size]}
        for (family, size), cell in sized.items()
    ]
    lines = {"full_data": rows[FULL][e.task.metric], "full_data,_long": rows[LONG][e.task.metric]}
    plot_budget(curves, e.folder / figure, e.task.metric, metric_label=e.task.metric_label, **lines)


def sized_cell(e: Experiment, family: str, size: int) -> Cell:
    """One point of a curve."""
    students, distils, title = FAMILIES[family]
    settings = {"num_sequences": size}
    if e.args.synthetic_batch_size is not None:  # at most the number of sequences
        settings["synthetic_batch_size"] = min(size, e.args.synthetic_batch_size)
    return Cell(title.format(size=size, length=e.args.sequence_length), settings, students, distils=distils)


def claims(e: Experiment, sized: Mapping[tuple[str, int], Cell], budgets: Sequence[int]) -> list[Claim]:
    """The paper's claims for this task: summaries are as good as full data in recommendation, and worse in text."""
    smallest, largest = (sized["Farzi", size].method for size in (budgets[0], budgets[-1]))
    found = [full_data_claim(e.task, "a summary", largest, LONG)]
    for family in ("random", "head (longest)"):
        for size in budgets:
            text = f"A summary of {size} sequences is better than as many real ones, {family}"
            found.append(Claim(text, sized["Farzi", size].method, sized[family, size].method))
    return [*found, Claim("More synthetic sequences are better", largest, smallest)] if smallest != largest else found


def paper_shares(dataset: str) -> dict[str, float]:
    """The quality of the paper's summaries as a share of its full data, by size: a ratio of HR@100 or of perplexities."""
    if dataset == "ptb":
        return {size: PAPER_TEXT[FULL][0] / values[0] for size, values in PAPER_TEXT.items() if size != FULL}
    known = PAPER.get(dataset, {})
    return {size: values[1] / known[FULL][1] for size, values in known.items() if size != FULL}


def behind(ours: Mapping[str, Share], theirs: Mapping[str, float]) -> list[str]:
    """A sentence for each size that the paper also has."""
    sentences = []
    for size in [size for size in ours if size in theirs]:
        points = 100 * (ours[size][0] - theirs[size])
        sentences.append(
            f"At the paper's size [{size}], Farzi has {percent(ours[size])} % of full data, long; the paper's has {100 * theirs[size]:.1f} % of "
            f"its own full data: we are {abs(points):.1f} points {'behind' if points < 0 else 'ahead'}."
        )
    return sentences


def share_table(label: str, ours: Mapping[str, Share], theirs: Mapping[str, float]) -> str:
    """A table of our shares and the paper's, by size. Sizes that both have share a row."""
    title = f"share of full data's quality, % ({label})"
    sizes = sorted({*ours, *theirs}, key=lambda size: [int(number) for number in size.split("×")])
    rows = []
    for size in sizes:
        mine = percent(ours[size]) if size in ours else ""
        paper = f"{100 * theirs[size]:.1f}" if size in theirs else ""
        rows.append({title: f"[{size}]", "ours, of full data, long": mine, "the paper's": paper})
    return markdown(rows)


def percent(share: Share) -> str:
    """The share in per cent, with its interval."""
    value, (low, high) = share
    return f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


if __name__ == "__main__":
    run(main)
