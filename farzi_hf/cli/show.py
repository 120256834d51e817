"""`farzi show SUMMARY`: prints a summary in the terminal."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from farzi_hf.cli import COMMANDS
from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.checks import check_size
from farzi_hf.common.text import terminal_text
from farzi_hf.report.tables import markdown
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import INPUTS, PER_SEQUENCE
from farzi_hf.summary.reading import Decoded
from farzi_hf.summary.store.tensor_file import STORAGES


def command(argv: Sequence[str]) -> None:
    """Prints the facts of the summary, the likeliest entries of its positions, and its table of
    results.
    """
    parser = ArgumentParser("farzi show", description=COMMANDS["show"])
    parser.add_argument("summary", help="folder, or dataset repository of the Hub, user/farzi-…")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument(
        "--sequences",
        type=int,
        default=2,
        help="number of synthetic sequences to print (default: 2)",
    )
    parser.add_argument(
        "--positions", type=int, default=12, help="number of positions per sequence (default: 12)"
    )
    parser.add_argument(
        "--top_k", type=int, default=4, help="number of likeliest entries per position (default: 4)"
    )
    args = parser.parse_args(argv)
    with ends_in_one_line("farzi show", FileNotFoundError):
        for name in ("sequences", "positions", "top_k"):
            check_size(f"--{name}", getattr(args, name))
        farzi = FarziData.from_pretrained(summary_at(args.summary), args.revision)
        print(
            markdown(
                [{"the summary": name, "": value} for name, value in facts(farzi).items()],
                texts=[""],
            )
        )
        # At least two positions: one that is read, and one that is predicted.
        fixed = farzi.beginning(args.sequences, max(2, args.positions))
        decoded = Decoded(fixed.tensors, fixed.config, fixed.vocabulary.readable, args.top_k)[:]
        shown = positions(decoded, args.positions, fixed.config.inputs != "soft")
        print("\n" + markdown(shown, texts=["input", "likeliest entries", "its label"]))
        if rows := farzi.results.metrics.get("table"):
            print("\n" + markdown(results(rows)))


def facts(farzi: FarziData) -> dict[str, str]:
    """The facts of a summary: its source, its size, and the settings to train on it."""
    config, metrics, recipe = farzi.config, farzi.results.metrics, farzi.results.recipe
    learner, unnamed = (
        recipe.get("learner"),
        "" if farzi.processing_class is not None else ", without names",
    )
    made = {
        "sequences × positions": f"{config.num_sequences:,} × {config.sequence_length:,}",
        "numbers per position": (
            f"{sum(config.shapes[name][-1] for name in config.learnt if name in PER_SEQUENCE):,}"
        ),
    }
    if farzi.carried is not None:
        form = INPUTS[config.inputs]
        count, stored = (
            sum(x.numel() for x in farzi.teacher.parameters()),
            STORAGES[config.storage].description,
        )
        made = {
            "teacher": (
                f"{farzi.teacher.config.model_type}, {count:,} numbers"
                + (f": {stored}" if stored else "")
            ),
            "inputs": (
                f"{form.words}, {'any number of' if form.source else f'{config.num_sequences:,}'}"
                f" rows of {config.sequence_length}"
            ),
            "labels": "what the teacher predicts after each id",
        }
    data, compressed = (
        isinstance(x := metrics.get(name), int) and f"{x:,}"
        for name in ("data_bytes", "data_bytes_after_xz")
    )
    known = {
        "distilled from": metrics.get("dataset") or recipe.get("dataset"),
        "with a learner": learner.get("model_type") if isinstance(learner, dict) else None,
        **made,
        "vocabulary": f"{config.vocab_size:,} entries{unnamed}",
        "bytes" if farzi.carried is None else "bytes to keep": f"{farzi.nbytes:,}",
        "bytes of the data": (
            data + (f"; {compressed} after xz -9" if compressed else "") if data else None
        ),
        "to be trained with": (
            ", ".join(f"{name} {value}" for name, value in (config.inner or {}).items()) or None
        ),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def positions(
    decoded: Sequence[Sequence[dict[str, Any]]], count: int, of_ids: bool
) -> list[dict[str, str]]:
    """The first positions of these sequences, a row each; whether their inputs are ids."""

    def likeliest(position: dict[str, Any], kind: str = "") -> str:
        shown = zip(position[f"{kind}tokens"], position[f"{kind}probabilities"], strict=True)
        return ", ".join(
            f"{terminal_text(token, 40)} {probability:.2f}" for token, probability in shown
        )

    rows = []
    for i, sequence in enumerate(decoded):
        for j, position in enumerate(sequence[:count]):
            row = {"sequence, position": f"{i}, {j}"}
            if of_ids:
                row["input"] = terminal_text(position["tokens"][0], 40)
            else:
                row |= {
                    "entropy (nats)": f"{position['entropy']:.2f}",
                    "likeliest entries": likeliest(position),
                }
            if "label_tokens" in position:
                row["entropy of the label (nats)"] = f"{position['label_entropy']:.2f}"
                row["its label"] = likeliest(position, "label_")
            rows.append(row)
    return rows


def results(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """The rows in the artefact's table, without spreads and intervals."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4f}" if abs(value) < 1 else f"{value:,.1f}"
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    columns = [name for name in rows[0] if not name.endswith(("_std", "_interval", "seconds"))]
    return [{name: cell(row.get(name)) for name in columns} for row in rows]
