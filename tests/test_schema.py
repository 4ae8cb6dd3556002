"""A model knows the table that it was trained on: columns by name, units, words, classes."""

import dataclasses
import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from example_sequences import ragged, same
from lapse import Sequences
from lapse.heads import Classes
from lapse.models import Column, Schema, SchemaWarning


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "patient": ["a", "a", "b", "b"],
            "hour": [0.0, 2.0, 1.0, 4.0],
            "pulse": [60.0, np.nan, 70.0, 80.0],
            "temp": [36.0, 37.0, 38.0, 39.0],
            "drug": ["x", "y", None, "x"],
            "sex": ["f", "f", "m", "m"],
            "age": [50, 50, 60, 60],
        }
    )


def read(frame: pd.DataFrame, values: Any = ("pulse", "temp", "drug"), **changes: Any) -> Sequences:
    options: dict[str, Any] = {"static": ["sex", "age"], "unit": "h"} | changes
    return Sequences.from_frame(frame, id="patient", time="hour", values=list(values), **options)


@pytest.fixture
def schema() -> Schema:
    return Schema.of(read(table()))


def test_the_schema_of_a_table(schema: Schema) -> None:
    assert schema.features == (Column("pulse", True), Column("temp"), Column("drug", True, ("x", "y")))
    assert schema.static == (Column("sex", False, ("f", "m")), Column("age"))
    assert schema.inputs == ("pulse", "temp", "drug=x", "drug=y")
    assert schema.static_inputs == ("sex=f", "sex=m", "age")
    assert schema.unit == "h"
    assert schema.missing


def test_words_become_one_number_per_category(schema: Schema) -> None:
    s = schema.conform(read(table()))
    assert s.features == schema.inputs
    assert s.values[:, 2:].tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert s.observed is not None
    assert s.observed[:, 2:].tolist() == [[True, True], [True, True], [False, False], [True, True]]
    assert s.static is not None
    assert s.static.tolist() == [[1, 0, 50], [0, 1, 60]]
    assert s.categories == {}


def test_the_order_of_columns_and_of_words_does_not_matter(schema: Schema) -> None:
    expected = schema.conform(read(table()))
    other = table().replace({"drug": {"x": "z"}})
    with pytest.warns(SchemaWarning, match=r"'drug' has 'z', which training never had \(it had 'x', 'y'\)"):
        s = schema.conform(read(other, ("drug", "temp", "pulse"), static=["age", "sex"]))
    np.testing.assert_array_equal(s.values[:, :2], expected.values[:, :2])
    assert s.observed is not None
    assert s.observed[:, 2].tolist() == [False, True, False, False]
    same(schema.conform(read(table(), ("drug", "temp", "pulse"), static=["age", "sex"])), expected)


def test_what_has_the_form_already_is_returned_as_it_is(schema: Schema) -> None:
    conformed = schema.conform(read(table()))
    assert schema.conform(conformed) is conformed
    plain = ragged([3, 4])
    assert Schema.of(plain).conform(plain) is plain


@pytest.mark.parametrize(("unit", "factor"), [("min", 60.0), ("s", 3600.0), ("D", 1 / 24)])
def test_another_unit_is_converted(schema: Schema, unit: str, factor: float) -> None:
    other = table().assign(hour=table()["hour"] * factor)
    s = schema.conform(dataclasses.replace(read(other, unit=unit), starts=np.array([0.0, 0.0])))
    np.testing.assert_allclose(s.times, [0, 2, 1, 4])
    assert s.unit == "h"
    assert s.timespans.tolist() == pytest.approx([0, 2, 1, 3])


@pytest.mark.parametrize("unit", [None, "visits"])
def test_a_unit_that_cannot_be_converted_is_refused(schema: Schema, unit: str | None) -> None:
    with pytest.raises(ValueError, match=rf"trained on times with unit='h', and these .* unit={unit!r}"):
        schema.conform(read(table(), unit=unit))


def test_two_unknown_units_are_the_same_one() -> None:
    s = read(table(), unit="visits")
    Schema.of(s).conform(s)
    with pytest.raises(ValueError, match="unit='visits'"):
        Schema.of(s).conform(read(table(), unit="frames"))


