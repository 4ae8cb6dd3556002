"""Faults on purpose, and what was lost by them: `make torture MINUTES=10`, or `python tests/torture.py --help`.

Each kind of fault is tried again and again on small studies and runs, at random moments. After every fault the work
goes on without it; what comes out must be the same to the last bit as the work of a study that nobody disturbed.
Nothing may be lost, changed or left behind.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from example_models import model_for, sequences
from lapse import SequenceModel, Stream
from lapse.runs import RunConfig, run
from lapse.training import DamagedCheckpoint
from lapse.training.checkpoints import DamagedCheckpointWarning
from processes import Command
from unbroken import assert_same_run

EPOCHS = 6
SETTINGS = [f"train.epochs={EPOCHS}", "train.batch_size=512", "hidden_size=4"]
SET = [word for setting in SETTINGS for word in ("--set", setting)]
STUDY = ["study", "--tasks", "mini-digits", "--models", "lstm,gru-d", "--seeds", "2", "--workers", "2", *SET]
RUN = ["train", "mini-digits", "--model", "lstm", *SET]
SIGNALS = [signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
NOBODY = 65534


class Lost(AssertionError):
    """Something did not survive a fault."""


@dataclass
class Torture:
    """A place to work in, the work of an undisturbed study, and the tally."""

    place: Path
    random: random.Random
    tried: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reference = self.place / "reference"
        start = time.monotonic()
        status, said = Command([*STUDY, "-o", str(self.reference)]).end()
        assert status == 0, said
        self.duration = time.monotonic() - start

    def moment(self) -> float:
        """A random number of seconds, about as long as a study takes."""
        return self.random.uniform(0.0, 1.1 * self.duration)

    def check(self, root: Path, expected: int) -> None:
        """All runs under `root` are as those of the undisturbed study, to the last bit."""
        folders = [path.parent for path in root.rglob("result.json")]
        if len(folders) != expected:
            raise Lost(f"{len(folders)} results in {root}, expected {expected}")
        for folder in folders:
            try:
                assert_same_run(folder, self.reference / folder.relative_to(root), EPOCHS)
            except AssertionError as error:
                raise Lost(f"{folder} is not as it should be: {error}") from error

    def attempt(self, kind: str) -> None:
        """Try one fault of a kind, in a folder of its own."""
        self.tried[kind] += 1
        try:
            FAULTS[kind](self, self.place / kind)
        except Exception:
            self.lost.append(f"{kind}: {traceback.format_exc()}")

    def report(self) -> str:
        lost = Counter(line.split(":")[0] for line in self.lost)
        lines = [f"{'fault':<14}{'tried':>6}{'lost':>6}"]
        lines += [f"{kind:<14}{self.tried[kind]:>6}{lost[kind]:>6}" for kind in FAULTS if self.tried[kind]]
        return "\n".join([*lines, *self.lost])


def results(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("result.json")}


def kill(torture: Torture, root: Path) -> None:
    """A signal to a study, or to one of its workers, at a random moment; the study goes on the next time."""
    before = results(root)
    study = Command([*STUDY, "-o", str(root)])
    time.sleep(torture.moment())
    target = torture.random.choice([study.process.pid, study.process.pid, *study.alive])
    with suppress(ProcessLookupError):  # it may have ended before
        os.kill(target, torture.random.choice(SIGNALS))
    if target != study.process.pid:
        time.sleep(torture.random.uniform(0.0, 2.0))
        study.process.kill()
    study.end()
    if left := study.orphans():
        raise Lost(f"{len(left)} processes live on")
    after = results(root)
    if changed := [path for path, content in before.items() if after.get(path) != content]:
        raise Lost(f"changed or gone: {changed}")
    if len(after) == 4:
        torture.check(root, 4)
        shutil.rmtree(root)


def two_writers(torture: Torture, root: Path) -> None:
    """Two studies on one folder, of which one is killed; the other does everything."""
    shutil.rmtree(root, ignore_errors=True)
    one, other = (Command([*STUDY, "-o", str(root)]) for _ in range(2))
    time.sleep(torture.moment())
    one.process.kill()
    one.end()
    status, said = other.end()
    if status != 0:
        raise Lost(f"the other study ended with {status}: {said}")
    torture.check(root, 4)


def full_disk(torture: Torture, root: Path) -> None:
    """A limit on the size of files, which a write meets as it meets a full disk; then there is room again."""
    shutil.rmtree(root, ignore_errors=True)
    limit = int(10 ** torture.random.uniform(2, 6))
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
    status, said = Command([*RUN, "-o", str(root)], options=limited).end()
    if status not in (0, 1, 2) or "Traceback" in said:
        raise Lost(f"with files of at most {limit} bytes the run ended with {status}: {said}")
    go_on(torture, root)


def read_only(torture: Torture, root: Path) -> None:
    """The folder of a run becomes read-only while the run is at work; then it can be written again."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    # The administrator may write anywhere, so the run is somebody else's.
    user = {"user": NOBODY} if os.getuid() == 0 else {}
    for path in (torture.place, root):
        os.chmod(path, 0o777)
    environment = {"HOME": str(root), "LAPSE_CACHE": str(root / "cache")}
    run = Command([*RUN, "-o", str(root / "runs")], environment, options=user)
    time.sleep(torture.moment())
    folders = [path for path in (root / "runs").rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    status, said = run.end()
    if status not in (0, 1, 2) or "Traceback" in said:
        raise Lost(f"in a read-only folder the run ended with {status}: {said}")
    for folder in folders:
        folder.chmod(0o777)
    go_on(torture, root / "runs")


def go_on(torture: Torture, root: Path) -> None:
    status, said = Command([*RUN, "-o", str(root)]).end()
    if status != 0:
        raise Lost(f"the run did not go on: {status}: {said}")
    torture.check(root, 1)


def flipped_bits(torture: Torture, root: Path) -> None:
    """A bit flips in a file of a run that was cut off: it goes on to the same result, or says which file is damaged."""
    config, cut = cut_off(torture)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(cut, root)
    folder = config.folder(root)
    file = torture.random.choice([path for path in folder.iterdir() if path.stat().st_size])
    content = bytearray(file.read_bytes())
    content[torture.random.randrange(len(content))] ^= 1 << torture.random.randrange(8)
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedCheckpointWarning)
        try:
            run(config, root)
        except DamagedCheckpoint as error:
            if "ckpt" not in str(error):
                raise
            run(config, root, restart=True)
    torture.check(root, 1)


