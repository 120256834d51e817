"""Pushing an artefact to a dataset repository of the Hub and fetching it."""

import logging
import os
import shutil
import tempfile
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    DatasetInfo,
    HfApi,
    snapshot_download,
)
from huggingface_hub.errors import HFValidationError, HTTPError

from farzi_hf.common.text import parse_mapping, terminal_text
from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of, read_artefact
from farzi_hf.summary.store.tensor_file import read_metadata

logger = logging.getLogger(__name__)

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
    repo = str(folder_or_repo)
    if Path(repo).is_dir():
        return Path(repo)
    try:
        return Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                allow_patterns=list(layout.LOADED_FILES),
            )
        )
    except (OSError, HTTPError, HFValidationError) as error:
        raise FileNotFoundError(
            f"folder_or_repo={repo!r} is neither a folder nor a dataset repository within reach"
            f" (revision {revision or 'main'}): {error}"
        ) from error


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


def push_folder(
    folder: str | os.PathLike,
    repo_id: str,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload Farzi data",
) -> str:
    """Uploads a saved artefact to the dataset repository `repo_id` as one commit.

    The repository and the branch `revision` are made if they do not exist. Only the artefact's own
    files are uploaded, and no link is followed. Files of an earlier artefact are removed from the
    repository; all other files there stay. A push that fails commits nothing; the next one does not
    send large files again that have arrived. Returns the commit's address. A line warns first of a
    summary whose teacher has learnt rows by heart.

    Raises:
        FileNotFoundError, ValueError: there is no artefact in the folder, it is incomplete, or it
            contains links.
        httpx.HTTPError, RuntimeError: the Hub is out of reach, refuses, or has another commit since
            this push began.
    """
    with tempfile.TemporaryDirectory() as whole:  # a copy of one save: another may follow meanwhile
        files = read_artefact(Path(folder), lambda artefact: _copy(artefact, Path(whole)))
        if layout.METRICS in files:
            metrics = parse_mapping(
                Path(whole, layout.METRICS).read_bytes(), Path(folder, layout.METRICS)
            )
            if warning := metrics.get("memory_warning"):
                found = terminal_text(f"{warning} {metrics.get('memory', '')}", 1000)
                logger.warning("%s Whoever reads %s can look for them.", found, repo_id)
        repo_id, api = create_repository(repo_id, private, revision, token), HfApi(token=token)
        head = api.dataset_info(repo_id, revision=revision)
        present = {sibling.rfilename for sibling in head.siblings or []}
        is_ours = layout.TENSORS in present
        if (
            not is_ours
            and present & set(files)
            and (own := present - {".gitattributes", layout.CARD})
        ):
            raise ValueError(
                f"{repo_id} holds {min(own)!r} and no summary, and its files would go: choose"
                " another"
            )
        card = Path(whole, layout.CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
        # HfApi.upload_folder would be shorter, but it makes several commits where files take long
        # to arrive.
        operations = [
            CommitOperationAdd(layout.CARD, card.encode()),
            *(CommitOperationAdd(name, Path(whole, name)) for name in files if name != layout.CARD),
            *(
                CommitOperationDelete(name)
                for name in (_replaced(api, head, present - set(files)) if is_ours else ())
            ),
        ]
        return api.create_commit(
            repo_id,
            operations,
            commit_message=commit_message,
            repo_type="dataset",
            revision=revision,
            parent_commit=head.sha,
        ).commit_url


def _copy(artefact: ArtefactFolder, target: Path) -> list[str]:
    """Copies the artefact's files, and returns their names."""
    names = list(dict.fromkeys((layout.CARD, *artefact.names)))
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with artefact.opened(name) as source, (target / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return names


def _replaced(api: HfApi, head: DatasetInfo, others: set[str]) -> list[str]:
    """Those of the `others` at a commit that its artefact has: the new one does not have them."""
    header = api.parse_safetensors_file_metadata(
        head.id, layout.TENSORS, repo_type="dataset", revision=head.sha
    )
    return sorted(
        filter(
            pattern_of,
            others & set(read_metadata(header.metadata, Path(head.id, layout.TENSORS))[0]),
        )
    )
