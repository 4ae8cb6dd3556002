"""Data files: found in order, downloaded whole, refused when wrong; nothing half-written, no two at once."""

import contextlib
import errno
import gzip
import http.server
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standins
from lapse import Sequences
from lapse.cache import cache_folder
from lapse.tasks import DataFileError, Splits, files
from lapse.tasks.prepared import prepared
from standins import put

TEXT = b"some lines\nof a table\n"
DIGEST = files.hash_all(TEXT, ("sha256:",))[0]
NOWHERE = "http://127.0.0.1:9/table.txt.gz"  # the discard port: nothing listens there
FILE = files.DataFile("demo/table.txt.gz", NOWHERE, (DIGEST,), other_paths=("demo/table.txt",))
ARCHIVE = files.DataFile("demo/data.tar.gz", NOWHERE, ("sha256:0",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LAPSE_DATA", raising=False)
    return tmp_path / "cache"


def leftovers(folder: Path) -> list[str]:
    """Every file but the locks, which stay so that processes agree on them."""
    return sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"
    )


def test_the_search_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, shared = tmp_path / "given", tmp_path / "shared"
    monkeypatch.setenv("LAPSE_DATA", str(shared))
    for folder in (cache, shared, given):
        put(folder / FILE.path, gzip.compress(TEXT))
        _, source = files.read(FILE, given if folder == given else None)
        assert source.folder == str(folder / FILE.path)
        assert source.digest == DIGEST


def test_an_unpacked_file_is_as_good(tmp_path: Path) -> None:
    put(tmp_path / "demo/table.txt", TEXT)
    assert files.read(FILE, tmp_path)[0] == TEXT


def test_the_usual_cache_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAPSE_CACHE")
    assert cache_folder().name == "lapse"


def test_who_has_no_home_has_a_cache_among_the_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No home in the environment and no entry among the users, as in some containers."""
    for name in ("LAPSE_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert cache_folder() == Path(tempfile.gettempdir()) / f"cache-{os.getuid()}" / "lapse"


def test_a_named_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"data folder .*nowhere does not exist"):
        files.read(FILE, tmp_path / "nowhere")


def test_a_wrong_hash(tmp_path: Path) -> None:
    path = put(tmp_path / FILE.path, gzip.compress(b"something else"))
    with pytest.raises(DataFileError, match=r"is not the expected file: .* expected sha256:.*; remove it"):
        files.read(FILE, tmp_path)
    assert path.exists()  # what the user put there is theirs


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not gzip"])
def test_a_damaged_gzip_file(tmp_path: Path, damage: str) -> None:
    good = gzip.compress(TEXT * 100)
    bad = {"truncated": good[:-12], "flipped": good[:20] + b"\xff\xff" + good[22:], "not gzip": b"<html>"}
    put(tmp_path / FILE.path, bad[damage])
    with pytest.raises(DataFileError, match=r"table\.txt\.gz .* is truncated or corrupted"):
        files.read(FILE, tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
@pytest.mark.parametrize("keep", [0, 10, -30])
def test_a_truncated_archive(tmp_path: Path, kind: str, keep: int) -> None:
    members = {"a.txt": os.urandom(500), "b.txt": os.urandom(500)}
    content = standins.zipped(members) if kind == "zip" else standins.tar_gz(members)
    path = put(tmp_path / f"data.{kind}", content[:keep])
    with pytest.raises(DataFileError, match=r"data\..* is truncated or corrupted"):
        files._members(path)


def test_a_corrupted_zip(tmp_path: Path) -> None:
    content = bytearray(standins.zipped({"a.txt": os.urandom(500)}))
    content[100:110] = b"0123456789"
    with pytest.raises(DataFileError, match="truncated or corrupted"):
        files._members(put(tmp_path / "data.zip", bytes(content)))


@pytest.mark.parametrize(
    "entry", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil"]
)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_entry_that_points_outside(tmp_path: Path, kind: str, entry: str) -> None:
    pack = standins.zipped if kind == "zip" else standins.tar_gz
    path = put(tmp_path / "in" / f"data.{kind}", pack({"fine.txt": b"", entry: b"x"}))
    with pytest.raises(DataFileError, match="points outside its folder"):
        files._members(path)
    assert leftovers(tmp_path) == [f"in/data.{kind}"]


def test_a_link_in_an_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataFileError, match="is no plain file"):
        files._members(put(tmp_path / "data.tar.gz", buffer.getvalue()))


def test_an_archive_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 1000)
    for name, content in {
        "a.zip": standins.zipped({"a": bytes(2000)}),
        "a.tar.gz": standins.tar_gz({"a": bytes(2000)}),
    }.items():
        with pytest.raises(DataFileError, match="over 1,000 bytes"):
            files._members(put(tmp_path / name, content))
    with pytest.raises(DataFileError, match="over 1,000 bytes"):
        files._unzipped(put(tmp_path / "a.gz", gzip.compress(bytes(2000))))


def test_packing_does_not_change_an_archives_hash(tmp_path: Path) -> None:
    members = {"b": b"2", "a": b"1"}
    digests = {
        files.members_digest(files._members(put(tmp_path / name, content)))
        for name, content in {
            "one.zip": standins.zipped(members),
            "two.tar.gz": standins.tar_gz({"folder/a": b"1", "folder/b": b"2"}),
        }.items()
    }
    assert len(digests) == 1


# Downloads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(tmp_path / "web"), **kwargs)  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with serving(Handler) as address:
        yield address


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def test_a_download_ends_in_the_cache(tmp_path: Path, cache: Path, server: str, capfd: object) -> None:
    put(tmp_path / "web/table.txt.gz", gzip.compress(TEXT))
    file = files.DataFile(FILE.path, f"{server}/table.txt.gz", FILE.digests)
    assert files.read(file)[0] == TEXT
    assert leftovers(cache) == [FILE.path]
    (tmp_path / "web/table.txt.gz").unlink()
    assert files.read(file)[1].folder == str(cache / FILE.path)
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]


def test_a_downloaded_archive_is_checked_too(tmp_path: Path, cache: Path, server: str) -> None:
    put(tmp_path / "web/data.tar.gz", standins.tar_gz({"a": b"1"}))
    good = files.members_digest({"a": b"1"})
    url = f"{server}/data.tar.gz"
    with pytest.raises(DataFileError, match=r"was thrown away: .* or put the right file at"):
        files.read_archive(files.DataFile(ARCHIVE.path, url, ARCHIVE.digests))
    assert leftovers(cache) == []
    assert files.read_archive(files.DataFile(ARCHIVE.path, url, (good,)))[0] == {"a": b"1"}


@pytest.mark.parametrize(
    "content", [gzip.compress(b"something else"), gzip.compress(TEXT)[:-5]], ids=["other", "truncated"]
)
def test_a_bad_download_leaves_nothing(tmp_path: Path, cache: Path, server: str, content: bytes) -> None:
    put(tmp_path / "web/table.txt.gz", content)
    with pytest.raises(DataFileError, match=r"not the expected file|truncated or corrupted"):
        files.read(files.DataFile(FILE.path, f"{server}/table.txt.gz", FILE.digests))
    assert leftovers(cache) == []


def test_no_network(cache: Path) -> None:
    with pytest.raises(DataFileError) as caught:
        files.read(FILE)
    message = str(caught.value)
    assert "demo/table.txt.gz was not found in" in message
    assert str(cache) in message
    assert NOWHERE in message
    assert "set LAPSE_DATA (or --data-dir)" in message
    assert leftovers(cache) == []


def test_a_page_that_is_gone(server: str, cache: Path) -> None:
    with pytest.raises(DataFileError, match=r"failed \(HTTP Error 404"):
        files.read(files.DataFile(FILE.path, f"{server}/gone", FILE.digests))
    assert leftovers(cache) == []


def test_no_space_for_a_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: files.DataFile, target: Path) -> None:
        target.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_fetch", full)
    with pytest.raises(
        DataFileError, match=r"cannot write .*: no space left; free some space, or set LAPSE_CACHE"
    ):
        files.read(FILE)
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_CACHE", str(put(tmp_path / "a file", b"")))
    with pytest.raises(DataFileError, match="cannot write"):
        files.read(FILE)


# Preparation


def splits() -> Splits:
    part = Sequences.from_arrays([[1.0, 2.0]], [[0.0, 1.0]], ids=["a"])
    return Splits(part, part, part, notes=("a note",))


def test_prepared_once_and_found_again(cache: Path) -> None:
    calls: list[int] = []

    def prepare() -> Splits:
        calls.append(1)
        return splits()

    for _ in range(2):
        assert prepared("demo", (), {"fold": 1}, prepare).notes == ("a note",)
    assert len(calls) == 1
    prepared("demo", (), {"fold": 2}, prepare)
    prepared("demo", (files.Source("x", "y", "sha256:z"),), {"fold": 2}, prepare)
    assert len(calls) == 3
    assert len(list((cache / "prepared").iterdir())) == 3


def test_damaged_preparations_are_made_again(cache: Path) -> None:
    prepared("demo", (), {}, splits)
    (damaged,) = (cache / "prepared").glob("*/train.safetensors")
    damaged.write_bytes(b"")
    assert len(prepared("demo", (), {}, splits).train) == 1


def test_no_space_to_prepare(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFileError, match="no space left; free some space"):
        prepared("demo", (), {}, splits)
    assert leftovers(cache) == []


def test_two_processes_prepare_the_same_task_at_once(tmp_path: Path, cache: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from lapse import Sequences
        from lapse.tasks import Splits
        from lapse.tasks.prepared import prepared

        def prepare():
            with open(sys.argv[1], "a") as log:
                log.write("prepared\\n")
            time.sleep(1.0)
            part = Sequences.from_arrays([[1.0, 2.0]], [[0.0, 1.0]])
            return Splits(part, part, part)

        print(len(prepared("demo", (), {}, prepare).train))
    """)
    log = tmp_path / "log"
    started = [
        subprocess.Popen([sys.executable, "-c", script, log], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["1", "1"]
    assert log.read_text() == "prepared\n"
    (folder,) = (cache / "prepared").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == [
        "notes.json", "test.safetensors", "train.safetensors", "validation.safetensors",
    ]  # fmt: skip


def test_a_killed_process_leaves_nothing_for_long(tmp_path: Path, cache: Path) -> None:
    script = textwrap.dedent("""
        import time
        from lapse.tasks.prepared import prepared

        def prepare():
            print("preparing", flush=True)
            time.sleep(60)

        prepared("demo", (), {}, prepare)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "preparing\n"
        process.kill()
    assert list((cache / "prepared").glob(".partial-*"))
    assert len(prepared("demo", (), {}, splits).train) == 1
    assert not list((cache / "prepared").glob(".partial-*"))


def test_two_processes_download_the_same_file_at_once(tmp_path: Path, cache: Path, server: str) -> None:
    put(tmp_path / "web/table.txt.gz", gzip.compress(TEXT))
    script = (
        "import sys; from lapse.tasks import files; "
        "print(len(files.read(files.DataFile('demo/table.txt.gz', sys.argv[1], (sys.argv[2],)))[0]))"
    )
    command = [sys.executable, "-c", script, f"{server}/table.txt.gz", DIGEST]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == [str(len(TEXT))] * 2
    assert leftovers(cache) == [FILE.path]


# What a server or an archive may do on purpose


class Odd(http.server.BaseHTTPRequestHandler):
    """A server that misbehaves in the way that the path names."""

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):  # the client hangs up, which is what it should do
            self.answer()

    def answer(self) -> None:
        if self.path == "/silent":
            time.sleep(3)
            return
        self.send_response(200)
        self.end_headers()
        for _ in range(200 if self.path == "/endless" else 60):
            self.wfile.write(bytes(10_000) if self.path == "/endless" else b"x")
            self.wfile.flush()
            time.sleep(0 if self.path == "/endless" else 0.05)

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/endless", "it sends more than 2,000 bytes, twice what the file should have"),
        ("/silent", r"[Tt]imed out"),
        ("/slow", r"it sent \d+ bytes in 0.4 s and was not done"),
    ],
)
def test_a_server_cannot_keep_or_fill_us(
    cache: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.setattr(files, "SILENCE", 0.3)
    monkeypatch.setattr(files, "DEADLINE", 0.4)
    with serving(Odd) as address:
        file = files.DataFile(FILE.path, f"{address}{path}", (DIGEST,), size=1000)
        began = time.monotonic()
        with pytest.raises(DataFileError, match=f"downloading .* failed .*{message}"):
            files.read(file)
        assert time.monotonic() - began < 2.5
    assert leftovers(cache) == []


def test_the_size_that_an_entry_claims_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sparse entry of a tar file: a few bytes that stand for as many zeros as it likes.
    entry = tarfile.TarInfo("zeros")
    entry.type, entry.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 512)  # the one piece of data: its place and its size
    header[483:495] = b"%011o\0" % (2**33 - 1)  # the size of the file once it is unpacked
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    bomb = gzip.compress(bytes(header) + bytes(512 + 1024))
    monkeypatch.setattr(files, "LARGEST", 1_000_000)
    with pytest.raises(DataFileError, match=r"unpacks to over 1,000,000 bytes"):
        files._members(put(tmp_path / "a.tar.gz", bomb))
    # A zip file whose directory says 10 bytes where the entry has many more.
    honest = standins.zipped({"a": bytes(5_000_000)})
    lying = honest.replace((5_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(DataFileError, match=r"truncated or corrupted"):
        files._members(put(tmp_path / "a.zip", lying))


def test_many_entries_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 1000)
    members = {str(i): bytes(300) for i in range(4)}
    with pytest.raises(DataFileError, match="over 1,000 bytes"):
        files._members(put(tmp_path / "a.zip", standins.zipped(members)))


def test_a_plain_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 1000)
    put(tmp_path / "demo/table.txt", bytes(2000))
    with pytest.raises(DataFileError, match="over 1,000 bytes"):
        files.read(FILE, tmp_path)


def test_who_waits_for_another_process_is_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lapse.cache.TELL_AFTER", 0.05)
    release = threading.Event()

    def slow() -> Splits:
        release.wait(5)
        return splits()

    first = threading.Thread(target=prepared, args=("demo", (), {}, slow))
    first.start()
    second = threading.Thread(target=prepared, args=("demo", (), {}, slow))
    second.start()
    end = time.monotonic() + 5
    while not caplog.records and time.monotonic() < end:
        time.sleep(0.01)
    release.set()
    for thread in (first, second):
        thread.join()
    (record,) = caplog.records
    assert "waiting for another process that makes" in record.getMessage()
    assert ".lock" in record.getMessage()
