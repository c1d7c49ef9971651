"""Write a bundle: copy its files into a temporary folder, add hashes and a model card, and rename the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.artifacts.bundles import require_no_foreign_files
from drafterforge.artifacts.folder import hash_files, refuse_to_overwrite, write_folder
from drafterforge.bundle.card import CARD, model_card
from drafterforge.bundle.files import check_files, check_name
from drafterforge.bundle.record import BUNDLE, BundleRecord, FileEntry, read_record


def write_bundle(
    folder: Path,
    record: BundleRecord,
    sources: Mapping[str, Path],
    overwrite: bool,
    check: Callable[[Path], Any] = lambda written: None,
) -> BundleRecord:
    """Write the bundle that `record` describes.  sources: path in the bundle -> file to copy.

    check: called with the new folder before it replaces an earlier bundle, which stays if `check` raises.
    Returns the record with the hashes of its files.  A kill at any moment leaves the earlier bundle or the new one.
    Raises ArtifactError if the folder holds anything but an earlier bundle.
    """

    def check_folder() -> None:
        refuse_to_overwrite(folder, overwrite, BUNDLE, "bundle")
        require_no_foreign_files(folder)

    with write_folder(folder, check_folder) as temporary:
        for name, source in sorted(sources.items()):
            check_name(name)
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, temporary / name)
        (temporary / CARD).write_text(model_card(record))
        record = replace(record, files={name: FileEntry(**entry) for name, entry in hash_files(temporary).items()})
        write_bytes_atomic(temporary / BUNDLE, record.to_json())
        check_files(temporary, read_record(temporary), hashes=False)  # fails now if the bundle could not be opened
        check(temporary)
    return record
