"""Models and tasks of the paper at a glance: the right form of each model, what is missing, and the paper's order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from example_runs import write_seeds
from lapse.report.collection import Collection
from lapse.report.comparison import NOT_DONE, Comparison
from lapse.report.page import Section, render
from lapse.report.tables import build_tables
from lapse.runs import RunConfig
from lapse.tasks import find


def comparison_of(root: Path) -> Comparison:
    found = Comparison.of(build_tables(Collection.read(root)))
    assert found is not None
    return found


def page_of(root: Path) -> str:
    """Without figures and baselines, which the comparison does not have."""
    collection = Collection.read(root)
    sections = [Section(find(table.task), table, ()) for table in build_tables(collection)]
    return render(collection, sections)


@pytest.fixture
def two_tasks(tmp_path: Path) -> Path:
    write_seeds(tmp_path, RunConfig("walker", "lstm"), 1.1, 1.0)
    write_seeds(tmp_path, RunConfig("walker", "ode-lstm"), 0.90, 0.91)
    write_seeds(tmp_path, RunConfig("xor-event", "lstm"), 80.0, 81.0)
    return tmp_path


def test_every_model_of_the_paper_has_a_row_and_what_is_not_done_says_so(two_tasks: Path) -> None:
    comparison = comparison_of(two_tasks)
    event, walker = comparison.tables
    assert len(comparison.models) == 11
    assert comparison.ours("ode-lstm", walker) == "0.905 ± 0.007 (2)"
    assert comparison.paper("ode-lstm", walker) == "0.883 ± 0.014"
    assert comparison.ours("ode-lstm", event) == comparison.ours("ct-gru", walker) == NOT_DONE
    line = next(line for line in comparison.markdown().splitlines() if line.startswith("| ode-lstm"))
    assert line == "| ode-lstm | not done<br>98.89 ± 0.26 | **0.905 ± 0.007 (2)**<br>0.883 ± 0.014 |"


def test_the_form_of_a_model_is_chosen_on_validation_data(two_tasks: Path) -> None:
    jump = RunConfig("walker", "ode-lstm", model_options={"form": "jump"})
    write_seeds(two_tasks, jump, 0.80, 0.81)
    assert (
        comparison_of(two_tasks).ours("ode-lstm", comparison_of(two_tasks).tables[1]) == "0.805 ± 0.007 (2)"
    )
    # The same test figures, and worse ones on validation data.
    for path in jump.folder(two_tasks).parent.glob(f"{jump.folder(two_tasks).name[:-1]}*/result.json"):
        values = json.loads(path.read_text())
        values["validation"] = {"loss": 2.0, "mse": 2.0}
        path.write_text(json.dumps(values))
    assert (
        comparison_of(two_tasks).ours("ode-lstm", comparison_of(two_tasks).tables[1]) == "0.905 ± 0.007 (2)"
    )


def test_fewer_than_two_tasks_of_the_paper_need_no_overview(tmp_path: Path) -> None:
    write_seeds(tmp_path, RunConfig("walker", "lstm"), 1.1)
    write_seeds(tmp_path, RunConfig("mini-digits", "lstm"), 80.0)
    assert Comparison.of(build_tables(Collection.read(tmp_path))) is None
    assert 'id="comparison"' not in page_of(tmp_path)


def test_the_page_has_it(two_tasks: Path) -> None:
    page = page_of(two_tasks)
    assert 'href="#comparison"' in page
    assert page.count("not done") == 11 + 11 - 3
    hours = Collection.read(two_tasks).hours
    assert 0 < hours < 1
    assert f"{hours:.1f} hours of one core" in page


def test_the_verdict_tells_the_place_of_the_papers_model_and_how_far_its_figures_hold(
    two_tasks: Path,
) -> None:
    write_seeds(two_tasks, RunConfig("walker", "gru-d"), 1.09, 1.09)
    write_seeds(two_tasks, RunConfig("xor-event", "ode-lstm"), 79.0)
    standing, order, far = comparison_of(two_tasks).verdict()
    assert standing == (
        "The ode-lstm is first or tied with the first on 1 of 2 tables: first on walker; behind on xor-event "
        "(2nd, after lstm; one run)."
    )
    assert order == (
        "Of the pairs of models that differ in the paper, 3 of 4 are in its order here: xor-event 0 of 1, "
        "walker 3 of 3."
    )
    # The LSTM on xor-event is 2.6 of its standard deviations off, the ODE-LSTM there 76, on walker 1.6; GRU-D is level.
    assert far == (
        "1 of 5 figures are further than 3 of the paper's standard deviations from its own, 0 of them better and 1 "
        "worse."
    )
    assert standing.removesuffix(".") in page_of(two_tasks)


def test_a_tie_with_the_first_is_said(two_tasks: Path) -> None:
    write_seeds(two_tasks, RunConfig("walker", "gru-d"), 0.85, 0.94)
    assert (
        "1 of 1 tables: not told from the first by a Welch test on walker (with gru-d)."
        in comparison_of(two_tasks).verdict()[0]
    )


def test_equal_figures_share_the_first_place(two_tasks: Path) -> None:
    write_seeds(two_tasks, RunConfig("walker", "gru-d"), 0.90, 0.91)
    assert "1 of 1 tables: first on walker (as 1 more)." in comparison_of(two_tasks).verdict()[0]


def test_a_table_says_how_far_the_papers_order_holds(two_tasks: Path) -> None:
    write_seeds(two_tasks, RunConfig("walker", "gru-d"), 0.5)
    event, walker = build_tables(Collection.read(two_tasks))
    # In the paper 0.883 < 1.065 < 1.090; here GRU-D is the best of the three.
    assert "In the paper's order: 1 of 3 pairs of models whose figures differ in the paper." in walker.notes
    assert not any("order" in note for note in event.notes), "one model has no order"


def test_runs_without_validation_figures_come_last(two_tasks: Path) -> None:
    config = RunConfig("walker", "lstm", hidden_size=32)
    write_seeds(two_tasks, config, 0.1)
    path = config.folder(two_tasks) / "result.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"validation": {"loss": 1.0}}))
    assert comparison_of(two_tasks).ours("lstm", comparison_of(two_tasks).tables[1]) == "1.050 ± 0.071 (2)"