def test_a_record_that_lacks_an_optional_feature(schema: Schema) -> None:
    with pytest.warns(SchemaWarning, match=r"feature 'pulse', 'drug' is missing.*taken as not observed"):
        s = schema.conform(read(table(), ["temp"]))
    assert s.observed is not None
    assert s.observed.tolist() == [[False, True, False, False]] * 4
    with warnings.catch_warnings():  # a column that is there and empty is nothing unusual
        warnings.simplefilter("error")
        schema.conform(read(table().assign(pulse=np.nan, drug=None)))


def test_a_feature_that_training_always_had_must_be_there(schema: Schema) -> None:
    with pytest.raises(
        ValueError, match=r"feature 'temp' is missing.*needs 'temp', which training always had"
    ):
        schema.conform(read(table(), ["pulse", "drug"]))
    with pytest.raises(ValueError, match=r"static feature 'sex' is missing"):
        schema.conform(read(table(), static=["age"]))
    with pytest.raises(ValueError, match=r"unknown feature 'temperature' is not used.*is it 'temperature'\?"):
        schema.conform(
            read(table().rename(columns={"temp": "temperature"}), ["pulse", "temperature", "drug"])
        )


def test_unknown_columns_are_named(schema: Schema) -> None:
    with pytest.warns(SchemaWarning, match="unknown feature 'age' is not used"):
        s = schema.conform(read(table(), ["pulse", "temp", "drug", "age"]))
    assert s.features == schema.inputs


def test_words_for_numbers_and_numbers_for_words_are_refused(schema: Schema) -> None:
    with pytest.raises(ValueError, match=r"'temp' holds words \('hot'\), expected numbers"):
        schema.conform(read(table().assign(temp="hot")))
    with pytest.raises(ValueError, match=r"'sex' holds numbers, expected words \('f', 'm'\)"):
        schema.conform(read(table().assign(sex=1)))


def test_holes_where_training_had_none_are_told(schema: Schema) -> None:
    with pytest.warns(SchemaWarning, match="'temp' was never missing in training"):
        schema.conform(read(table().assign(temp=[36, None, 37, 38])))


def test_a_column_without_any_value_is_not_part_of_the_model() -> None:
    empty = read(table().assign(pulse=np.nan))
    with pytest.warns(SchemaWarning, match="no value was ever observed in 'pulse'"):
        schema = Schema.of(empty)
    assert schema.unused == ("pulse",)
    with warnings.catch_warnings():  # that the model does not use it was said when it was made
        warnings.simplefilter("error")
        assert "pulse" not in schema.conform(read(table())).features
    with pytest.raises(ValueError, match="there is nothing to learn from"):
        Schema.of(read(table().assign(pulse=np.nan), ["pulse"], static=[]))


def test_a_schema_survives_json(schema: Schema) -> None:
    assert Schema.from_config(json.loads(json.dumps(schema.config()))) == schema


# Classes, which the head knows by name


def states(*words: str | None) -> Sequences:
    frame = pd.DataFrame({"patient": np.arange(len(words)), "hour": 0.0, "x": 1.0, "state": words})
    return Sequences.from_frame(frame, id="patient", time="hour", values="x", target="state")


def test_classes_are_numbered_as_in_training() -> None:
    head = Classes.for_data(states("fine", "sick", "fine"))
    only_sick = head.conform(states("sick", "sick"))
    assert only_sick.targets is not None
    assert only_sick.targets.tolist() == [1, 1]
    assert only_sick.classes == ("fine", "sick")
    assert head.targets_of(only_sick).values.tolist() == [1, 1]
    unknown = head.conform(states("sick", None))
    assert head.targets_of(unknown).known.tolist() == [True, False]
    train = states("fine", "sick")
    assert head.conform(train) is train


def test_a_class_that_training_never_had_is_named() -> None:
    head = Classes.for_data(states("fine", "sick"))
    with pytest.raises(
        ValueError, match=r"a target is 'dead', which is not one of the classes \('fine', 'sick'\)"
    ):
        head.conform(states("dead", "sick"))
