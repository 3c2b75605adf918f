"""Promises of client/README.md and client/REFERENCE.md: each sentence with its test.

A promise is a sentence about the behaviour of the client. If the page changes or the test is
renamed, a test of this file fails.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from places import ROOT

PAGES = [ROOT / "client" / name for name in ("README.md", "REFERENCE.md")]
TEXT = " ".join(" ".join(page.read_text(encoding="utf-8") for page in PAGES).split())
HERE = Path(__file__).parent

LISTED = r"""
background.each_upload_waits_a_random_time_of_its_own
    a random time before each, up to `max_delay`
background.reports_of_an_interval_leave_spread_over_the_next_one
    until a random time of the next interval
background.opening_sends_the_reports_of_an_earlier_run
    Opening sends what an earlier run left
background.no_thread_until_something_is_recorded
    starts no thread before something is recorded
background.background_sender_waits_a_random_time_first
    Its background thread sends each report after a random delay
failures.each_kind_is_logged_once_a_minute_and_counted_always
    logged, at most one line a minute for each kind of failure
failures.cap_for_life_never_raises_the_registrys_total
    `BudgetCap` can only lower the total.
failures.programs_with_different_registries_share_one_budget
    Programs with different registries that share a folder share its budget.
flush.next_run_ignores_the_backoff_of_an_earlier_run
    what it could not send waits on the disk for the next run
flush.flush_obeys_retry_after
    It keeps to intervals, and to a time that the collector asked for.
    never less than the collector's `Retry-After`
forking.two_threads_fork_while_a_third_records
    Any thread may fork at any time; parent and child go on
http_transport.flush_ends_in_time_beside_an_endless_server
    returns within its `timeout` whatever the server does
http_transport.wrong_addresses_are_refused_at_opening
    An address with a user name, a query or a wrong port is refused when the client opens.
http_transport.proxy_of_the_system_is_used
    Proxies that the system names are used
http_transport.client_sends_each_report_on_a_connection_of_its_own
    each over a connection of its own
    opens a new connection for each upload
intervals.only_the_chosen_event_of_the_first_interval_is_memoized
    An event that is not chosen leaves no trace.
intervals.interval_ends_with_its_epoch
    An interval ends with its epoch at the latest.
vectors.client_sends_the_reports_of_the_vectors
    Cohort and noise are drawn anew for each metric and epoch
record.without_consent_nothing_is_computed_stored_or_sent
    With `consent=False` nothing is computed, stored or sent
record.consent_has_no_default
    `consent` has no default.
record.hundred_threads_record_at_once
    may be called from an event loop, from any thread
record.fork_shares_no_handle_no_thread_and_no_randomness
    after a fork
record.one_report_leaves_an_interval
    the device sends at most one report in each day or week
record.opt_out_drops_the_reports_of_a_metric
    refuse one metric and drop its waiting reports
withdrawal.lost_state_uses_the_year_up
    A reservation stays when consent is withdrawn and given again, when the secret is replaced
reservation.metric_without_room_is_logged_once_and_skipped
    names all silent metrics
    its silence says nothing about its values
reservation.next_year_has_a_budget_of_its_own
    Next year's budget is a new one.
lives.check_delivered
    A clock that is set back finds the stored response of the earlier epoch again.
scope_memory.metric_for_life_follows_a_change_of_p_and_q
    A metric for life follows a change of `p` and `q` at once
scope_memory.values_without_a_category_are_reported_and_counted
    is reported all the same, as noise over no bit
secrecy.no_secret_is_written_or_shown
    They hold no value.
stops.stopped_metric_is_skipped_until_its_last_day_is_over
    The metric is silent until that day is over, and its reports wait.
stops.sample_is_decided_by_the_secret
    which each device decides by its own secret for an epoch
stops.flush_in_an_event_loop
    `await client.aflush()` does the same in a thread
stops.stop_lasts_thirty_days_at_most
    at most 30 days ahead
tracebacks.wrong_value_shows_no_secret
    No message ever holds the value.
tracebacks.ctrl_c_in_record_shows_no_secret
    Ctrl-C included, shows neither value nor secret, bits or permanent response
uploader.spool_is_bounded
    At most 1,000 reports and 1 MB wait
    The oldest go first and are counted
uploader.upload_contains_one_report
    An upload holds one report
lives.check_delivered
    An upload's id and bytes stay the same in all attempts, so the collector counts it once.
uploader.upload_that_always_fails_does_not_block_the_others
    One that always fails holds up its own metric at most
uploader.upload_is_given_up_seven_days_after_its_first_attempt
    Seven days after its first attempt an upload is given up.
uploader.first_attempt_by_a_wrong_clock_gives_nothing_up
    the seven days of the upload start anew
uploader.permanent_statuses_drop_the_upload
    After 400, 409, 413, 415 or 422 the upload is dropped and counted.
uploader.backoff_doubles_up_to_an_hour_and_jitters_fully
    longer after each failure, up to an hour
uploader.failing_collector_gets_fewer_and_fewer_requests
    all uploads, if the collector is not reached or fails twice in a row
withdrawal.secret_in_a_read_only_folder_is_overwritten
    the names of files that the system did not let it erase
promises.epoch_repeats_its_first_value
    The value of the epoch's first report is repeated for the whole epoch,
withdrawal.withdrawal_leaves_the_record
    what an earlier consent left is erased
withdrawal.next_opening_finishes_a_killed_withdrawal
    agreeing again does not renew the budget
scope_memory.clock_that_was_ahead_memoizes_no_later_epoch
    an interval that turns out to lie years ahead ends at once
changed_registries.no_scope_sends_more_reports_than_its_cost_assumes
    an epoch never has more reports than its cost counts on
scope_memory.epoch_keeps_its_p_and_q
    Changed parameters wait for the next epoch.
scope_memory.metric_for_life_begins_a_scope_under_another_fingerprint
    any other change draws anew, and the losses add up
crash.killed_host_loses_nothing_confirmed
    from several processes on one folder
failures.folder_is_made_private
    readable by the user alone
"""
"""Contains names of tests, MODULE.TEST without `test_`, each followed by the sentences that it
checks."""


def parse_promises() -> dict[str, str]:
    """Return the name of the test of each sentence."""
    tests, test = {}, ""
    for line in LISTED.strip().splitlines():
        if line.startswith(" "):
            tests[line.strip()] = test
        else:
            test = line
    return tests


PROMISES = parse_promises()


@pytest.mark.parametrize("sentence", PROMISES)
def test_promise_is_written_and_has_a_test(sentence: str) -> None:
    """A page contains the sentence, and the named test exists and asserts something."""
    assert sentence in TEXT
    module, _, name = PROMISES[sentence].partition(".")
    (path,) = HERE.rglob(f"test_{module}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (test,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in (name, f"test_{name}")
    )
    checks = [node for node in ast.walk(test) if isinstance(node, ast.Assert | ast.Call)]
    assert checks
