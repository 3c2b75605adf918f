"""True bits of a population's values, before any noise.

`compute_true_bits` prepares all values of a population once. The simulator calls two methods of the
result (`TrueBits`): `add_ones` for counts (how many devices have each true bit), and
`pack_device_bits` for reports (the true bits of each device). Three classes implement them:

    class        encoding                     stored once
    _BloomBits   strings                      the four hash words of each string
    _SetBits     sets of strings              the bucket of each item in each cohort
    _TableBits   categories, buckets, yes/no  the packed bits of each value (there is one cohort)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import ParamsError
from rappor.candidates.compiled_hashing import compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.protocol.encodings import get_encoder, get_encoding
from rappor.protocol.encodings.bloom import DEFAULT_LAYOUT, Bloom
from rappor.protocol.encodings.sets import Sets
from rappor.protocol.params import Params
from rappor.simulation.compiled_loops import add_hashed_devices, set_hashed_bits
from rappor.simulation.population import Population


class TrueBits(Protocol):
    """The true bits of each value of a population."""

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        """Add the true ones of devices to `ones`, (m, k).

        `devices`, (values, m), contains the number of devices of each value of the slice in each
        cohort.
        """

    def pack_device_bits(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        """Return (n, ceil(k/8)) uint8, the packed true bits of n devices."""


def compute_true_bits(population: Population, params: Params) -> TrueBits:
    """Hash or encode every value of a population once.

    Raises
    ------
    ParamsError
        The parameters have the hash layout of other software.
    ReportError
        The encoding cannot encode a value.
    """
    encoding = get_encoding(params)
    if encoding.supports_items:
        return _SetBits(population, params)
    if encoding.is_hashed:
        return _BloomBits(population, params)
    return _TableBits(population, params)


class _BloomBits:
    """True bits of strings, which differ from cohort to cohort.

    The digest of each string is stored. The bits of a device follow from the digest and the cohort:
    a table of all bits would have m rows for each string.
    """

    def __init__(self, population: Population, params: Params) -> None:
        # The compiled loops compute only the hash functions of the default layout.
        if params.layout != DEFAULT_LAYOUT:
            raise ParamsError(f"layout must be {DEFAULT_LAYOUT} to simulate, got {params.layout!r}")
        encoding = Bloom(params)
        # The text of a tuple has its fields separated by tabs or by U+001F.
        values = map(encoding.parse_value, population.values)
        texts = [encoding.extract_reported_part(value).encode() for value in values]
        self._digests = hash_texts(Texts.from_bytes(texts))
        self._params = params

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        # All cohorts are computed at once. A block of values has only a few megabytes of cells.
        cells = compute_cells(self._digests[values], self._params)
        add_hashed_devices(cells, devices, self._params.h, ones.reshape(-1))

    def pack_device_bits(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        packed = np.zeros((len(values), self._params.n_bytes), dtype=np.uint8)
        set_hashed_bits(self._digests, values, cohorts, self._params.k, self._params.h, packed)
        return packed


class _SetBits:
    """True bits of sets: the own buckets of all items, which differ from cohort to cohort.

    The bucket of every distinct item in every cohort is stored, (items, m) int32.
    """

    def __init__(self, population: Population, params: Params) -> None:
        encoding = get_encoder(params)
        assert isinstance(encoding, Sets)
        sets = [encoding.read_items(encoding.parse_value(value)) for value in population.values]
        numbers: dict[str, int] = {}
        items = [[numbers.setdefault(item, len(numbers)) for item in sorted(set_)] for set_ in sets]
        texts = Texts.from_bytes([item.encode() for item in numbers])
        first_cells = np.arange(params.m, dtype=np.int32) * np.int32(params.k)
        self._buckets = compute_cells(hash_texts(texts), params) - first_cells
        # The items of value v are self._items[self._starts[v] : self._starts[v + 1]].
        self._items = np.array([number for row in items for number in row], dtype=np.int64)
        self._starts = np.cumsum([0, *map(len, items)])
        self._params = params

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        # The last slice may end after the last value. `devices` has one row for each value, so the
        # shorter of the two sequences ends the loop.
        for value, by_cohort in zip(
            range(*values.indices(len(self._starts))), devices, strict=False
        ):
            items = self._items[self._starts[value] : self._starts[value + 1]]
            for cohort in np.flatnonzero(by_cohort):
                ones[cohort, np.unique(self._buckets[items, cohort])] += by_cohort[cohort]

    def pack_device_bits(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        is_own = np.zeros((len(values), self._params.k), dtype=np.bool_)
        sizes = self._starts[values + 1] - self._starts[values]
        rows = np.repeat(np.arange(len(values)), sizes)
        # Index of each item of each device in its own set, counted from 0.
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        items = self._items[np.repeat(self._starts[values], sizes) + ranks]
        is_own[rows, self._buckets[items, cohorts[rows]]] = True
        return np.packbits(is_own, axis=1, bitorder="little")


class _TableBits:
    """True bits of every other encoding: one row of a table for each value.

    Such an encoding has one cohort, so the bits of a value are the same on all devices.
    """

    def __init__(self, population: Population, params: Params) -> None:
        encoding = get_encoder(params)
        rows = b"".join(
            encoding.encode(encoding.parse_value(value), 0) for value in population.values
        )
        self._table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, params.n_bytes)

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        bits = np.unpackbits(self._table[values], axis=1, count=ones.shape[1], bitorder="little")
        # There is one cohort, so the product adds the bits of all devices to one row.
        ones += devices.T @ bits

    def pack_device_bits(
        self,
        values: NDArray[np.int64],
        cohorts: NDArray[np.uint16],  # noqa: ARG002  (one cohort)
    ) -> NDArray[np.uint8]:
        return self._table[values]
