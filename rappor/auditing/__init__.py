"""Audits of encoders and clients, and the inference attack of an observer of many reports."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
