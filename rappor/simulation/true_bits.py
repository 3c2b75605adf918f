"""True bits of a population's values, before any noise.

`compute_true_bits` prepares all values of a population once. The result (`TrueBits`) then answers
two questions of the simulator: how many devices have each true bit (`add_ones`, for counts), and
which true bits each device has (`of_devices`, for reports).
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

    def of_devices(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        """Return (n, ceil(k/8)) uint8, the packed true bits of n devices."""


def compute_true_bits(population: Population, params: Params) -> TrueBits:
    """Hash or encode every value of a population once.

    Raises
    ------
    ParamsError
        The hash layout is foreign.
    ReportError
        The encoding cannot encode a value.
    """
    if get_encoding(params).is_hashed:
        return _BloomBits(population, params)
    return _TableBits(population, params)


class _BloomBits:
    """True bits of strings, which differ from cohort to cohort.

    The digest of each string is stored. The bits of a device follow from the digest and the cohort:
    a table of all bits would have m rows for each string.
    """

    def __init__(self, population: Population, params: Params) -> None:
        # The compiled loops know the hash functions of the project's own layout only.
        if params.layout != DEFAULT_LAYOUT:
            raise ParamsError(f"layout must be {DEFAULT_LAYOUT} to simulate, got {params.layout!r}")
        reported_part = Bloom(params).extract_reported_part
        self._digests = hash_texts(
            Texts.from_bytes([reported_part(value).encode() for value in population.values])
        )
        self._params = params

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        # The cells of all cohorts at once: a block of values has few megabytes of cells.
        cells = compute_cells(self._digests[values], self._params)
        add_hashed_devices(cells, devices, self._params.h, ones.reshape(-1))

    def of_devices(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        packed = np.zeros((len(values), self._params.n_bytes), dtype=np.uint8)
        set_hashed_bits(self._digests, values, cohorts, self._params.k, self._params.h, packed)
        return packed


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

    def of_devices(
        self,
        values: NDArray[np.int64],
        cohorts: NDArray[np.uint16],  # noqa: ARG002  (one cohort)
    ) -> NDArray[np.uint8]:
        return self._table[values]
