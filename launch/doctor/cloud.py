"""Credentials of Google Cloud, environment variables of the network, and the stores of URIs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from imageshards.launch.doctor.finding import Finding
from imageshards.launch.load import without_logs
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, counted
from imageshards.transforms.storage import ReadError, gcs_auth, retry
from imageshards.transforms.storage.web import WebOptions

_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
_LOGIN = "gcloud auth application-default login"
_KINDS = (
    ("google.oauth2.service_account", "a service account's key"),
    ("google.oauth2.credentials", "a user's login"),
    ("google.auth.compute_engine", "the service account of this machine"),
    ("google.auth.impersonated_credentials", "an impersonated service account"),
    ("google.auth.external_account", "a workload identity"),
    ("google.auth.identity_pool", "a workload identity"),
    ("google.auth.aws", "a workload identity of AWS"),
)
_SECONDS = 15.0
_LISTED = 1000
_WEB_BYTES = 1 << 20


def credentials() -> Iterator[Finding]:
    """Reports which Google Cloud credentials are found; prints no secret, and requests no token."""
    if server := gcs_auth.emulator():
        yield Finding("credentials", "note", "not used: STORAGE_EMULATOR_HOST is set")
        yield Finding("emulator", "note", f"gs:// is {without_password(server)}")
        return
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    # Elsewhere than on Google's machines, the search for a metadata server takes 9 s by default.
    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    try:
        with without_logs(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of quota projects
            found, project = google.auth.default()
    except GoogleAuthError as error:
        reason = gcs_auth.reason_of(error)
        if file := os.environ.get(_KEY_FILE):
            yield Finding("credentials", "problem", f"{_KEY_FILE}={file}: {reason}", "correct it")
        else:
            value = "none were found; only public objects of Cloud Storage can be read"
            yield Finding("credentials", "note", value, _LOGIN)
        return
    yield Finding("credentials", "ok", _described(found))
    if project:
        yield Finding("project", "ok", project)
    if account := os.environ.get(gcs_auth.IMPERSONATE):
        yield Finding("impersonation", "note", f"of {account.split(',')[-1]}")
    if payer := gcs_auth.billing_project():
        yield Finding("billing project", "note", f"{payer} pays for requests")


def _described(found: Any) -> str:
    module = type(found).__module__
    kind = next((text for name, text in _KINDS if module.startswith(name)), type(found).__name__)
    account = getattr(found, "service_account_email", "") or getattr(found, "account", "")
    text = f"{kind} ({account})" if account and account != "default" else kind
    file = os.environ.get(_KEY_FILE)
    return f"{text}, in {file}" if file else text


def network() -> Iterator[Finding]:
    """Reports proxies."""
    for name in _PROXIES:
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            yield Finding(name, "note", without_password(value))
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXIES[:3]):
        value = "for Cloud Storage; images of web servers are read directly"
        yield Finding("proxy is used", "note", value)


def without_password(url: str) -> str:
    """Returns a URL without its user and password.

    >>> without_password("http://me:secret@proxy:3128")
    'http://***@proxy:3128'
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at and "@" in url:  # not a URL, but perhaps user:password@host
        return f"***@{url.rpartition('@')[2]}"
    return parts._replace(netloc=f"***@{host}").geturl() if user else url


def stores(uris: Sequence[str]) -> Iterator[Finding]:
    """Lists each URI, or reads it if its store lists nothing, by the clients of a build."""
    if not uris:
        return
    with _impatient(), ThreadPoolExecutor(len(uris), "imageshards-doctor") as threads:
        yield from threads.map(_store, uris)


@contextmanager
def _impatient() -> Iterator[None]:
    before = retry.POLICY
    retry.POLICY = replace(before, connect=5.0, silence=_SECONDS, total=_SECONDS, offline=2.0)
    try:
        yield
    finally:
        retry.POLICY = before


def _store(uri: str) -> Finding:
    try:
        found = _look(storage.normalize(uri))
    except (BuildError, ReadError) as error:
        return Finding(uri, "problem", str(error).removeprefix(f"{uri}: "))
    except OSError as error:
        return Finding(uri, "problem", error.strerror or str(error))
    except Exception as error:  # Beam's filesystems raise the errors of their clients
        return Finding(uri, "problem", f"{type(error).__name__}: {gcs_auth.reason_of(error)}")
    if not found:
        return Finding(uri, "problem", "nothing is there, or nothing matches")
    return Finding(uri, "ok", found)


def _look(uri: str) -> str:
    """Returns what a URI is; empty if it is nothing."""
    if not storage.can_list(uri):
        try:
            data, _ = storage.read(uri, _WEB_BYTES, web=WebOptions(retries=0, timeout=_SECONDS))
        except ReadError as error:
            if error.kind != "TooLarge":
                raise
            return "answers"
        return f"a file of {counted(len(data), 'byte')}"
    if storage.is_local(uri) and os.path.isdir(uri):
        with os.scandir(uri) as entries:
            return f"a folder with {_some(islice(entries, _LISTED + 1)) or 'nothing'} in it"
    if uri.count("/") > 2 and (size := storage.size(uri)) >= 0:
        return f"a file of {counted(size, 'byte')}"
    if matches := _some(islice(storage.match(uri), _LISTED + 1)):
        return f"a pattern that matches {matches}"
    if not storage.is_local(uri) and (
        below := _some(islice(storage.match(storage.join(uri, "**")), _LISTED + 1))
    ):
        return f"a folder with {below}"
    return ""


def _some(items: Iterator[Any]) -> str:
    number = sum(1 for _ in items)
    if number > _LISTED:
        return f"more than {counted(_LISTED, 'file')}"
    return counted(number, "file") if number else ""
