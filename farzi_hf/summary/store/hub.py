"""Pushing an artefact to a dataset repository of the Hub and fetching it."""

import os
from collections.abc import Collection
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    DatasetInfo,
    HfApi,
    snapshot_download,
)
from huggingface_hub.errors import HFValidationError, HTTPError

from farzi_hf.common.checks import check_place
from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of
from farzi_hf.summary.store.tensor_file import read_metadata

_REPOSITORY = "a repository of the Hub, such as 'user/farzi-ptb'"
PLACEHOLDER = "path/to/this/folder"  # the repository's name in a card that is not pushed yet


def fetch_artefact(
    folder_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Path:
    """The folder of an artefact: `folder_or_repo` itself or a download of one commit, without the
    Parquet tables and the card. Raises FileNotFoundError if `folder_or_repo` is neither a folder
    nor a dataset repository within reach.

    An interrupted download continues where it stopped.
    """
    check_place("folder_or_repo", folder_or_repo, f"a folder, or {_REPOSITORY}")
    repo = str(folder_or_repo)
    if Path(repo).is_dir():
        return Path(repo)
    try:
        snapshot = snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=list(layout.LOADED_FILES),
        )
    except (OSError, HTTPError, HFValidationError) as error:
        raise FileNotFoundError(
            f"folder_or_repo={repo!r} is neither a folder nor a dataset repository within reach"
            f" (revision {revision or 'main'}): {error}"
        ) from error
    return Path(snapshot)


def check_repository(repo_id: str) -> None:
    """Raises ValueError if that names no repository, so that the error comes before any work."""
    check_place("repo_id", repo_id, _REPOSITORY)


def create_repository(
    repo_id: str, private: bool | None = None, revision: str | None = None, token: str | None = None
) -> str:
    """Makes the dataset repository and the branch `revision` if they do not exist; returns the
    repository's full name.
    """
    api = HfApi(token=token)
    full = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
    if revision is not None:
        api.create_branch(full, branch=revision, repo_type="dataset", exist_ok=True)
    return full


def upload_artefact(
    folder: Path,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload Farzi data",
) -> str:
    """Uploads an artefact that has just been written into `folder` to the dataset repository
    `repo_id`, as one commit.

    The files go up as they are, so nobody else may have written them: `FarziData.push_to_hub`
    writes them anew, from the tensors, also where the summary was loaded from a folder.

    The repository and the branch `revision` are made if they do not exist. Files of an earlier
    artefact are removed from the repository; all other files there stay. A push that fails commits
    nothing; the next one does not send large files again that have arrived. Returns the commit's
    address.

    Raises:
        ValueError: the repository holds other data.
        httpx.HTTPError, RuntimeError: the Hub is out of reach, refuses, or has another commit since
            this push began.
    """
    files = files_to_upload(folder)
    repo_id = create_repository(repo_id, private, revision, token)
    api = HfApi(token=token)
    head = api.dataset_info(repo_id, revision=revision)
    present = {sibling.rfilename for sibling in head.siblings or []}
    is_ours = layout.TENSORS in present
    if not is_ours:
        _check_no_other_data(repo_id, present, files)
    card = (folder / layout.CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    added = [CommitOperationAdd(layout.CARD, card.encode())]
    added += [CommitOperationAdd(name, folder / name) for name in files if name != layout.CARD]
    outdated = _replaced(api, head, present - set(files)) if is_ours else []
    removed = [CommitOperationDelete(name) for name in outdated]
    # HfApi.upload_folder would be shorter, but it makes several commits where files take long
    # to arrive.
    commit = api.create_commit(
        repo_id,
        [*added, *removed],
        commit_message=commit_message,
        repo_type="dataset",
        revision=revision,
        parent_commit=head.sha,
    )
    return commit.commit_url


def _check_no_other_data(repo_id: str, present: Collection[str], files: Collection[str]) -> None:
    """Raises ValueError if a repository without a summary holds other data, of which a push would
    replace files. What the Hub itself writes, and a card alone, are no data.
    """
    of_others = set(present) - {".gitattributes", layout.CARD}
    if of_others and set(present) & set(files):
        raise ValueError(
            f"{repo_id} holds {min(of_others)!r} and no summary, and a push would replace its"
            " files: choose another"
        )


def files_to_upload(folder: Path) -> list[str]:
    """The files of the artefact in `folder`, as relative paths."""
    return sorted({layout.CARD, *ArtefactFolder(folder).names})


def _replaced(api: HfApi, head: DatasetInfo, others: set[str]) -> list[str]:
    """Those of the files `others` of a commit that belong to the artefact there, which the new one
    replaces.
    """
    header = api.parse_safetensors_file_metadata(
        head.id, layout.TENSORS, repo_type="dataset", revision=head.sha
    )
    names, _ = read_metadata(header.metadata, Path(head.id, layout.TENSORS))
    return sorted(name for name in others & set(names) if pattern_of(name))
