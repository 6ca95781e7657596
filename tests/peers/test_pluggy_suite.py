"""pluggy's own tests pass on a bus, but for those that pin what is different on purpose."""

import pytest
from tests.peers import pluggy_suite


def test_pluggys_own_tests_pass_but_for_the_known_differences():
    try:
        suite = pluggy_suite.fetch()
    except pluggy_suite.FetchError as error:
        pytest.skip(str(error))
    assert pluggy_suite.run(suite).complaints() == []


def test_an_unexpected_failure_and_a_difference_that_is_gone_are_both_complained_of():
    known = dict.fromkeys(pluggy_suite.DIFFERENT, "as expected")
    assert pluggy_suite.Outcome(200, known).complaints() == []
    assert pluggy_suite.Outcome(200, {**known, "test_new": "broken"}).complaints() == ["test_new fails: broken"]
    gone = known.popitem()[0]
    assert pluggy_suite.Outcome(200, known).complaints()[0].startswith(f"{gone} passes, but is listed as different")
    assert "only 0 tests passed" in pluggy_suite.Outcome(0, known).complaints()[-1]


def test_a_version_that_does_not_exist_cannot_be_fetched(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(pluggy_suite.FetchError, match=r"pip cannot fetch the source of pluggy 0\.0\.0"):
        pluggy_suite.fetch("0.0.0")
