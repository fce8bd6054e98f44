"""Every op against the float64 oracle."""

from __future__ import annotations

import pytest
from cases import CASES

import strata_attention as sa


@pytest.mark.parametrize("name", CASES)
def test_result(name: str) -> None:
    case = CASES[name]()
    case.run()
    case.check()


@pytest.mark.parametrize("name", CASES)
def test_check_notices_that_nothing_was_written(name: str) -> None:
    with pytest.raises(AssertionError):
        CASES[name]().check()


def test_every_op_has_a_case() -> None:
    assert {make().op for make in CASES.values()} == set(sa.ALL)
