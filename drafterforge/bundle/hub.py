"""Bundles on the Hugging Face hub: a bundle is a model repository, which holds data files only."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from drafterforge.bundle.files import FILES_WITHOUT_SUFFIX, SUFFIXES, check_files, check_name, walk
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.errors import ArtifactError, quote

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]+)?")
PATTERNS = [f"*{suffix}" for suffix in SUFFIXES] + list(FILES_WITHOUT_SUFFIX)


def is_hub_id(text: str) -> bool:
    """Whether a text has the form `owner/name` or `owner/name@revision`."""
    return _ID.fullmatch(text) is not None and ".." not in text


def holds_bundle(text: str) -> bool:
    """Whether a text is the hub id of a bundle; False if the hub does not say so."""
    from huggingface_hub import HfApi

    if not is_hub_id(text):
        return False
    if (download_folder(text) / BUNDLE).is_file():
        return True
    repository, _, revision = text.partition("@")
    try:
        return HfApi().file_exists(repository, BUNDLE, revision=revision or None)
    except Exception:  # the hub client raises many kinds of errors
        return False


def download_folder(text: str) -> Path:
    """Where the bundle of a hub id is downloaded; not in the hub's cache, which holds links instead of files."""
    from drafterforge.targets.smollm2 import cache_dir

    return cache_dir() / "hub-bundles" / text.replace("/", "--")


def download(text: str) -> Path:
    """The folder of a downloaded bundle; its record comes first, and says which files are fetched."""
    folder = download_folder(text)
    _fetch(text, folder, [BUNDLE])
    if not (folder / BUNDLE).is_file():
        raise ArtifactError(
            f"{quote(text)} on the hub is no bundle: it has no {BUNDLE}; if it is a target, type target=hf "
            f"target.model={text.partition('@')[0]}"
        )
    names = list(read_record(folder).files)
    for name in names:
        check_name(name)
    _fetch(text, folder, [glob.escape(name) for name in names])
    _drop_leftovers(folder)
    return folder


def _fetch(text: str, folder: Path, patterns: list[str]) -> None:
    """Download files of a repository into a folder."""
    from huggingface_hub import snapshot_download

    repository, _, revision = text.partition("@")
    try:
        snapshot_download(repository, revision=revision or None, allow_patterns=patterns, local_dir=folder)
    except Exception as error:  # as above
        raise ArtifactError(
            f"could not get the bundle {quote(text)} from the hub ({_first_line(error)}); a local folder works too"
        ) from error


def _drop_leftovers(folder: Path) -> None:
    """Delete the files of an earlier download that this bundle does not have; a download only adds files."""
    names = {BUNDLE, *read_record(folder).files}
    for path, _ in walk(folder):
        if path.relative_to(folder).as_posix() not in names:
            path.unlink()


def push(folder: Path, text: str, private: bool = True) -> str:
    """Upload the bundle in `folder` to the repository `text` in one commit; returns the URL of the commit.

    Files of an earlier bundle that this one does not have are deleted from the repository.
    """
    from huggingface_hub import HfApi

    record = read_record(folder)
    check_files(folder, record)
    repository, _, revision = text.partition("@")
    try:
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        if revision:
            api.create_branch(repository, branch=revision, exist_ok=True)
        _require_bundles(text, api.list_repo_files(repository, revision=revision or None))
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=str(folder),
            revision=revision or None,
            allow_patterns=[BUNDLE, *record.files],
            delete_patterns=PATTERNS,
            commit_message=f"drafterforge bundle {record.name} ({record.digest[:12]})",
        )
    except ArtifactError:
        raise
    except Exception as error:  # as above
        raise ArtifactError(
            f"could not push to {quote(text)} ({_first_line(error)}); the bundle is complete in {folder}: log in with "
            "`hf auth login` if you have not, and type the same command without overwrite=true"
        ) from error
    return str(getattr(commit, "commit_url", "") or repository)


def _require_bundles(text: str, files: list[str]) -> None:
    """ArtifactError if the repository holds a model that is not a bundle, because a push would delete its files."""
    if BUNDLE not in files and (existing := [name for name in files if name.endswith((".safetensors", ".json"))]):
        raise ArtifactError(
            f"{text} holds {quote(existing[0])} and no bundle; a push would delete its files; type push=OTHER"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
