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

from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of, read_artefact
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
    repo = str(folder_or_repo)
    if Path(repo).is_dir():
        return Path(repo)
    try:
        return Path(_retry(lambda: snapshot_download(
            repo, repo_type="dataset", revision=revision, token=token, cache_dir=cache_dir, allow_patterns=list(layout.LOADED_FILES)
        ), repo))  # fmt: skip
    except (OSError, HTTPError, HFValidationError) as error:
        raise FileNotFoundError(
            f"folder_or_repo={repo!r} is neither a folder nor a dataset repository within reach "
            f"(revision {revision or 'main'}): {error}"
        ) from error


def create_repository(
    repo_id: str, private: bool | None = None, revision: str | None = None, token: str | None = None
) -> str:
    """Makes the dataset repository and the branch `revision` if they do not exist; returns the repository's full name."""

    def create() -> str:
        api = HfApi(token=token)
        full = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(full, branch=revision, repo_type="dataset", exist_ok=True)
        return full

    return _retry(create, repo_id)


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
    with tempfile.TemporaryDirectory() as whole:  # a copy of one save: another may follow meanwhile
        files = read_artefact(Path(folder), lambda artefact: _copy(artefact, Path(whole)))
        repo_id = create_repository(repo_id, private, revision, token)
        api = HfApi(token=token)
        return _retry(lambda: _commit(api, Path(whole), files, repo_id, revision, commit_message), repo_id)


def _copy(artefact: ArtefactFolder, target: Path) -> list[str]:
    """Copies the artefact's files, and returns their names."""
    names = list(dict.fromkeys((layout.CARD, layout.CONFIG, *artefact.names)))
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
    operations = [CommitOperationAdd(name, folder / name) for name in files if name != layout.CARD]
    card = (folder / layout.CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    operations.append(CommitOperationAdd(layout.CARD, card.encode()))
    present = {sibling.rfilename for sibling in head.siblings or []}
    old, owned = {name for name in present if pattern_of(name)} - set(files), set()
    if layout.TENSORS in present:
        try:
            header = api.parse_safetensors_file_metadata(
                repo_id, layout.TENSORS, repo_type="dataset", revision=head.sha
            )
            owned = set(read_metadata(header.metadata, Path(repo_id, layout.TENSORS))[0])
        except (SafetensorsParsingError, ValueError) as error:
            logger.warning("%s of %s lists no files: %s", layout.TENSORS, repo_id, error)
    if foreign := sorted(name for name in old - owned if not name.startswith(f"{layout.PLOTS}/")):
        raise ValueError(
            f"repo_id={repo_id!r} has {', '.join(foreign)}, which no summary there lists as its own, and which would be read as part of this "
            "one; remove them from the repository, or choose another one"
        )
    operations += [CommitOperationDelete(name) for name in sorted(old & owned)]
    # With `parent_commit`, a commit that is sent again because its answer was lost is refused the second time.
    return api.create_commit(
        repo_id, operations, commit_message=commit_message, repo_type="dataset", revision=revision, parent_commit=head.sha
    ).commit_url  # fmt: skip


def _retry(request: Callable[[], T], repo_id: str) -> T:
    """`request()`, repeated after 1, 2, 4 and 8 seconds if the connection or the server fails.

    huggingface_hub repeats some single requests, but not all of them, and no sequence of several.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(2 ** (attempt - 1) if attempt else 0)
        try:
            return request()
        except (HTTPError, RuntimeError) as problem:
            error = problem.__cause__ if isinstance(problem, RuntimeError) else problem  # of one of several uploads
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else 500
            if not isinstance(error, HTTPError) or (status < 500 and status not in _PASSING):
                raise
            logger.warning("%s; attempt %d of %d failed.", problem, attempt + 1, _ATTEMPTS)
            last = problem
    raise ConnectionError(
        f"repo_id={repo_id!r} could not be reached in {_ATTEMPTS} attempts ({last}); try again when the connection is "
        "back: nothing is committed, and files that have arrived are not sent twice"
    ) from last
