"""RAPPOR: learn which strings are common among many devices without learning anyone's."""
