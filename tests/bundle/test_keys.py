"""Key files: who can read them, what opens them, and that other tools read them too."""

from __future__ import annotations

import stat
import subprocess
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from edgeproof.bundle.keys import distinct, load_public, load_signer, new_key
from edgeproof.cli import main
from edgeproof.errors import InputError, TrustError

SECRET = b"correct horse battery staple"


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    assert SECRET.decode() not in str(caught.value)
    return caught.value.code


def test_what_a_key_signs_its_public_half_verifies(tmp_path):
    made = new_key(tmp_path / "a.key", None)
    signer, public = load_signer(tmp_path / "a.key"), load_public(tmp_path / "a.pub")
    assert made.keyid == signer.public_key.keyid == public.keyid
    public.verify_signature(signer.sign(b"data"), b"data")


def test_a_private_key_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    import os

    before = os.umask(0)
    try:
        new_key(tmp_path / "a.key", None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_a_private_key_that_others_may_read_is_refused(tmp_path):
    new_key(tmp_path / "a.key", None)
    (tmp_path / "a.key").chmod(0o640)
    assert refused(lambda: load_signer(tmp_path / "a.key")) == "keys.readable"


def test_a_key_with_a_passphrase_opens_with_it_alone(tmp_path):
    new_key(tmp_path / "a.key", SECRET)
    assert b"ENCRYPTED" in (tmp_path / "a.key").read_bytes()
    assert load_signer(tmp_path / "a.key", lambda _: SECRET).sign(b"x").signature
    assert refused(lambda: load_signer(tmp_path / "a.key", lambda _: b"another one")) == "keys.passphrase"
    assert refused(lambda: load_signer(tmp_path / "a.key")) == "keys.passphrase"
    assert refused(lambda: new_key(tmp_path / "b.key", b"short")) == "keys.passphrase"


def test_openssl_reads_both_halves(tmp_path):
    new_key(tmp_path / "a.key", None)
    command = ["openssl", "pkey", "-in", str(tmp_path / "a.key"), "-pubout"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert printed == (tmp_path / "a.pub").read_bytes()


def test_nothing_is_overwritten(tmp_path):
    new_key(tmp_path / "a.key", None)
    assert refused(lambda: new_key(tmp_path / "a.key", None)) == "keys.exists"
    (tmp_path / "a.key").unlink()
    assert refused(lambda: new_key(tmp_path / "a.key", None)) == "keys.exists"
    assert refused(lambda: new_key(tmp_path / "a.pub" / "b.key", None)) == "files.wrong_kind"


def test_the_wrong_half_the_wrong_kind_and_what_is_no_key_are_named(tmp_path):
    new_key(tmp_path / "a.key", None)
    rsa = generate_private_key(65537, 2048)
    (tmp_path / "rsa.key").write_bytes(rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "rsa.key").chmod(0o600)
    spki = PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "rsa.pub").write_bytes(rsa.public_key().public_bytes(Encoding.PEM, spki))
    (tmp_path / "text").write_bytes(b"hello")
    (tmp_path / "large").write_bytes(b"-" * 100_000)
    (tmp_path / "cut.key").write_bytes((tmp_path / "a.key").read_bytes()[:60])
    (tmp_path / "cut.key").chmod(0o600)
    for load, name in (
        (load_signer, "a.pub"),
        (load_signer, "rsa.key"),
        (load_signer, "cut.key"),
        (load_public, "a.key"),
        (load_public, "rsa.pub"),
        (load_public, "text"),
        (load_public, "large"),
    ):
        assert refused(lambda load=load, name=name: load(tmp_path / name)) == "keys.format"
    assert refused(lambda: load_public(tmp_path / "nothing")) == "files.missing"
    (tmp_path / "padded.pub").write_bytes((tmp_path / "a.pub").read_bytes() + b"\n" * 100_000)
    assert refused(lambda: load_public(tmp_path / "padded.pub")) == "keys.format"
    (tmp_path / "both.pub").write_bytes((tmp_path / "a.pub").read_bytes() + (tmp_path / "a.key").read_bytes())
    assert refused(lambda: load_public(tmp_path / "both.pub")) == "keys.format"


def test_one_key_stands_once_in_a_role_whatever_it_is_called(tmp_path):
    from securesystemslib.signer import SSlibKey

    key = new_key(tmp_path / "a.key", None)
    renamed = SSlibKey("0" * 64, key.keytype, key.scheme, dict(key.keyval))
    assert refused(lambda: distinct([key, renamed], "root")) == "keys.duplicate"


def test_the_command_takes_its_passphrase_from_a_file_or_the_environment_and_never_from_its_arguments(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pass").write_bytes(SECRET + b"\n")
    assert main(["keys", "new", "a", "--passphrase-file", "pass"]) == 0
    monkeypatch.setenv("EDGEPROOF_PASSPHRASE", SECRET.decode())
    assert main(["keys", "new", "b"]) == 0
    for name in ("a", "b"):
        assert load_signer(tmp_path / "keys" / f"{name}.key", lambda _: SECRET)
    assert main(["keys", "show", "keys/a.pub"]) == 0
    assert main(["keys", "new", "c", f"--passphrase={SECRET.decode()}"]) == 2
    assert SECRET.decode() not in capsys.readouterr().out


def test_without_a_terminal_a_passphrase_is_not_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGEPROOF_PASSPHRASE", raising=False)
    monkeypatch.delenv("EDGEPROOF_PASSPHRASE_FILE", raising=False)
    assert main(["keys", "new", "a"]) == 2
    assert "keys.no_terminal" in capsys.readouterr().err
    assert main(["keys", "new", "../a", "--no-passphrase"]) == 2
    assert main(["keys", "new", "a", "a", "--no-passphrase"]) == 2
    assert not (tmp_path / "keys").exists()
