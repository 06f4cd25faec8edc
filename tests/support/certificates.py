"""Certificates for tests: of an authority, of a broker and of clients, as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority of its own, which writes PEM files into ``folder``."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(f"authority of {name}")
        own = self._builder(self._name, self._key)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.path = folder / f"{name}-ca.pem"
        self.path.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str) -> Path:
        """A file with a private key and its certificate, for ``name`` at localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self._builder(_common_name(name), key)
        builder = builder.add_extension(x509.SubjectAlternativeName(places), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{name}.pem"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
