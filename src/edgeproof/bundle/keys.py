"""Ed25519 keys as files: the private half in PEM (PKCS 8, mode 0600, best with a passphrase), the public half in PEM.

A key's id is computed from its public half (SHA-256 of its canonical JSON, as securesystemslib does), so that the same
key has the same id everywhere. Private bytes are never printed, logged or put into an error.
Source: RFC 8410 for the encoding of Ed25519; RFC 8018 for the encryption under a passphrase.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, TrustError
from ..files import os_error, write_bytes

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

LIMIT_BYTES = 10_000
"""Longest key file that is read; a PEM of this kind has about 120 to 320 bytes."""
Passphrase = Callable[[Path], bytes]
"""Asked for the passphrase of a key file that has one."""


def new_key(private: Path, passphrase: bytes | None) -> SSlibKey:
    """Make a key pair: the private half in ``private``, the public half beside it with the ending ``.pub``.

    Args:
        private: File to make; nothing is ever overwritten.
        passphrase: Encrypts the file; None leaves it readable to whoever gets it.

    Raises:
        InputError: keys.exists, keys.passphrase, files.*.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        KeySerializationEncryption,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )
    from securesystemslib.signer import SSlibKey

    if passphrase is not None and not 8 <= len(passphrase) <= 1023:
        problem = f"its passphrase has {len(passphrase)} bytes; expected 8 to 1023"
        raise InputError("keys.passphrase", str(private), problem, "choose a longer passphrase")
    key = Ed25519PrivateKey.generate()
    encryption: KeySerializationEncryption = (
        NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    open_half = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    beside = public_path(private)
    for path in (private, beside):
        if path.exists() or path.is_symlink():
            raise InputError("keys.exists", str(path), "is there already", "choose another name; keys never change")
    _write_secret(private, secret)
    write_bytes(beside, open_half)
    return SSlibKey.from_crypto(key.public_key())


def public_path(private: Path) -> Path:
    """Where the public half of a private key lies."""
    return private.with_suffix(".pub")


def load_signer(path: Path, passphrase: Passphrase | None = None) -> CryptoSigner:
    """A private key that can sign.

    Args:
        path: PEM file.
        passphrase: Asked when the file has a passphrase.

    Raises:
        InputError: keys.format, keys.passphrase, files.missing.
        TrustError: keys.readable, when others than its owner may read it.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    data, mode = _read(path)
    if b"PRIVATE KEY-----" not in data:
        hint = "sign with the private half (.key); the public half (.pub) only verifies"
        raise InputError("keys.format", str(path), "holds no private key in PEM", hint)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        problem = f"may be read by others (mode {stat.S_IMODE(mode):04o}); expected 0600"
        raise TrustError("keys.readable", str(path), problem, f"chmod 600 {path.name}, if nobody has read it")
    secret = None
    if b"ENCRYPTED PRIVATE KEY-----" in data:
        if passphrase is None:
            raise InputError("keys.passphrase", str(path), "has a passphrase, and none was given", _GIVE)
        secret = passphrase(path)
    try:
        key = load_pem_private_key(data, secret)
    except (ValueError, TypeError) as e:
        if secret is not None:
            raise InputError("keys.passphrase", str(path), "does not open with this passphrase", _GIVE) from e
        raise InputError("keys.format", str(path), "is not a whole PEM private key", "restore it") from e
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError("keys.format", str(path), "is no Ed25519 key", "make one with 'edgeproof keys new'")
    return CryptoSigner(key)


def load_public(path: Path) -> SSlibKey:
    """A public key that can verify.

    Raises:
        InputError: keys.format, files.missing.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    data, _ = _read(path)
    if b"PRIVATE KEY-----" in data:
        hint = f"give the public half, {public_path(path).name}; the private one stays where it signs"
        raise InputError("keys.format", str(path), "is a private key", hint)
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise InputError("keys.format", str(path), "holds no public key in PEM", "give a .pub file") from e
    if not isinstance(key, Ed25519PublicKey):
        raise InputError("keys.format", str(path), "is no Ed25519 key", "make one with 'edgeproof keys new'")
    return SSlibKey.from_crypto(key)


def distinct(keys: Sequence[SSlibKey], role: str) -> list[SSlibKey]:
    """The keys of a role, each once: two of the same would make one signature count as two.

    Raises:
        InputError: keys.duplicate.
    """
    seen: set[str] = set()
    for key in keys:
        if key.keyval["public"] in seen:
            raise InputError("keys.duplicate", role, f"has the key {key.keyid[:12]} twice", "give each key once")
        seen.add(key.keyval["public"])
    return list(keys)


_GIVE = "type it when asked, or set EDGEPROOF_PASSPHRASE_FILE to a file that holds it"


def _read(path: Path) -> tuple[bytes, int]:
    try:
        with path.open("rb") as f:
            data, mode = f.read(LIMIT_BYTES + 1), os.fstat(f.fileno()).st_mode
    except OSError as e:
        raise os_error(path, e) from e
    if len(data) > LIMIT_BYTES:
        raise InputError("keys.format", str(path), "is too large for a key", "give a PEM file")
    return data, mode


def _write_secret(path: Path, data: bytes) -> None:
    """Make a file that only its owner may ever read: the mode is set before the first byte is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise os_error(path, e) from e
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        with contextlib.suppress(OSError):
            path.unlink()
        raise os_error(path, e) from e
