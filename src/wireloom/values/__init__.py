"""Typed values: converts Python types to bodies and back.

Dataclasses, TypedDict, NamedTuple, enums, unions, Literal and collections need no other package. Types of msgspec and
pydantic work if these are installed. Neither is imported before one of its types is used.
"""

from wireloom.values.reading import Reader, convert, reader_of
from wireloom.values.writing import JSON_FORM, MAX_DEPTH, Form, plain

__all__ = ["JSON_FORM", "MAX_DEPTH", "Form", "Reader", "convert", "plain", "reader_of"]
