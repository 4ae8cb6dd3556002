"""Walker2d rollouts: the authors' format, the same bytes for the same seed, and policies that walk."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lapse.tasks import walker_simulator
from lapse.tasks.walker_policies.measure import main as print_table
from lapse.tasks.walker_simulator import MAX_STEPS, STAGES, Policy, environment, generate, rollout

POLICIES = Path(walker_simulator.__file__).parent / "walker_policies"


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walker") / "walker"
    generate(folder, seed=3, rollouts=4)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_files_have_the_authors_names_and_format(walks: Path) -> None:
    assert list(contents(walks)) == [f"rollout_{index:03d}.npy" for index in range(4)]
    for file in walks.iterdir():
        frames = np.load(file)
        assert frames.dtype == np.float64
        assert frames.shape == (len(frames), 17)
        assert 1 <= len(frames) <= MAX_STEPS
        assert np.isfinite(frames).all()


def test_every_frame_is_upright_and_the_first_is_at_rest(walks: Path) -> None:
    """As in the authors' files: a rollout ends before the frame in which the walker has fallen."""
    at_rest = np.zeros(17)
    at_rest[0] = 1.25  # height of the torso
    for file in walks.iterdir():
        frames = np.load(file)
        assert ((frames[:, 0] > 0.8) & (frames[:, 0] < 2.0)).all()
        assert (np.abs(frames[:, 1]) < 1.0).all()
        assert (np.abs(frames[:, 8:]) <= 10.0).all()
        np.testing.assert_allclose(frames[0], at_rest, atol=0.005)


def test_same_seed_gives_the_same_bytes_and_fewer_rollouts_the_first_ones(
    walks: Path, tmp_path: Path
) -> None:
    generate(tmp_path / "again", seed=3, rollouts=2)
    again = contents(tmp_path / "again")
    assert again == {name: contents(walks)[name] for name in again}


def test_another_seed_gives_other_rollouts(walks: Path, tmp_path: Path) -> None:
    generate(tmp_path / "other", seed=4, rollouts=1)
    assert contents(tmp_path / "other")["rollout_000.npy"] not in contents(walks).values()


def test_the_steadiest_stage_walks() -> None:
    policy = Policy.of_stage(STAGES[0])
    with environment() as walker:
        walked = [rollout(walker, policy, np.random.default_rng(seed)) for seed in range(9)]
    assert np.median([len(frames) for frames in walked]) >= 500
    assert np.concatenate(walked)[:, 8].mean() > 1.0  # m/s forward: it does not merely stand


@pytest.mark.parametrize("stage", STAGES)
def test_actions_are_torques_within_bounds(stage: int) -> None:
    policy = Policy.of_stage(stage)
    for observation in np.random.default_rng(0).normal(scale=100.0, size=(20, 17)):
        action = policy(observation)
        assert action.shape == (6,)
        assert (np.abs(action) <= 1.0).all()


def test_one_action_in_a_hundred_is_random() -> None:
    class Treadmill:
        """A stand-in for the environment that never ends and keeps the actions."""

        def __init__(self) -> None:
            self.actions: list[np.ndarray] = []

        def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros(17), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.actions.append(action)
            return np.zeros(17), 0.0, False, False, {}

    treadmill, policy = Treadmill(), Policy.of_stage(STAGES[0])
    for seed in range(20):
        assert rollout(treadmill, policy, np.random.default_rng(seed)).shape == (MAX_STEPS, 17)  # type: ignore[arg-type]
    actions = np.stack(treadmill.actions)
    random = (actions != policy(np.zeros(17))).any(axis=1)
    assert 0.008 < random.mean() < 0.012
    assert np.abs(actions[random]).max() <= 1.0
    assert abs(actions[random].mean()) < 0.1
    assert actions[random].std() == pytest.approx(3**-0.5, rel=0.1)  # uniform on [-1, 1]


@pytest.mark.parametrize("missing", ["gymnasium", "mujoco"])
def test_missing_simulator_says_what_to_install(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"{missing}.*pip install 'lapse\[walker\]'"):
        generate(tmp_path / "walker")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interruption_leaves_nothing_behind(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Path] = []

    def save_once(file: Path, frames: np.ndarray) -> None:
        if saved:
            raise error("no space left on device")
        saved.append(file)
        file.write_bytes(frames.tobytes())

    monkeypatch.setattr(np, "save", save_once)
    with pytest.raises(error, match="no space left"):
        generate(tmp_path / "walker", rollouts=2)
    assert saved
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="choose another folder"):
        generate(tmp_path)
    assert contents(tmp_path) == {"mine.txt": b"keep"}


def test_no_rollouts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        generate(tmp_path / "walker", rollouts=0)


def test_table_has_a_row_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(rollouts=1)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [int(row.split("|")[1]) for row in rows] == list(STAGES)


def test_policies_are_small_and_complete() -> None:
    files = sorted(POLICIES.glob("*.safetensors"))
    assert [file.name for file in files] == [f"policy_{stage:04d}.safetensors" for stage in STAGES]
    assert sum(file.stat().st_size for file in files) < 1_000_000


def test_exported_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="policies are trained with the extra lapse[walker]")
    from lapse.tasks.walker_policies.train import export, learner

    model = learner(seed=0)
    scaling = model.get_vec_normalize_env()
    observations = np.random.default_rng(0).normal(scale=3.0, size=(50, 17))
    scaling.obs_rms.update(observations)
    export(model, tmp_path / "policy.safetensors")
    policy = Policy.load(tmp_path / "policy.safetensors")
    expected, _ = model.predict(scaling.normalize_obs(observations), deterministic=True)
    np.testing.assert_allclose([policy(observation) for observation in observations], expected, atol=1e-5)
