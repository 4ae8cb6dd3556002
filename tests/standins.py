"""Small files in the formats of the real ones, so that every loader runs everywhere."""

import gzip
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lapse.tasks import files, mnist, person, physiome, physionet, walker
from lapse.tasks.biology import SYSTEMS


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def person_rows(per_recording: int = 100) -> bytes:
    """Five people, five recordings each; in each one gap of 0 and one of −5 ms."""
    random = np.random.default_rng(0)
    activities = list(person.CLASS_OF)
    lines = []
    for number in range(25):
        ticks = 633790226051280329 + np.cumsum(random.integers(200_000, 400_000, per_recording))
        ticks[10] = ticks[9]
        ticks[20] = ticks[19] - 50_000
        for i, tick in enumerate(ticks):
            x, y, z = random.normal(size=3)
            name = f"{'ABCDE'[number // 5]}0{number % 5 + 1}"
            lines.append(f"{name},{person.TAGS[i % 4]},{tick},date,{x},{y},{z},{activities[i // 8 % 11]}")
    return "\n".join(lines).encode() + b"\n"


def rollout_members(count: int = 20, steps: int = 150) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    members = {}
    for i in range(count):
        buffer = io.BytesIO()
        np.save(buffer, np.cumsum(random.normal(size=(steps + i, 17)), axis=0))
        members[f"walker/rollout_{i:03}.npy"] = buffer.getvalue()
    return members


def stay_members(count: int = 30) -> tuple[dict[str, bytes], bytes]:
    """Stays with a few measurements; the first has none at all, the others have one variable twice."""
    members, outcomes = {}, ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
    for i in range(count):
        stay = 132539 + i
        weight = -1 if i == 0 else 70 + i
        lines = ["Time,Parameter,Value", f"00:00,RecordID,{stay}", f"00:00,Age,{50 + i}", "00:00,Gender,-1"]
        lines += ["00:00,Height,170", "00:00,ICUType,2", f"00:00,Weight,{weight}"]
        if i:
            lines += [f"0{j}:30,{name},{i + j}.5" for name in physionet.VARIABLES for j in range(3)]
            lines += ["47:59,Urine,10", "47:59,Urine,20"]
        members[f"set-a/{stay}.txt"] = "\n".join(lines).encode() + b"\n" * (i % 2)
        outcomes.append(f"{stay},1,1,1,-1,{int(i % 5 == 0)}")
    return members, "\n".join(outcomes).encode()


def trusted(file: files.DataFile, path: Path) -> files.DataFile:
    """The same file, but with the hash of the stand-in at `path`."""
    if path.name.endswith((".zip", ".tar.gz")):
        digest = files.members_digest(files._members(path))
    else:
        digest = files.hash_all(files._unzipped(path), ("sha256:",))[0]
    return replace(file, digests=(digest,))


def watch_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few instances of each biological system, for so short a time that their generation takes no time either."""
    monkeypatch.setattr(physiome, "SIZE", 40)
    for name, system in list(SYSTEMS.items()):
        monkeypatch.setitem(SYSTEMS, name, replace(system, duration=system.duration / 25))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for every file under `folder`, trusted by the loaders; biological systems are watched for a while."""
    watch_for_a_while(monkeypatch)
    random = np.random.default_rng(0)
    images = [idx(random.integers(0, 256, (n, 28, 28))) for n in (40, 10)]
    labels = [idx(np.arange(n) % 10) for n in (40, 10)]
    stays, outcomes = stay_members()
    contents = dict(
        zip(mnist.FILES, map(gzip.compress, (images[0], labels[0], images[1], labels[1])), strict=True)
    )
    contents |= {
        person.FILE: person_rows(),
        walker.FILE: zipped(rollout_members()),
        physionet.RECORDS: tar_gz(stays),
        physionet.OUTCOMES: outcomes,
    }
    trusting: dict[Any, files.DataFile] = {
        file: trusted(file, put(folder / file.path, content)) for file, content in contents.items()
    }
    monkeypatch.setattr(mnist, "FILES", tuple(trusting[file] for file in mnist.FILES))
    monkeypatch.setattr(person, "FILE", trusting[person.FILE])
    monkeypatch.setattr(walker, "FILE", trusting[walker.FILE])
    monkeypatch.setattr(physionet, "RECORDS", trusting[physionet.RECORDS])
    monkeypatch.setattr(physionet, "OUTCOMES", trusting[physionet.OUTCOMES])
    return folder
