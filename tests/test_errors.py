"""The error tree."""

from rappor import errors


def test_every_error_descends_from_the_root() -> None:
    """A host program catches everything raised on purpose with one name."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) == 7
    assert all(issubclass(value, errors.RapporError) for value in classes)
