"""Retries: which reports of a merge are new, and the keys that recognise their retries.

A device repeats an upload until it gets a response, so the inbox may contain the same upload many
times. Every attempt has the same bytes and therefore the same key (`ingest.retry_keys`). A merge
calls `find_new_reports` with the records of some batches, counts the reports that are new, and
stores the keys of the result in the same transaction.

An upload of which no report was refused is *whole*, any other upload is *partial*. Attempts of one
upload may differ: after the registry was updated, a later attempt may have more reports accepted.

| stored after a merge                          | stored key                             |
|-----------------------------------------------|----------------------------------------|
| all reports of a whole upload                 | UPLOAD: the key of the upload          |
| the accepted reports of a partial upload      | PART: a key of its own for each report |

Example: two attempts of an upload with the reports 1, 2 and 3.

    first attempt         second attempt        counted
    whole                 whole                 1, 2 and 3. The key of the upload is stored
    whole                 partial, 2 refused    1, 2 and 3. The key of the upload is stored
    partial, 2 refused    partial, 3 refused    1 and 3, then 2. The keys of the reports 1, 3 and 2
                                                are stored
    partial, 2 refused    whole                 1 and 3, then 2. The keys of the reports 1 and 3,
                                                and then of the upload, are stored

Both attempts may be in one merge, in either order. They count as if the whole attempt came first.

There are two ways to find the new reports:

    by uploads    fast. The key of an upload decides about all of its reports. Used if all uploads
                  are whole and no table has a key of a single report, which is the usual case
    by reports    slow. A key of its own decides about each report. Used in all other cases
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from rappor_server.ingest.retry_keys import key_of_report
from rappor_server.storage.day_tables import PART, UPLOAD, find_known_keys, list_days
from rappor_server.storage.record import Record

Masks = list[list[NDArray[np.bool_]]]
"""`masks[r][kind][row]` is True if a report is new: row `row` of entry `kind` of the `reports` of
record r."""


class NewReports(NamedTuple):
    """The new reports of some records, and the keys to store.

    Attributes
    ----------
    masks : whether each report is new
    n_uploads : number of uploads of which at least one report is new
    n_duplicates : number of all other uploads
    upload_keys : keys to store of uploads that were counted as a whole, now or earlier
    report_keys : keys to store of the accepted reports of partial uploads
    """

    masks: Masks
    n_uploads: int
    n_duplicates: int
    upload_keys: Collection[bytes]
    report_keys: Collection[bytes]


def find_new_reports(db: Connection, records: Sequence[Record]) -> NewReports:
    """Find the reports that neither an earlier merge nor an earlier record contains.

    The keys of the result include known keys, which are stored again. The 14 days for which a key
    is stored then begin again. A device that retries did not get the response, and may retry again
    after the first 14 days.
    """
    keys = [key for record in records for key in record.keys]
    known_keys = find_known_keys(db, UPLOAD, set(keys))
    whole_upload_keys = {
        key
        for record in records
        for key, is_whole in zip(record.keys, record.is_whole, strict=True)
        if is_whole
    }
    report_keys: Collection[bytes] = ()
    if all(all(record.is_whole) for record in records) and not list_days(db, PART):
        masks, n_uploads = _find_by_uploads(records, known_keys)
    else:
        masks, n_uploads, report_keys = _find_by_reports(db, records, known_keys, whole_upload_keys)
    return NewReports(
        masks, n_uploads, len(keys) - n_uploads, whole_upload_keys | known_keys, report_keys
    )


def _find_by_uploads(
    records: Sequence[Record], known_keys: AbstractSet[bytes]
) -> tuple[Masks, int]:
    """Return the masks and the number of new uploads. All reports of a new upload are new.

    An upload is new if its key is not in `known_keys`, and no upload before it has the same key.
    """
    masks, n_new, seen_keys = [], 0, set(known_keys)
    for record in records:
        is_new = np.zeros(len(record.keys), bool)
        for i, key in enumerate(record.keys):
            is_new[i] = key not in seen_keys
            seen_keys.add(key)
        n_new += int(is_new.sum())
        masks.append([is_new[reports.owners] for reports in record.reports])
    return masks, n_new


def _find_by_reports(
    db: Connection,
    records: Sequence[Record],
    known_keys: AbstractSet[bytes],
    whole_upload_keys: AbstractSet[bytes],
) -> tuple[Masks, int, set[bytes]]:
    """Return the masks, the number of uploads with a new report, and the keys of partial uploads.

    A report is not new if

    - an earlier merge counted its upload as a whole (`known_keys`),
    - or its upload is partial, and another attempt among the records is whole
      (`whole_upload_keys`),
    - or an earlier merge stored the key of the report,
    - or a report before it in the records has the same key.
    """
    masks = [
        [np.zeros(len(reports.owners), bool) for reports in record.reports] for record in records
    ]
    partial_keys: set[bytes] = set()
    # Maps the key of a report to the first report with this key: the indices of its record, of its
    # kind (an entry of `record.reports`), of its row, and of its upload.
    locations: dict[bytes, tuple[int, int, int, int]] = {}
    for r, record in enumerate(records):
        for kind, reports in enumerate(record.reports):
            owners, positions = reports.owners.tolist(), reports.positions.tolist()
            for row, (i, position) in enumerate(zip(owners, positions, strict=True)):
                upload_key, is_whole = record.keys[i], record.is_whole[i]
                has_whole_attempt = not is_whole and upload_key in whole_upload_keys
                if upload_key in known_keys or has_whole_attempt:
                    continue
                key = key_of_report(upload_key, position)
                locations.setdefault(key, (r, kind, row, i))
                if not is_whole:
                    partial_keys.add(key)
    new_uploads = set()
    for key in locations.keys() - find_known_keys(db, PART, locations):
        r, kind, row, i = locations[key]
        masks[r][kind][row] = True
        new_uploads.add((r, i))
    return masks, len(new_uploads), partial_keys
