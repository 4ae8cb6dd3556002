"""Data files: found, downloaded, checked, and read from memory; nothing is ever unpacked on disk.

Search order: the folder given, `$LAPSE_DATA`, the cache, then a download into the cache. The cache is
`$LAPSE_CACHE`, or the place the system has for such things. A file counts only when its contents have a known
hash. Hashes are of what is inside, so a file packed anew is still the same file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.request import urlopen

from lapse import cache
from lapse.cache import cache_folder
from lapse.sequences.storage import NO_SPACE

Members = dict[str, bytes]
LARGEST = 2**30  # bytes unpacked; the largest real file has 35 MB, so more is a mistake or an attack
SILENCE = 30.0  # seconds without a byte from a server before a download is given up
DEADLINE = 3600.0  # seconds for a download in all, against a server that sends a byte now and then


class DataFileError(RuntimeError):
    """A data file that is missing, damaged, or not the one expected; the message says what to do."""


_downloads = ContextVar("downloads", default=True)


@contextmanager
def without_download() -> Iterator[None]:
    """Inside, a file that is not on this machine is a DataFileError at once: for readers to whom data are an extra."""
    token = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(token)


@dataclass(frozen=True)
class DataFile:
    """A file of a task: its place under a data folder, where it is published, hashes of its contents.

    Args:
        path: where the file lies under a data folder.
        url: where it is published.
        digests: hashes of its contents, any of which is right.
        other_paths: further places under a data folder where it may lie, such as an unpacked copy.
        hint: another way to get such data, for the error message when the file cannot be had.
        size: bytes of the published file, if need be estimated; a download of more than twice as many is given up.
    """

    path: str
    url: str
    digests: tuple[str, ...]
    other_paths: tuple[str, ...] = ()
    hint: str = ""
    size: int = LARGEST


@dataclass(frozen=True)
class Source:
    """A file as it was found, for the record."""

    path: str
    folder: str
    digest: str


def search_folders(data_dir: str | Path | None) -> list[Path]:
    """Where files are looked for, in order; a `data_dir` that does not exist is a mistake to report."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataFileError(f"the data folder {data_dir} does not exist; create it or name another")
    named = [data_dir, os.environ.get("LAPSE_DATA")]
    return [Path(folder).expanduser() for folder in named if folder] + [cache_folder()]


def read(file: DataFile, data_dir: str | Path | None = None) -> tuple[bytes, Source]:
    """The checked contents of a plain or gzip file."""
    path = _located(file, data_dir)
    content = _unzipped(path)
    return content, _checked(file, path, hash_all(content, file.digests))


def read_archive(file: DataFile, data_dir: str | Path | None = None) -> tuple[Members, Source]:
    """The checked files of a zip or tar.gz archive, by their names without folders."""
    path = _located(file, data_dir)
    members = _members(path)
    return members, _checked(file, path, [members_digest(members)])


def members_digest(members: Members) -> str:
    """The hash of an archive's files in order of name, however it was packed."""
    total = hashlib.sha256()
    for name in sorted(members):
        total.update(f"{name}\0{len(members[name])}\0".encode())
        total.update(members[name])
    return f"sha256:{total.hexdigest()}"


def hash_all(content: bytes, like: tuple[str, ...]) -> list[str]:
    """The contents' hash by every algorithm `like` uses: of an original, only the md5 may be known."""
    names = dict.fromkeys(digest.split(":")[0] for digest in like)
    return [f"{name}:{hashlib.new(name, content, usedforsecurity=False).hexdigest()}" for name in names]


def _checked(file: DataFile, path: Path, found: list[str]) -> Source:
    known = [digest for digest in found if digest in file.digests]
    if not known:
        raise DataFileError(
            f"{path} is not the expected file: its contents have {found[0]}, "
            f"expected {' or '.join(file.digests)}; remove it and let it be downloaded again, "
            f"or fetch it from {file.url}"
        )
    return Source(file.path, str(path), known[0])


def _located(file: DataFile, data_dir: str | Path | None) -> Path:
    folders = search_folders(data_dir)
    for folder in folders:
        for name in (file.path, *file.other_paths):
            if (folder / name).is_file():
                return folder / name
    if not _downloads.get():
        searched = ", ".join(str(folder) for folder in folders)
        raise DataFileError(
            f"{file.path} was not found in {searched}; set LAPSE_DATA to a folder that holds it"
        )
    return _download(file, folders)


def _download(file: DataFile, folders: list[Path]) -> Path:
    target = cache_folder() / file.path
    with writing(target) as partial:
        if not target.exists():
            _retrieve(file, partial, folders)
            _verify(file, partial, target)
            os.replace(partial, target)
    return target


