"""Credentials as records may keep them: stars.

A proof is salted with a token and still lets its reader guess passwords at leisure, and a record of an encrypted
connection can be read by whoever has the keys beside it. So wherever the conversation is recorded, a call that carries
a proof, or the hub profile's token, stands there with stars in its place.
"""

from __future__ import annotations

from wireloom.protocols.wolpertinger import messages
from wireloom.protocols.wolpertinger.layer2 import Call, Document

_PROOFS = ("clusterauthverify", "userauthverify")


def blanked(document: Document, *, profile: bool) -> Call | None:
    """The same call without its credentials; None for what carries none.

    >>> from wireloom.protocols.wolpertinger.values import Value
    >>> call = Call("Authentication", "", "UserAuthVerify", (Value("string", "ada"), Value("string", "x")))
    >>> blanked(call, profile=False).parameters
    (Value(type='string', data='ada'), Value(type='string', data='*'))
    """
    if not isinstance(document, Call):
        return None
    if profile and messages.is_login(document):
        return messages.starred(document)
    if document.component.lower() != "authentication" or document.method.lower() not in _PROOFS:
        return None
    hidden, given = messages.starred(document), document.parameters
    if len(given) < 2:
        return hidden
    # The name of the user is no secret; whatever else stands there may be one.
    return Call(hidden.component, hidden.call_id, hidden.method, given[:1] + hidden.parameters[1:])
