"""What a service says about a failed request: the message in the body of its response. Pure."""

from __future__ import annotations

import html
import json
import re

_LONGEST = 200
_XML = re.compile(r"<(Details|Message)>(.*?)</\1>", re.DOTALL)
_PERMISSION = re.compile(
    r"(?:(?P<account>\S+@\S+) )?does not have (?P<permission>[\w.]+) (?:access|permission)"
    r"|Permission '(?P<denied>[\w.]+)' denied"
)
_STATUS_ALONE = frozenset(
    {"access denied", "authentication required", "forbidden", "login required", "unauthorized"}
)


def message_in(body: str) -> str:
    """Returns the message in a body of JSON or XML, in one line; empty if there is none.

    A message that only repeats the status counts as none. Cloud Storage has details of an XML
    message in an element of their own, which equals the message of the same error in JSON.

    >>> message_in('{"error": {"code": 403, "message": "The billing account is disabled."}}')
    'The billing account is disabled'
    >>> message_in("<Error><Code>AccessDenied</Code><Message>Access denied.</Message></Error>")
    ''
    """
    if body.lstrip().startswith("{"):
        text = _message_in_json(body)
    else:
        parts = {name: html.unescape(text) for name, text in _XML.findall(body)}
        text = parts.get("Details") or parts.get("Message", "")
    text = " ".join(text.split()).rstrip(".")
    if text.lower() in _STATUS_ALONE:
        return ""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _message_in_json(body: str) -> str:
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError):  # cut off, or not an object
        return ""
    # The endpoints of OAuth have a text there.
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def missing_permission(message: str) -> tuple[str, str]:
    """Returns the account and the permission that it does not have, according to a message.

    Either is empty if the message does not name it.

    >>> missing_permission("me@example.org does not have storage.objects.get access to the object")
    ('me@example.org', 'storage.objects.get')
    """
    found = _PERMISSION.search(message)
    if not found:
        return "", ""
    return found["account"] or "", found["permission"] or found["denied"]
