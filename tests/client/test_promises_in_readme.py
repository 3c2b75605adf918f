"""What client/README.md promises of the device, each sentence with the test that holds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from places import ROOT

TEXT = " ".join((ROOT / "client" / "README.md").read_text(encoding="utf-8").split())
HERE = Path(__file__).parent

PROMISES = {
    "`record()` never waits for the network": "locked.record_does_not_wait_for_an_upload",
    "the report waits in memory, with up to a hundred others, until the lock is free": (
        "locked.record_waits_in_memory_for_a_lock"
    ),
    "With `consent=False` nothing is computed, stored or sent": (
        "record.without_consent_nothing_is_computed_stored_or_sent"
    ),
    "`consent` has no default.": "record.consent_is_asked_and_not_assumed",
    "No message ever holds the value.": ("tracebacks.wrong_value_shows_nothing_true"),
    "Ctrl-C included, shows neither value nor secret, bits or permanent response": (
        "tracebacks.ctrl_c_in_record_shows_nothing_true"
    ),
    "A true outcome survives the death of the process.": (
        "crash.killed_host_loses_nothing_confirmed"
    ),
    "At most 1,000 reports and 1 MB wait": "uploader.spool_is_bounded_in_number",
    "Any thread may fork at any time; parent and child go on": (
        "forking.two_threads_fork_while_a_third_records"
    ),
    "an interval that turns out to lie years ahead ends at once": (
        "record.clock_that_was_years_ahead_holds_nothing_back"
    ),
    "an epoch never has more reports than its price counts on": (
        "record.jumping_clock_brings_no_more_reports_than_an_epoch_is_paid_for"
    ),
    "An upload holds one report": "uploader.upload_holds_one_report",
    "waits a random time before each upload": (
        "background.each_upload_waits_a_random_time_of_its_own"
    ),
    "opens a new connection for it": "http_transport.no_two_requests_share_a_connection",
    "The report of an interval leaves at a random time of the next interval": (
        "background.reports_of_an_interval_leave_spread_over_the_next_one"
    ),
    "Opening sends what an earlier run left": ("background.opening_sends_what_an_earlier_run_left"),
    "An upload's id and its bytes stay the same over all attempts": (
        "uploader.retry_repeats_the_same_bytes"
    ),
    "One upload that always fails does not hold up the others": (
        "uploader.upload_that_always_fails_does_not_block_the_others"
    ),
    "Seven days after its first attempt an upload is given up.": (
        "uploader.upload_is_given_up_seven_days_after_its_first_attempt"
    ),
    "Where the clock was wrong by years, the seven days start anew.": (
        "uploader.first_attempt_at_a_wrong_time_drops_nothing"
    ),
    "It returns within its `timeout` whatever the server does": (
        "http_transport.flush_ends_with_its_time_whatever_the_server_does"
    ),
    "An address with a user name, a query or a wrong port is refused when the client opens.": (
        "http_transport.wrong_addresses_are_refused_at_opening"
    ),
    "The metric is silent until that day is over.": (
        "stops.stopped_metric_is_silent_until_its_day_is_over"
    ),
    "which each device decides by its own secret for an epoch": (
        "stops.sample_is_decided_by_the_secret"
    ),
}


@pytest.mark.parametrize("sentence", PROMISES)
def test_promise_is_written_and_has_a_test(sentence: str) -> None:
    """The page says so, and the named test is there and asserts something."""
    assert sentence in TEXT
    room, _, name = PROMISES[sentence].partition(".")
    tree = ast.parse((HERE / f"test_{room}.py").read_text(encoding="utf-8"))
    (test,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == f"test_{name}"
    )
    asked = [node for node in ast.walk(test) if isinstance(node, ast.Assert | ast.Call)]
    assert asked
