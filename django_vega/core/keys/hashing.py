"""What stands for a key where its text is too long, or not for everybody's eyes."""

from __future__ import annotations

import hashlib


def key_hash(prefix: str, scope: str, key: str) -> str:
    """Return what stands for a key in a database or on a server, as hex.

    It is the SHA-256 over prefix, scope and key.
    """
    text = f"{prefix}\0{scope}\0{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
