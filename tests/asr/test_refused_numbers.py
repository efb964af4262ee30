"""Numbers of the application's configurations that are not numbers; the library's: test_errors.py."""

import re

import pytest
from refusals import refuses

from fsachain import ConfigError
from fsachain.asr.data.audio import Perturbation
from fsachain.asr.nn import TdnnfConfig

NUMBERS = {
    "speed": lambda value: Perturbation(speed=value),
    "dropout": lambda value: TdnnfConfig(num_features=8, num_pdfs=4, dropout=value),
}


@pytest.mark.parametrize("value", ["0.1", [0.1]])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_value_that_is_not_a_number_is_refused_by_name(name, value):
    expected = f"{name} = {re.escape(repr(value))}; expected (a number|an integer)$"
    refuses(ConfigError, expected, NUMBERS[name], value)
