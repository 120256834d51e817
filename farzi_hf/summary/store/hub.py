"""Pushing an artefact to a dataset repository of the Hub and fetching it, over connections that can break."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, SafetensorsParsingError

from farzi_hf.summary.store.folder import (
    CARD,
    CONFIG,
    LOADED_FILES,
    PLOTS,
    TENSORS,
    ArtefactFolder,
    pattern_of,
    read_artefact,
)
from farzi_hf.summary.store.tensor_file import read_metadata

PLACEHOLDER = "path/to/this/folder"  # the repository's name in a card that is not pushed yet

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS = 5
_PASSING = {408, 409, 412, 429}
"""HTTP errors after which another attempt may succeed, beside the server's own (5xx): timeout, too many requests, and a repository
that was changed meanwhile, by somebody else or by an attempt whose answer was lost."""


def fetch_artefact(
    folder_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Path:
    """The folder of an artefact: `folder_or_repo` itself or a download of one commit, without the Parquet tables and the card.

    An interrupted download continues where it stopped.

    Raises:
        FileNotFoundError: `folder_or_repo` is neither a folder nor a dataset repository within reach.
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
    """Makes the dataset repository and the branch `revision` if they do not exist; returns the repository's full name."""
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
    """Uploads a saved artefact to the dataset repository `repo_id` as one commit.

    The repository and the branch `revision` are made if they do not exist. Only the artefact's own files are uploaded, and no link is
    followed. Files of an earlier artefact are removed from the repository; all other files there stay. When the connection breaks, the
    upload is tried again. Large files that have arrived are not sent twice, in this call or a later one, and there is
    one commit even if the Hub's answer to it was lost. Returns the commit's address.

    Raises:
        FileNotFoundError, ValueError: there is no artefact in the folder, it is incomplete, or it contains links.
        ValueError: the repository has files with names of an artefact's that no artefact there lists.
        ConnectionError: the Hub could not be reached in several attempts. Nothing is committed, and another call
            resumes.
        HfHubHTTPError: the Hub refuses the request, for instance because the token has no rights.
    """
    try:
        with tempfile.TemporaryDirectory() as whole:  # a copy of one save: another may follow meanwhile
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
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with artefact.opened(name) as source, (target / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return names


def _commit(api: HfApi, folder: Path, files: list[str], repo_id: str, revision: str | None, commit_message: str) -> str:
    """One commit on top of the branch's last one; none if the branch already holds this artefact.

    `HfApi.upload_folder` would be shorter, but where files take long to arrive it makes several commits, and others would
    load a mix of two artefacts between them.
    """
    head = api.dataset_info(repo_id, revision=revision)
    operations = [CommitOperationAdd(name, folder / name) for name in files if name != CARD]
    card = (folder / CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    operations.append(CommitOperationAdd(CARD, card.encode()))
    present = {sibling.rfilename for sibling in head.siblings or []}
    old = {name for name in present if pattern_of(name)} - set(files)
    owned = _listed(api, repo_id, head.sha) if TENSORS in present else set()
    if foreign := sorted(name for name in old - owned if not name.startswith(f"{PLOTS}/")):
        raise ValueError(
            f"repo_id={repo_id!r} has {', '.join(foreign)}, which no summary there lists as its own, and which would be read as part of this "
            "one; remove them from the repository, or choose another one"
        )
    operations += [CommitOperationDelete(name) for name in sorted(old & owned)]
    # With `parent_commit`, a commit that is sent again because its answer was lost is refused the second time.
    commit = api.create_commit(
        repo_id, operations, commit_message=commit_message, repo_type="dataset", revision=revision,
        parent_commit=head.sha,
    )  # fmt: skip
    return commit.commit_url


def _listed(api: HfApi, repo_id: str, commit: str) -> set[str]:
    """The files that the artefact in the repository lists as its own."""
    try:
        header = api.parse_safetensors_file_metadata(repo_id, TENSORS, repo_type="dataset", revision=commit)
        listed, _ = read_metadata(header.metadata, Path(repo_id, TENSORS))
    except (SafetensorsParsingError, ValueError) as error:
        logger.warning("%s of %s lists no files: %s", TENSORS, repo_id, error)
        return set()
    return set(listed)


def _retry(request: Callable[[], T]) -> T:
    """`request()`, repeated after 1, 2, 4 and 8 seconds if the connection or the server fails.

    huggingface_hub repeats some single requests, but not all of them, and no sequence of several.
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
    """Whether another attempt may succeed: the connection broke, or the Hub's answer is one of the passing errors."""
    if isinstance(error, RuntimeError):  # huggingface_hub wraps errors in it while it uploads several files
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code in _PASSING
    return isinstance(error, HTTPError)
