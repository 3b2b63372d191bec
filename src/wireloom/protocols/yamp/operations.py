"""Operations of the hub profile in yamp: requests whose bodies are JSON, whatever the serializer."""

from __future__ import annotations

from wireloom.formats import body_formats
from wireloom.formats.conversion import QUICK, converted
from wireloom.model import Message, WireloomError
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH


def operation_in_json(request: Message) -> Message:
    """Operations of the hub take JSON: a request for one that came as another kind of plain values is converted."""
    topic, reader = request.topic or "", body_formats.format_for(request.content_type)
    if not topic.startswith(HUB_PREFIX) or topic.startswith(PUBLISH) or len(request.body) > QUICK:
        return request
    if reader is None or reader.name not in body_formats.CONVERTIBLE:
        return request  # with the other serializers an operation is JSON text
    try:
        body, content_type = converted(request.body, request.content_type, "application/json")
    except WireloomError:
        return request
    return request.with_(body=body, content_type=content_type)
