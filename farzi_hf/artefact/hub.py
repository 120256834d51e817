"""The way of an artefact to a dataset repository of the Hub and back, over connections that break."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

from farzi_hf.artefact.folder import ArtefactFolder, read_artefact
from farzi_hf.artefact.layout import CARD, CONFIG, LOADED_FILES, is_known

PLACEHOLDER = "path/to/this/folder"  # stands for the repository's name in a card until it is pushed

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS = 5
_PASSING = {408, 409, 412, 429}
"""HTTP errors that another attempt may mend, beside those of the server (5xx): timeout, too fast, and a repository that
somebody else, or an attempt whose answer was lost, has changed meanwhile."""


def fetch_artefact(
    folder_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Path:
    """The folder of an artefact: `folder_or_repo` itself or a download of one commit, without Parquet views and card.

    Downloads that broke off go on where they stopped.

    Raises:
        FileNotFoundError: neither a folder nor a dataset repository within reach.
    """
    folder = Path(folder_or_repo)
    if folder.is_dir():
        return folder
    try:
        return Path(_retry(lambda: snapshot_download(
            str(folder_or_repo), repo_type="dataset", revision=revision, token=token, cache_dir=cache_dir,
            allow_patterns=list(LOADED_FILES),
        )))  # fmt: skip
    except (OSError, HTTPError, HFValidationError) as error:
        raise FileNotFoundError(
            f"folder_or_repo={str(folder_or_repo)!r} is neither a folder nor a dataset repository within reach "
            f"(revision {revision or 'main'}): {error}"
        ) from error


def create_repository(
    repo_id: str, private: bool | None = None, revision: str | None = None, token: str | None = None
) -> str:
    """Makes the dataset repository, and the branch `revision`, where there is none yet; returns its full name."""
    api = HfApi(token=token)
    repo_id = _retry(lambda: api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)).repo_id
    if revision is not None:
        _retry(lambda: api.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True))
    return repo_id


def push_folder(
    folder: str | os.PathLike,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload Farzi data",
) -> str:
    """Uploads a saved artefact to the dataset repository `repo_id`, made if need be, as one commit.

    Only the artefact's own files go, whatever else lies in the folder, and no file over a link. Files that an earlier artefact left in the
    repository are removed; files that never were an artefact's stay. `revision` names a branch, made if need be.
    A connection that breaks is tried again; large files that have arrived are not sent twice, in this call or a later
    one, and there is one commit however often its answer was lost. Returns the commit's address.

    Raises:
        FileNotFoundError, ValueError: there is no artefact in the folder, or not a whole one, or one with links.
        ConnectionError: the Hub could not be reached in several attempts; nothing is committed, and calling again
            resumes.
        HfHubHTTPError: the Hub refuses, for want of rights for instance.
    """
    try:
        with tempfile.TemporaryDirectory() as whole:  # a copy of one save, whatever is saved in the folder meanwhile
            files = read_artefact(Path(folder), lambda artefact: _copy(artefact, Path(whole)))
            repo_id = create_repository(repo_id, private, revision, token)
            return _retry(lambda: _commit(HfApi(token=token), Path(whole), files, repo_id, revision, commit_message))
    except (HTTPError, RuntimeError) as error:
        if not _is_passing(error):
            raise
        raise ConnectionError(
            f"repo_id={repo_id!r} could not be pushed to in {_ATTEMPTS} attempts ({error}); nothing is committed, push "
            "again when the connection is back: files that have arrived are not sent twice"
        ) from error


def _copy(artefact: ArtefactFolder, target: Path) -> list[str]:
    names = list(dict.fromkeys((CARD, CONFIG, *artefact.names)))
    artefact.copy(target, names)
    return names


def _commit(api: HfApi, folder: Path, files: list[str], repo_id: str, revision: str | None, commit_message: str) -> str:
    """One commit on top of what is there now; none, if that is already this artefact."""
    head = api.dataset_info(repo_id, revision=revision)
    operations = [CommitOperationAdd(name, folder / name) for name in files if name != CARD]
    card = (folder / CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    operations.append(CommitOperationAdd(CARD, card.encode()))
    for name in (sibling.rfilename for sibling in head.siblings or []):
        if name not in files and is_known(name):
            operations.append(CommitOperationDelete(name))
    # With its parent said, a commit that is sent twice because the first answer was lost is refused the second time.
    commit = api.create_commit(
        repo_id, operations, commit_message=commit_message, repo_type="dataset", revision=revision,
        parent_commit=head.sha,
    )  # fmt: skip
    return commit.commit_url


def _retry(request: Callable[[], T]) -> T:
    """`request()`, again after 1, 2, 4, 8 seconds where the connection or the server fails.

    huggingface_hub tries again single requests, but not all of them, and not what several have to do together.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return request()
        except (HTTPError, RuntimeError) as error:
            if not _is_passing(error):
                raise
            logger.warning("%s; attempt %d of %d failed.", error, attempt + 1, _ATTEMPTS)
        time.sleep(2**attempt)
    return request()


def _is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed: after a connection that broke, or an answer of the Hub that says so."""
    if isinstance(error, RuntimeError):  # how huggingface_hub wraps what goes wrong while it uploads several files
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code in _PASSING
    return isinstance(error, HTTPError)
