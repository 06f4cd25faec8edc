"""What follows from several keys of a config."""

from __future__ import annotations

from typing import get_args

from replayfilter.core.clock.clocks import Clock
from replayfilter.service.config.filter_sections import Dedup
from tests.support.configs import config_with


def test_the_default_span_is_a_twelfth_of_the_period_and_at_least_one_unit() -> None:
    assert config_with(dedup={"period": "13s", "unit": "s"}).span_units == 1
    assert config_with(dedup={"period": "5s", "unit": "s"}).span_units == 1
    assert config_with(dedup={"period": "1d", "unit": "iso8601"}).span_units == 2 * 3600 * 10**6


def test_clocks_without_time_use_the_units_of_the_key() -> None:
    ordered = config_with(dedup={"clock": "ordered", "period": 1200, "max_jump": 0})
    assert (ordered.period_units, ordered.span_units, ordered.expiry_unit) == (1200, 100, "integer")
    categorical = config_with(dedup={"clock": "categorical", "period": 0})
    assert (categorical.period_units, categorical.expiry_unit) == (0, "category")


def test_the_clocks_of_the_config_are_those_of_the_core() -> None:
    assert get_args(Dedup.model_fields["clock"].annotation) == tuple(clock.value for clock in Clock)
