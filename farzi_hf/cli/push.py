"""`farzi push SUMMARY REPO`: uploads a saved summary to the Hub, written anew."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.checks import check_licence_name
from farzi_hf.common.text import terminal_text
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.hub import files_to_upload

_OF_MEMORY = (
    "Everybody who can read the repository can look for them. Publish it only if those rows may be"
    " known; otherwise give --private, or train a teacher for fewer steps."
)


def command(argv: Sequence[str]) -> None:
    """Uploads the artefact as one commit, and prints its address."""
    parser = CommandParser("farzi push", description=COMMANDS["push"])
    parser.add_argument("summary", help="folder of the summary")
    parser.add_argument(
        "repo", help="the dataset repository, user/farzi-…; created if it does not exist"
    )
    parser.add_argument(
        "--private", action="store_true", default=None, help="make a new repository private"
    )
    parser.add_argument(
        "--revision", help="branch to commit to; created if it does not exist (default: main)"
    )
    parser.add_argument(
        "--licence",
        metavar="NAME",
        help="licence of the data, as the Hub names it, such as cc-by-4.0, for the card (default:"
        " what the summary says)",
    )
    parser.add_argument(
        "--language",
        metavar="NAME",
        help="language of the text, as the Hub names it, such as en, for the card (default: what"
        " the summary says)",
    )
    parser.add_argument(
        "--show_rows",
        action="store_true",
        help="card, page and figures show rows of the data, too, where their licence allows it",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="list what would be uploaded, and stop; nothing is sent",
    )
    args = parser.parse_args(argv)
    from huggingface_hub.errors import HTTPError

    with ends_in_one_line("farzi push", FileNotFoundError, HTTPError, RuntimeError):
        farzi = FarziData.from_pretrained(summary_at(args.summary))
        metrics = metrics_with(farzi.results.metrics, args.licence, args.language)
        given = {"show_rows": args.show_rows, "metrics": metrics}
        if args.dry_run:
            print(listing(farzi, args.repo, **given))
        else:
            print(farzi.push_to_hub(args.repo, args.private, args.revision, **given))


def metrics_with(
    metrics: Mapping[str, Any], licence: str | None, language: str | None
) -> dict[str, Any]:
    """The metrics of a summary with the licence and the language that a user names.

    Raises:
        ValueError: the Hub has no licence of this name; or the summary is of data whose licence
            this library knows, and it is another one.
    """
    known = metrics.get("licence")
    check_licence_name("--licence", licence)
    if licence is not None and licence != known and metrics.get("licence_text"):
        raise ValueError(
            f"--licence {licence!r}: the licence of these data is {known!r}; leave --licence out"
        )
    named = {"licence": licence, "language": language}
    return {**metrics, **{name: value for name, value in named.items() if value is not None}}


def listing(farzi: FarziData, repo: str, show_rows: bool, metrics: Mapping[str, Any]) -> str:
    """The files that would be uploaded, a line each with its bytes, and what their publisher should
    know.
    """
    with TemporaryDirectory() as folder:
        published = farzi.write_published(Path(folder), show_rows, metrics=metrics).metrics
        names = files_to_upload(Path(folder))
        sizes = {name: Path(folder, name).stat().st_size for name in names}
    lines = [f"{size:>12,}  {terminal_text(name)}" for name, size in sizes.items()]
    total = f"{sum(sizes.values()):>12,}  bytes would go to {repo}, as one commit"
    licence = published.get("licence")
    said = "licence on the card: unknown; name that of your data with --licence NAME"
    if licence:
        said = f"licence on the card: {terminal_text(licence)}"
    warning = published.get("memory_warning")
    warnings = [f"{terminal_text(warning, 1000)} {_OF_MEMORY}"] if warning else []
    return "\n".join([*lines, total, said, *warnings])
