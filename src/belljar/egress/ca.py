"""The certificate authority of this host's jars: made once, its key readable by its owner only, trusted in jars only.

The first half runs in belljar's own process and touches files; `Issuer` runs in the proxy, which gets the key over its
control socket and never sees a file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import os
import ssl
import stat
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SUBJECT = "belljar egress authority"
_YEAR = 365 * 24 * 3600
_REPLACED_AFTER_SECONDS = 4 * _YEAR
_VALID_YEARS = 10
_LEAF_DAYS = 7
_LEAF_SERVED_SECONDS = 24 * 3600
_MAX_LEAVES = 256
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Authority:
    """The CA's certificate and its key, as PEM text."""

    certificate: str
    key: str


def load_or_make(state: str) -> Authority:
    """The CA kept in the state directory, made now if there is none (or it is old).

    Raises:
        PrerequisiteError: the files can't be made, or others may read the key.
    """
    directory = os.path.join(state, "egress")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with _opened_directory(directory) as handle:
            return _read(handle, directory) or _make(handle)
    except OSError as error:
        raise PrerequisiteError(
            f"the egress proxy's certificate authority in {directory} can't be used: {error.strerror or error}",
            hint="set BELLJAR_STATE_DIR to a directory of your own",
        ) from error


@contextlib.contextmanager
def _opened_directory(directory: str) -> Iterator[int]:
    """A handle of it, locked against another belljar that makes the same files."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise PrerequisiteError(f"{directory} belongs to user {found.st_uid}, not to user {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(handle, 0o700)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _read(handle: int, directory: str) -> Authority | None:
    try:
        certificate, made = _read_file(handle, "ca.pem")
        key, _made = _read_file(handle, "ca.key", private=os.path.join(directory, "ca.key"))
    except FileNotFoundError:
        return None
    if time.time() - made > _REPLACED_AFTER_SECONDS:
        return None
    return Authority(certificate=certificate, key=key)


def _read_file(handle: int, name: str, *, private: str = "") -> tuple[str, float]:
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    with os.fdopen(opened, encoding="ascii") as file:
        found = os.fstat(opened)
        if private and (found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077):
            raise PrerequisiteError(
                f"{private} may be read by others than its owner: it can't be trusted any more",
                hint=f"remove {private}; a new one is made at the next run",
            )
        return file.read(1 << 20), found.st_mtime


def _make(handle: int) -> Authority:
    """Make both files. The certificate goes first and comes last: where it is, the key fits it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("ca.pem", dir_fd=handle)
    made = new_authority()
    _write_file(handle, "ca.key", made.key, 0o600)
    _write_file(handle, "ca.pem", made.certificate, 0o644)
    return made


def _write_file(handle: int, name: str, text: str, mode: int) -> None:
    fresh = f".{name}.new"
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=handle)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        os.fchmod(opened, mode)
        file.write(text)
        file.flush()
        os.fsync(opened)
    os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)


def new_authority() -> Authority:
    """A fresh CA that is on no disk."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SUBJECT)])
    now = dt.datetime.now(dt.UTC)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * _VALID_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key=_key_text(key),
    )


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def subject_hash() -> str:
    """OpenSSL's hash of the CA's name: in a directory of certificates its file is called `<hash>.0`.

    It is the start of SHA-1 over the name in OpenSSL's canonical form (UTF-8, lower case), here of a single CN.
    """
    value = SUBJECT.lower().encode()
    attribute = _der(0x30, b"\x06\x03\x55\x04\x03" + _der(0x0C, value))
    digest = hashlib.sha1(_der(0x31, attribute), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _der(tag: int, value: bytes) -> bytes:
    return bytes((tag, len(value))) + value


def host_roots() -> str:
    """The roots that this host trusts, as PEM text: SSL_CERT_FILE, OpenSSL's own, or where distributions keep them."""
    default = ssl.get_default_verify_paths()
    for path in (os.environ.get("SSL_CERT_FILE"), default.cafile, default.openssl_cafile, *_BUNDLES):
        if path:
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                return file.read(16 << 20)
    return ""


def trust_bundle(authority: Authority, roots: str) -> str:
    """What a jar trusts: the host's roots and the CA."""
    return f"{roots.rstrip()}\n{authority.certificate}" if roots.strip() else authority.certificate


class Issuer:
    """Certificates for the names that jars ask for, as server contexts; one key for all of them, for this process."""

    def __init__(self, authority: Authority) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
        loaded = serialization.load_pem_private_key(authority.key.encode(), password=None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._chain_key = _key_text(self._leaf_key)
        self._leaves: OrderedDict[tuple[str, tuple[str, ...]], tuple[float, ssl.SSLContext]] = OrderedDict()

    def context(self, name: str, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
        """A server context that speaks for `name` (a host name or an address) and offers these ALPN protocols."""
        now = time.monotonic()
        found = self._leaves.get((name, protocols))
        if found is not None and now - found[0] < _LEAF_SERVED_SECONDS:
            self._leaves.move_to_end((name, protocols))
            return found[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0  # a handshake costs less than what tickets would hold for each connection
        _load_chain(context, self._leaf(name) + self._chain_key)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        self._leaves[(name, protocols)] = (now, context)
        while len(self._leaves) > _MAX_LEAVES:
            self._leaves.popitem(last=False)
        return context

    def _leaf(self, name: str) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        now = dt.datetime.now(dt.UTC)
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= 64 else []
        public = self._leaf_key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self._certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=_LEAF_DAYS))
            .add_extension(x509.SubjectAlternativeName([_general_name(name)]), critical=not subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _general_name(name: str) -> x509.GeneralName:
    import ipaddress

    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _load_chain(context: ssl.SSLContext, chain: str) -> None:
    """OpenSSL reads keys from files only; this one is in memory."""
    held = os.memfd_create("belljar-leaf", os.MFD_CLOEXEC)
    try:
        os.write(held, chain.encode())
        context.load_cert_chain(f"/proc/self/fd/{held}")
    finally:
        os.close(held)
