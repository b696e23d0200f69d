"""A certificate authority of the tests' own, and one certificate for all names that the tests' servers have."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """Where the files are."""

    authority: Path
    """What `net.ca_file` names."""
    chain: Path
    """A certificate that the authority signed, with its key."""
    stranger: Path
    """One for the same names that nobody signed."""

    def context(self, *, protocols: Sequence[str] = ("http/1.1",), known: bool = True) -> ssl.SSLContext:
        """What a server needs; `known` is false for one that no client should believe."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain if known else self.stranger)
        context.set_alpn_protocols(list(protocols))
        return context


def make_certificates(directory: Path, names: Sequence[str]) -> Certificates:
    """All of them, for these names and for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    root = _certificate("belljar's tests", key, "belljar's tests", key, [])
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    leaf = _certificate(names[0], leaf_key, "belljar's tests", key, names)
    stranger_key = ec.generate_private_key(ec.SECP256R1())
    stranger = _certificate(names[0], stranger_key, names[0], stranger_key, names)
    made = Certificates(directory / "authority.pem", directory / "chain.pem", directory / "stranger.pem")
    made.authority.write_bytes(_pem(root))
    made.chain.write_bytes(_pem(leaf) + _pem_key(leaf_key))
    made.stranger.write_bytes(_pem(stranger) + _pem_key(stranger_key))
    return made


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
