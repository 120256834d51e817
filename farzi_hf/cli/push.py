"""`farzi push SUMMARY REPO`: a saved summary to the Hub."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from farzi_hf.artefact import push_folder
from farzi_hf.cli.program import ends_in_one_line


def command(argv: Sequence[str]) -> None:
    """Uploads the artefact as one commit, and prints its address."""
    parser = ArgumentParser("farzi push", description="Uploads a summary to a dataset repository, as one commit.")
    parser.add_argument("summary", help="folder of the summary")
    parser.add_argument("repo", help="the dataset repository, user/farzi-…; made where there is none")
    parser.add_argument("--private", action="store_true", default=None, help="of a repository that is made")
    parser.add_argument("--revision", help="branch to commit to, made if need be (default: main)")
    parser.add_argument("--message", default="Upload Farzi data", help="of the commit")
    args = parser.parse_args(argv)
    from huggingface_hub.errors import HfHubHTTPError

    with ends_in_one_line("farzi push", FileNotFoundError, ConnectionError, HfHubHTTPError):
        url = push_folder(args.summary, args.repo, args.private, args.revision, commit_message=args.message)
        print(url)
