"""`farzi push SUMMARY REPO`: uploads a saved summary to the Hub, written anew."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.text import terminal_text
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.hub import files_to_upload


def command(argv: Sequence[str]) -> None:
    """Uploads the artefact as one commit, and prints its address."""
    parser = ArgumentParser(
        "farzi push", description="Uploads a summary to a dataset repository, as one commit."
    )
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
        if args.dry_run:
            print(listing(farzi, args.repo, args.show_rows))
        else:
            show_rows = args.show_rows
            print(farzi.push_to_hub(args.repo, args.private, args.revision, show_rows=show_rows))


def listing(farzi: FarziData, repo: str, show_rows: bool) -> str:
    """The files that would be uploaded, a line each with its bytes."""
    with TemporaryDirectory() as folder:
        farzi.write_published(Path(folder), show_rows)
        names = files_to_upload(Path(folder))
        sizes = {name: Path(folder, name).stat().st_size for name in names}
    lines = [f"{size:>12,}  {terminal_text(name)}" for name, size in sizes.items()]
    total = f"{sum(sizes.values()):>12,}  bytes would go to {repo}, as one commit"
    return "\n".join([*lines, total])
