"""Bundles on the Hugging Face hub: pushed as a model repository, fetched by id; plain files only, no code."""

from __future__ import annotations

import re
from pathlib import Path

from drafterforge.bundle.files import BARE, SUFFIXES, check_files, walk
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.errors import ArtifactError, quote

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]+)?")
PATTERNS = [f"*{suffix}" for suffix in SUFFIXES] + list(BARE)


def is_hub_id(text: str) -> bool:
    """Whether a text may be the id of a repository, `owner/name` or `owner/name@revision`."""
    return _ID.fullmatch(text) is not None and ".." not in text


def downloaded(text: str) -> Path:
    """A copy of the bundle's repository, in a folder of plain files (the hub's own cache holds links)."""
    from huggingface_hub import snapshot_download

    from drafterforge.targets.smollm2 import cache_dir

    repository, _, revision = text.partition("@")
    folder = cache_dir() / "hub-bundles" / text.replace("/", "--")
    try:
        snapshot_download(repository, revision=revision or None, allow_patterns=PATTERNS, local_dir=folder)
    except Exception as error:  # the hub client raises many kinds; each means the bundle is not to be had
        raise ArtifactError(
            f"could not get the bundle {quote(text)} from the hub ({_first_line(error)}); a local folder works too"
        ) from error
    _drop_leftovers(folder)
    return folder


def _drop_leftovers(folder: Path) -> None:
    """Remove what an earlier bundle of the repository had and this one has not; a download only adds files."""
    known = {BUNDLE, *read_record(folder).files}
    for path, _ in walk(folder):
        if path.relative_to(folder).as_posix() not in known:
            path.unlink()


def push(folder: Path, text: str, private: bool = True) -> str:
    """Upload the bundle in `folder` to the repository `text`, in one commit; returns where it is.

    Files of an earlier bundle that this one lacks are deleted there.
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
            f"could not push to {quote(text)} ({_first_line(error)}); the bundle is whole in {folder}: log in with "
            "`hf auth login` if that is missing, and type the same command without overwrite=true"
        ) from error
    return str(getattr(commit, "commit_url", "") or repository)


def _require_bundles(text: str, files: list[str]) -> None:
    """Refuse a repository of something else, whose files would be deleted."""
    if BUNDLE not in files and (theirs := [name for name in files if name.endswith((".safetensors", ".json"))]):
        raise ArtifactError(
            f"{text} holds {quote(theirs[0])} and no bundle, which a push would replace; type push=OTHER"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
