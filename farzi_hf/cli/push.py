"""`farzi push SUMMARY REPO`: uploads a saved summary to the Hub."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from farzi_hf.cli.program import ends_in_one_line
from farzi_hf.summary.store import push_folder


def command(argv: Sequence[str]) -> None:
    """Uploads the artefact as one commit, and prints its address."""
    parser = ArgumentParser("farzi push", description="Uploads a summary to a dataset repository, as one commit.")
    parser.add_argument("summary", help="folder of the summary")
    parser.add_argument("repo", help="the dataset repository, user/farzi-…; created if it does not exist")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", help="branch to commit to; created if it does not exist (default: main)")
    args = parser.parse_args(argv)
    from huggingface_hub.errors import HTTPError

    with ends_in_one_line("farzi push", FileNotFoundError, HTTPError, RuntimeError):
        print(push_folder(args.summary, args.repo, args.private, args.revision))
