"""Credentials of Amazon S3 and Azure Blob Storage, where their extras are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from imageshards.launch.doctor.cloud import without_password
from imageshards.launch.doctor.finding import Finding
from imageshards.launch.load import without_logs
from imageshards.transforms import extras

_PUBLIC = "none were found; only public objects can be read"


def amazon() -> Iterator[Finding]:
    """Reports which AWS credentials are found; prints no secret."""
    if extras.missing("s3"):
        return
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session()
    try:
        with without_logs():
            found = session.get_credentials()
    except BotoCoreError as error:
        yield Finding("credentials", "problem", str(error), "correct it")
        return
    if found is None:
        yield Finding("credentials", "note", _PUBLIC, "aws configure")
    else:
        profile = f", profile {session.profile}" if session.profile else ""
        yield Finding("credentials", "ok", f"{found.method}{profile}")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if url := os.environ.get(name):
            yield Finding("endpoint", "note", f"s3:// is {without_password(url)}")
            break


def azure() -> Iterator[Finding]:
    """Reports which Azure credentials are found; prints no secret."""
    if extras.missing("azure"):
        return
    from imageshards.transforms.storage import StoreError
    from imageshards.transforms.storage.clouds import azure_client

    account = os.environ.get(azure_client.ACCOUNT)
    for name in (azure_client.CONNECTION_STRING, azure_client.KEY, azure_client.SAS):
        if os.environ.get(name) and (account or name == azure_client.CONNECTION_STRING):
            break
    else:
        name = ""
    if not account and not name:
        value = f"not specified; az:// URIs require {azure_client.ACCOUNT}"
        yield Finding("account", "note", value)
        return
    try:
        with without_logs():
            anonymous = azure_client.is_anonymous("az://")
    except StoreError as error:
        yield Finding("credentials", "problem", str(error).removeprefix("az://: "), "correct it")
        return
    if anonymous:
        yield Finding("credentials", "note", _PUBLIC, "az login")
    else:
        yield Finding("credentials", "ok", name or "a login, or this machine's identity")
    if account:
        yield Finding("account", "ok", account)
    if url := os.environ.get(azure_client.ENDPOINT):
        yield Finding("endpoint", "note", f"az:// is {without_password(url)}")
