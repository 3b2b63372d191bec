"""Typed values: how Python types become bodies, and how bodies become Python types.

Dataclasses, TypedDict, NamedTuple, enums, unions, Literal and the collections need no other package; types of msgspec
and pydantic are taken where those are installed. Nothing of them is imported before one of their types is seen.
"""

from wireloom.values.reading import Reader, convert, reader_of
from wireloom.values.writing import JSON_FORM, MAX_DEPTH, Form, plain

__all__ = ["JSON_FORM", "MAX_DEPTH", "Form", "Reader", "convert", "plain", "reader_of"]
