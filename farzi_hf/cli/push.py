"""`farzi push SUMMARY REPO`: uploads a saved summary to the Hub."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.text import terminal_text
from farzi_hf.summary.store.folder import read_artefact
from farzi_hf.summary.store.hub import push_folder


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
        "--dry_run",
        action="store_true",
        help="list what would be uploaded, and stop; nothing is sent",
    )
    args = parser.parse_args(argv)
    from huggingface_hub.errors import HTTPError

    with ends_in_one_line("farzi push", FileNotFoundError, HTTPError, RuntimeError):
        if args.dry_run:
            read = lambda artefact: {  # noqa: E731
                name: artefact.path(name).stat().st_size for name in artefact.names
            }
            sizes = read_artefact(Path(summary_at(args.summary)), read)
            lines = [f"{size:>12,}  {terminal_text(name)}" for name, size in sorted(sizes.items())]
            print(
                "\n".join(
                    [
                        *lines,
                        f"{sum(sizes.values()):>12,}  bytes would go to {args.repo}, as one commit",
                    ]
                )
            )
            return
        print(push_folder(summary_at(args.summary), args.repo, args.private, args.revision))