def cut_off(torture: Torture) -> tuple[RunConfig, Path]:
    """A run that was cut off in its fourth epoch; made once."""
    import lightning
    import torch

    from lapse.cli.train import configure

    class Cut(lightning.Callback):
        def on_train_epoch_start(self, trainer: lightning.Trainer, module: object) -> None:
            if trainer.current_epoch == 3:
                raise KeyboardInterrupt

    config, root = configure("mini-digits", "lstm", "default", 0, SETTINGS), torture.place / "cut-off"
    if not root.exists():
        torch.set_num_threads(1)
        with suppress(KeyboardInterrupt):
            run(config, root, callbacks=(Cut(),))
    return config, root


def compile_race(torture: Torture, root: Path) -> None:
    """Several processes compile the kernels at once, and one is killed at it; the others and the next one have them."""
    shutil.rmtree(root, ignore_errors=True)
    environment = {"LAPSE_CACHE": str(root), "HOME": str(root)}
    words = ["info"]
    racing = [Command(words, environment) for _ in range(3)]
    time.sleep(torture.random.uniform(0.0, torture.duration))
    racing[0].process.kill()
    racing[0].end()
    for one in [*racing[1:], Command(words, environment)]:
        status, said = one.end()
        if status != 0 or re.search("fused kernels *none", said):
            raise Lost(f"no fused kernels after a race of compilers: {status}: {said}")
    if left := list(root.rglob(".partial-*")):
        raise Lost(f"left behind: {left}")


def stream_killed(torture: Torture, root: Path) -> None:
    """A stream with a snapshot after every line is killed; the snapshot is whole, and goes on to the bit."""
    root.mkdir(exist_ok=True)
    folder, file = root / "model", root / "state.safetensors"
    if not folder.exists():
        model_for(sequences(), model="lstm").save(folder)
    file.unlink(missing_ok=True)
    events = [{"id": f"pump {k % 7}", "time": 0.5 * k, "values": [float(k % 5), 80.0]} for k in range(500)]
    words = ["stream", str(folder), "--snapshot", str(file), "--every", "1"]
    killed = Command(words, options={"stdin": subprocess.PIPE})
    killed.process.stdin.write("".join(json.dumps(event) + "\n" for event in events))  # type: ignore[union-attr]
    killed.process.stdin.flush()  # type: ignore[union-attr]
    time.sleep(torture.moment())
    killed.process.kill()
    _, said = killed.end()
    answers = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
    whole, again = Stream(SequenceModel.load(folder)), Stream(SequenceModel.load(folder))
    if file.exists():
        again.restore(file)
    taken = 1 + max((int(2 * time) for time in again._residents.arena.times if time == time), default=-1)
    if not len(answers) - 1 <= taken <= len(answers) + 1:
        raise Lost(f"{len(answers)} lines were answered, and the snapshot has {taken}")
    for k, event in enumerate(events):
        arguments = event["id"], event["time"], event["values"]
        expected = whole.push(*arguments)  # type: ignore[arg-type]
        for found in [answers[k]] if k < len(answers) else []:
            if dict(found) != {"id": event["id"], "time": event["time"], **dict(expected or {})}:
                raise Lost(f"line {k} was answered with {found}")
        if k >= taken and dict(again.push(*arguments) or {}) != dict(expected or {}):  # type: ignore[arg-type]
            raise Lost(f"event {k} has another answer after the restart")


FAULTS: dict[str, Callable[[Torture, Path], None]] = {
    "kill": kill,
    "two writers": two_writers,
    "full disk": full_disk,
    "read-only": read_only,
    "flipped bits": flipped_bits,
    "compile race": compile_race,
    "stream": stream_killed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--minutes", type=float, help="how long to go on; 10 without --trials")
    parser.add_argument("--trials", type=int, default=10**9, help="or how many faults to try")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and choices")
    parser.add_argument("--only", choices=FAULTS, action="append", help="a kind of fault; may be repeated")
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * (chosen.minutes or (math.inf if chosen.trials < 10**9 else 10.0))
    with tempfile.TemporaryDirectory(prefix="lapse-torture-") as place:
        torture = Torture(Path(place), random.Random(chosen.seed))
        kinds = chosen.only or list(FAULTS)
        for trial in range(chosen.trials):
            if time.monotonic() > end:
                break
            torture.attempt(kinds[trial % len(kinds)])
            print(f"{sum(torture.tried.values())} tried, {len(torture.lost)} lost", file=sys.stderr)
        print(torture.report())
    sys.exit(bool(torture.lost))


if __name__ == "__main__":
    main()
