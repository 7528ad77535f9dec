"""The requests of Google Cloud Storage, for `ObjectStore`. A stamp is a generation."""

from __future__ import annotations

from imageshards.transforms.storage.gcs_json import (
    delete,
    list_folder,
    list_prefix,
    open_upload,
    put,
)
from imageshards.transforms.storage.gcs_read import get, stat

__all__ = ["delete", "get", "list_folder", "list_prefix", "open_upload", "put", "stat"]
