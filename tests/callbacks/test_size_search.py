from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from hookbus.callbacks.size_search import largest_by_bisection, largest_by_doubling


def fits_up_to(room: int, tried: list[int]) -> Callable[[int], bool]:
    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    return fits


@given(room=st.integers(1, 5000), start=st.integers(1, 3000))
def test_bisection_finds_the_largest_size_that_fits(room: int, start: int) -> None:
    assert largest_by_bisection(fits_up_to(room, []), start, trials=60, limit=10_000, enough=None) == room


@given(room=st.integers(1, 5000), start=st.integers(1, 3000))
def test_doubling_finds_one_that_fits_and_whose_double_does_not(room: int, start: int) -> None:
    tried: list[int] = []
    found = largest_by_doubling(fits_up_to(room, tried), start, trials=60, limit=10_000, enough=None)
    assert found in tried
    assert found <= room < 2 * (found + 1)


def test_nothing_beyond_the_limit_is_tried_and_the_limit_itself_is() -> None:
    for search in (largest_by_doubling, largest_by_bisection):
        tried: list[int] = []
        assert search(fits_up_to(10_000, tried), 2, trials=25, limit=100, enough=None) == 100
        assert tried == [2, 4, 8, 16, 32, 64, 100]


def test_a_size_for_all_samples_is_enough() -> None:
    tried: list[int] = []
    assert largest_by_doubling(fits_up_to(10_000, tried), 2, trials=25, limit=8192, enough=50) == 64
    assert tried[-1] == 64


def test_not_even_one_fits() -> None:
    for search in (largest_by_doubling, largest_by_bisection):
        assert search(fits_up_to(0, []), 8, trials=25, limit=100, enough=None) is None


def test_the_number_of_trials_is_bounded() -> None:
    tried: list[int] = []
    assert largest_by_doubling(fits_up_to(10_000, tried), 1, trials=3, limit=8192, enough=None) == 4
    assert tried == [1, 2, 4]
