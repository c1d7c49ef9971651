"""Writing a bundle: files copied into a temporary sibling, hashed, carded, and put in place by one rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.artifacts.folder import hash_files, refuse_to_overwrite, write_folder
from drafterforge.bundle.card import CARD, model_card
from drafterforge.bundle.files import check_files, check_name
from drafterforge.bundle.record import BUNDLE, BundleRecord, FileEntry, read_record


def write_bundle(
    folder: Path,
    record: BundleRecord,
    sources: Mapping[str, Path],
    replace_it: bool,
    check: Callable[[Path], Any] = lambda inside: None,
) -> BundleRecord:
    """Write the bundle that `record` describes, with the files of `sources` (place in the bundle -> file on disk).

    Returns the record with its files' hashes.  A kill at any moment leaves the earlier bundle or the new one; so does
    an error that `check` raises of the new one, which is not in place yet.
    """
    with write_folder(folder, lambda: refuse_to_overwrite(folder, replace_it, BUNDLE, "bundle")) as inside:
        for name, source in sorted(sources.items()):
            check_name(name)
            (inside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, inside / name)
        (inside / CARD).write_text(model_card(record))
        record = replace(record, files={name: FileEntry(**one) for name, one in hash_files(inside).items()})
        write_bytes_atomic(inside / BUNDLE, record.to_json())
        check_files(inside, read_record(inside), hashes=False)  # what is written opens
        check(inside)
    return record
