"""What client/README.md promises of the device, each sentence with the test that holds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from places import ROOT

TEXT = " ".join((ROOT / "client" / "README.md").read_text(encoding="utf-8").split())
HERE = Path(__file__).parent

LISTED = r"""
background.each_upload_waits_a_random_time_of_its_own
    waits a random time before each upload
background.reports_of_an_interval_leave_spread_over_the_next_one
    The report of an interval leaves at a random time of the next interval
background.opening_sends_what_an_earlier_run_left
    Opening sends what an earlier run left
background.no_thread_until_something_is_recorded
    starts no thread before something is recorded
background.background_sender_waits_a_random_time_first
    Its background thread sends each report after a random delay
budget_copy.copy_is_on_the_disk_before_a_report_leaves
    `budget` is written before a report that needs it can leave
budget_copy.lost_database_brings_back_no_latch_and_no_budget
    A database that is lost, emptied or older is rebuilt from it
budget_copy.both_lost_is_silence_for_good_or_until_the_year_ends
    If both files are lost, the device is silent until the year is over
crash.killed_host_loses_nothing_confirmed
    A true outcome survives the death of the process.
damage.damaged_database_reaches_nobody
    A damaged database is set apart as `damaged.sqlite3` and rebuilt in the same way.
failures.transport_that_raises_or_answers_nonsense_reaches_nobody
    Nothing else raises after the opening.
failures.each_kind_is_logged_once_a_minute_and_counted_always
    logged, at most one line a minute for each kind of failure
failures.cap_for_life_never_raises_the_registrys_total
    `Caps` can only lower the total.
failures.programs_with_different_registries_share_one_budget
    Programs with different registries that share a folder share its budget.
failures.folders_and_files_of_another_user_are_refused
    A folder that another user owns
failures.folder_that_others_may_write_to_is_refused
    or that others may write to
failures.links_are_refused
    a symbolic link in its place or in a file's, is refused at opening
flush.next_run_sends_what_the_first_one_could_not
    what it could not send waits on the disk for the next run
flush.wait_that_the_collector_asked_for_is_kept
    Only a time that the collector asked for is kept.
forking.two_threads_fork_while_a_third_records
    Any thread may fork at any time; parent and child go on
http_transport.no_two_requests_share_a_connection
    opens a new connection for it
http_transport.flush_ends_with_its_time_whatever_the_server_does
    It returns within its `timeout` whatever the server does
http_transport.wrong_addresses_are_refused_at_opening
    An address with a user name, a query or a wrong port is refused when the client opens.
http_transport.proxy_of_the_system_is_used
    Proxies that the system names are used
http_transport.client_sends_each_report_on_a_connection_of_its_own
    each over a connection of its own
identity.processes_that_start_together_agree
    from several processes on one folder
identity.secret_is_private_and_stays
    readable by the user alone
identity.damaged_file_is_an_error_by_default
    A bad secret is never silently replaced.
identity.policy_reset_makes_a_new_device_and_keeps_the_ledger
    the folder goes on as a new device and what was spent stays spent
identity.policy_disable_records_nothing
    with `"disable"` nothing is recorded
intervals.only_the_chosen_events_are_latched_and_admitted
    An event that is not chosen leaves no trace: no epoch answers for it.
intervals.interval_ends_with_its_epoch
    An interval ends with its epoch at the latest.
ledger.other_changes_are_charged_anew
    any other change draws anew, and the losses add up
locked.record_does_not_wait_for_an_upload
    `record()` never waits for the network
locked.record_waits_in_memory_for_a_lock
    the report waits in memory, with up to a hundred others, until the lock is free
kill_points.no_lock_is_held_while_the_disk_is_waited_for
    nor for a sender that waits for the disk: the sender holds no lock meanwhile
kill_points.killed_when_it_touches_the_disk
    it only grows
locked.record_in_the_middle_of_a_record_waits_in_memory
    from a signal's handler
permanent.responses_are_independent
    Cohort and noise are drawn anew for each metric and epoch
record.without_consent_nothing_is_computed_stored_or_sent
    With `consent=False` nothing is computed, stored or sent
record.consent_is_asked_and_not_assumed
    `consent` has no default.
record.clock_that_was_years_ahead_holds_nothing_back
    an interval that turns out to lie years ahead ends at once
record.jumping_clock_brings_no_more_reports_than_an_epoch_is_paid_for
    an epoch never has more reports than its price counts on