def _retrieve(file: DataFile, partial: Path, folders: list[Path]) -> None:
    try:
        _fetch(file, partial)
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise
        searched = ", ".join(str(folder) for folder in folders)
        raise DataFileError(
            f"{file.path} was not found in {searched}, and downloading {file.url} failed ({error}). "
            f"Put the file at {cache_folder() / file.path}, or set LAPSE_DATA (or --data-dir) to a "
            f"folder that holds {file.path}.{' ' + file.hint if file.hint else ''}"
        ) from error


def _fetch(file: DataFile, target: Path) -> None:
    """Download what the server sends, within limits of size and time."""
    end, count, limit = time.monotonic() + DEADLINE, 0, 2 * file.size
    with urlopen(file.url, timeout=SILENCE) as answer, target.open("wb") as output:
        while chunk := answer.read1(
            2**16
        ):  # as much as there is: to wait for more would be to wait for a slow server
            count += len(chunk)
            if count > limit:
                raise OSError(f"it sends more than {limit:,} bytes, twice what the file should have")
            if time.monotonic() > end:
                raise TimeoutError(f"it sent {count:,} bytes in {DEADLINE:g} s and was not done")
            output.write(chunk)


def _verify(file: DataFile, partial: Path, target: Path) -> None:
    try:
        if partial.name.endswith((".zip", ".tar.gz")):
            _checked(file, partial, [members_digest(_members(partial))])
        else:
            _checked(file, partial, hash_all(_unzipped(partial), file.digests))
    except DataFileError as error:
        raise DataFileError(
            f"what {file.url} sent was thrown away: it is damaged or not the expected file. "
            f"Try again later, or put the right file at {target}. ({error})"
        ) from error


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A place to write `target` before renaming it; one process at a time, nothing left on failure."""
    try:
        with cache.writing(target, locks=cache_folder() / "locks") as partial:
            yield partial
    except OSError as error:
        reason = "no space left" if error.errno in NO_SPACE else str(error)
        raise DataFileError(
            f"cannot write {target}: {reason}; free some space, or set LAPSE_CACHE to a folder elsewhere"
        ) from error


def _unzipped(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.suffix != ".gz":
            return _limited(path, file)
        try:
            with gzip.open(file) as stream:
                return _limited(path, stream)
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, path.stat().st_size, error) from error


def _limited(path: Path, stream: IO[bytes] | gzip.GzipFile, used: int = 0) -> bytes:
    """What the stream really holds: what an archive says of the sizes of its entries need not be true."""
    content = stream.read(LARGEST - used + 1)
    if used + len(content) > LARGEST:
        raise DataFileError(f"{path} unpacks to over {LARGEST:,} bytes: not a file of this task; remove it")
    return content


def _damaged(path: Path, size: int, error: Exception) -> DataFileError:
    return DataFileError(
        f"{path} ({size:,} bytes) is truncated or corrupted ({error}); "
        "remove it and let it be downloaded again"
    )


def _members(path: Path) -> Members:
    try:
        return _zip_members(path) if path.suffix == ".zip" else _tar_members(path)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        OSError,
        zlib.error,
        NotImplementedError,
    ) as error:
        raise _damaged(path, path.stat().st_size, error) from error


def _zip_members(path: Path) -> Members:
    members = _Members(path)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as stream:
                    members.add(info.filename, stream)
    return members.found


def _tar_members(path: Path) -> Members:
    members = _Members(path)
    # Unpacked whole first: read as a stream, a tar file that lost its end goes unnoticed.
    with tarfile.open(fileobj=io.BytesIO(_unzipped(path)), mode="r:") as archive:
        for info in archive:
            _inside(path, info.name)
            if info.isdir():
                continue
            if not info.isfile():
                raise DataFileError(f"{path} has an entry {info.name!r} that is no plain file; remove it")
            stream = archive.extractfile(info)
            assert stream is not None
            members.add(info.name, stream)
    return members.found


class _Members:
    """The entries of an archive as they are read, their real sizes added up."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self.found: Members = {}

    def add(self, name: str, stream: IO[bytes]) -> None:
        content = _limited(self.path, stream, self.size)
        self.size += len(content)
        self.found[_inside(self.path, name)] = content


def _inside(path: Path, entry: str) -> str:
    """The entry's own name; an entry that points outside its folder condemns the archive."""
    parts = PurePosixPath(entry.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in entry:
        raise DataFileError(
            f"{path} has an entry {entry!r} that points outside its folder; "
            "do not unpack this archive, remove it"
        )
    return parts.name
