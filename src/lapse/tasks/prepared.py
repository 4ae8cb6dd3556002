"""Prepared data: a task's splits worked out once, kept in the cache, memory-mapped ever after.

The folder's name is a hash of the files' hashes, the options and the version of the code that prepared it:
what was made of other files or with other options cannot be taken for it. It appears whole or not at all,
and processes that want the same one wait for the first to make it. Its files are verified on every load, and a
damaged folder is made again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapse.cache import cache_folder
from lapse.sequences import Sequences
from lapse.stored_config import digest_of
from lapse.tasks.base import Splits
from lapse.tasks.files import DataFileError, Source, writing

# Raise when a loader's output or the file format changes, so that old preparations are not taken for new ones.
VERSION = 2
PARTS = ("train", "validation", "test")


def prepared(
    task: str, sources: tuple[Source, ...], options: dict[str, Any], prepare: Callable[[], Splits]
) -> Splits:
    """`prepare()`, or what it gave the last time it had these files and options."""
    folder = cache_folder() / "prepared" / f"{task}-{_key(sources, options)}"
    if (splits := _stored(folder, sources)) is not None:
        return splits
    with writing(folder) as partial:
        if (splits := _stored(folder, sources)) is None:
            _store(prepare(), partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
            splits = _stored(folder, sources)
    if splits is None:
        raise DataFileError(
            f"what was just written to {folder} cannot be read back; check the disk, or set LAPSE_CACHE to a "
            "folder elsewhere"
        )
    return splits


def _key(sources: tuple[Source, ...], options: dict[str, Any]) -> str:
    return digest_of([VERSION, [s.digest for s in sources], options])[:16]


def _store(splits: Splits, folder: Path) -> None:
    folder.mkdir()
    for name, part in splits.parts().items():
        part.save(folder / f"{name}.safetensors")
    (folder / "notes.json").write_text(json.dumps({"notes": splits.notes, "digest": digest_of(splits.notes)}))


def _stored(folder: Path, sources: tuple[Source, ...]) -> Splits | None:
    """What the folder holds; None when it is not there or is damaged, and must be made again."""
    try:
        parts = [Sequences.load(folder / f"{name}.safetensors") for name in PARTS]
        stored = json.loads((folder / "notes.json").read_text())
        whole = stored["digest"] == digest_of(stored["notes"])
        return Splits(*parts, sources=sources, notes=tuple(stored["notes"])) if whole else None
    except Exception:  # whatever damage leads to: what can be made again is never worth an error
        return None