record.withdrawing_consent_erases_all_but_one_number
    what an earlier consent left is erased
record.hundred_threads_record_at_once
    may be called from an event loop, from any thread
record.fork_shares_no_handle_no_thread_and_no_randomness
    after a fork
record.first_value_of_an_epoch_answers_for_it
    the value of the epoch's first report is repeated for the whole epoch
record.one_report_leaves_an_interval
    the device sends at most one report in each hour, day or week
record.choice_within_an_interval_is_uniform_by_its_coins
    chosen uniformly among the interval's events
record.changed_parameters_wait_for_the_next_epoch
    Changed parameters wait for the next epoch.
record.silent_metric_is_silent_for_every_value
    its silence says nothing about its values
record.opting_out_of_a_metric_drops_what_waits_of_it
    refuse one metric and drop its waiting reports
reservation.new_identity_in_the_same_year_has_no_new_budget
    A reservation stays when consent is withdrawn and given again, when the secret is replaced
reservation.metric_without_room_is_named_once_and_silent
    names all silent metrics
reservation.next_year_has_a_budget_of_its_own
    Next year's budget is a new one.
scope_memory.scope_closes_as_the_protocol_says
    from then on every report repeats the last one's permanent response
scope_memory.clock_set_back_finds_the_epoch_again
    A clock that is set back finds what an epoch has answered for.
scope_memory.metric_for_life_follows_a_change_of_p_and_q
    A metric for life follows a change of `p` and `q` at once
scope_memory.values_that_fit_nowhere_are_reported_and_counted
    is reported all the same, as noise over no bit
secrecy.nothing_true_is_written_or_said
    They hold no value.
stops.stopped_metric_is_silent_until_its_day_is_over
    The metric is silent until that day is over, and its reports wait.
stops.sample_is_decided_by_the_secret
    which each device decides by its own secret for an epoch
stops.flush_in_an_event_loop
    `await client.aflush()` does the same in a thread
stops.stop_lasts_thirty_days_at_most
    at most 30 days ahead
tracebacks.wrong_value_shows_nothing_true
    No message ever holds the value.
tracebacks.ctrl_c_in_record_shows_nothing_true
    Ctrl-C included, shows neither value nor secret, bits or permanent response
uploader.spool_is_bounded_in_number
    At most 1,000 reports and 1 MB wait
uploader.upload_holds_one_report
    An upload holds one report
uploader.retry_repeats_the_same_bytes
    An upload's id and its bytes stay the same over all attempts
uploader.upload_that_always_fails_does_not_block_the_others
    One upload that always fails does not hold up the others
uploader.upload_is_given_up_seven_days_after_its_first_attempt
    Seven days after its first attempt an upload is given up.
uploader.first_attempt_at_a_wrong_time_drops_nothing
    Where the clock was wrong by years, the seven days start anew.
uploader.spool_is_bounded_in_bytes
    The oldest go first and are counted
uploader.statuses_that_no_repetition_changes_drop
    After 400, 409, 413, 415 or 422 the upload is dropped and counted.
uploader.backoff_doubles_up_to_an_hour_and_jitters_fully
    longer after each failure, up to an hour
uploader.retry_after_is_honoured
    never less than the collector's `Retry-After`
uploader.collector_that_always_fails_is_asked_less_and_less
    where the collector is not reached, or fails twice in a row, all of them wait
withdrawal.withdrawal_leaves_no_trace
    also where the database is damaged or locked
withdrawal.read_only_folder_is_overwritten_as_far_as_it_lets_itself
    the names of files that the system did not let it erase
withdrawal.withdrawal_that_was_killed_is_finished
    agreeing again does not renew the budget
"""
"""A room and a test of it, then the sentences that it holds."""


def promises() -> dict[str, str]:
    """Return the sentences, each with its test."""
    found, test = {}, ""
    for line in LISTED.strip().splitlines():
        if line.startswith(" "):
            found[line.strip()] = test
        else:
            test = line
    return found


PROMISES = promises()


@pytest.mark.parametrize("sentence", PROMISES)
def test_promise_is_written_and_has_a_test(sentence: str) -> None:
    """The page says so, and the named test is there and asserts something."""
    assert sentence in TEXT
    room, _, name = PROMISES[sentence].partition(".")
    (path,) = HERE.rglob(f"test_{room}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (test,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == f"test_{name}"
    )
    asked = [node for node in ast.walk(test) if isinstance(node, ast.Assert | ast.Call)]
    assert asked
