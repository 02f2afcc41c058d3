"""``fedsense fleet init``: a certificate authority, the server's certificate, a key pair for every node, and the app.

    fleet/
      app/                  an ordinary Flower app: ``flwr run fleet/app`` works, too
      server/               what the server needs; ca.key, which makes certificates, can be kept elsewhere
      nodes/kitchen/        what goes to the node 'kitchen', and nowhere else: its private key, and whom to trust

Private keys are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsense import __version__
from fedsense.errors import UserError

VALID = timedelta(days=3650)
CA, CERTIFICATE, KEY, PUBLIC = "ca.crt", "server.crt", "server.key", "node.key.pub"
NODE_KEY = "node.key"

PYPROJECT = """\
# An ordinary Flower app: `fedsense fleet server` runs it, and so does `flwr run` (docs/how-to/fleet.md).
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedsense-fleet"
version = "{version}"
description = "A recipe of fedsense on a fleet"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<2", "fedsense"]

[tool.flwr.app]
publisher = "fedsense"

[tool.flwr.app.components]
serverapp = "fedsense_fleet.server_app:app"
clientapp = "fedsense_fleet.client_app:app"

[tool.flwr.app.config]
recipe = ""          # a recipe file on the server, or the name of one that comes with fedsense
out = ""             # folder of the result
resume = false
nodes = 1            # how many nodes to wait for
wait = 600.0         # seconds to wait for them
deadline = 600.0     # seconds a node has to answer
quorum = 0.5         # share of the clients asked that must answer
attempts = 3         # times those who did not are asked, if they are too few
room = 4.0           # how many times as large as its model and what came down a client's upload may be
"""
SERVER_APP = '''\
"""The server of the fleet."""

from fedsense.flower.server import server_app

app = server_app()
'''
CLIENT_APP = '''\
"""A node of the fleet."""

from fedsense.flower.client import app

__all__ = ["app"]
'''


def write_app(folder: Path) -> Path:
    """The Flower app."""
    package = folder / "fedsense_fleet"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=__version__))
    (package / "__init__.py").write_text('"""fedsense as a Flower app."""\n')
    (package / "server_app.py").write_text(SERVER_APP)
    (package / "client_app.py").write_text(CLIENT_APP)
    return folder


def create(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
    """Everything a new fleet needs; gives the names and addresses the server's certificate is for."""
    if (folder / "server").exists():
        raise UserError(f"{folder} already holds a fleet; add nodes with `fedsense fleet init {folder} --add NAME`")
    write_app(folder / "app")
    names = known_hosts(hosts)
    _authority(folder / "server", names)
    for node in nodes:
        add_node(folder, node)
    return names


def add_node(folder: Path, name: str) -> Path:
    """A key pair for one more node; the server gets the public half."""
    if not re.fullmatch(r"[\w][\w.-]*", name):
        raise UserError(f"'{name}' is no name for a node; use letters, digits and . - _")
    home = folder / "nodes" / name
    if home.exists():
        raise UserError(f"{home} exists already; name the node otherwise")
    known = folder / "server" / "nodes"
    for each in (home, known):
        each.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.PrivateFormat.OpenSSH
    _private(home / NODE_KEY, key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (home / PUBLIC).write_bytes(public + f" {name}\n".encode())
    (known / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    (home / CA).write_bytes((folder / "server" / CA).read_bytes())
    return home


def known_hosts(more: Sequence[str] = ()) -> list[str]:
    """Names and addresses by which this machine can be reached, as far as it knows itself."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()]
    for family, where in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            try:
                end.connect((where, 9))  # nothing is sent: it only tells which address would be used
                names.append(end.getsockname()[0])
            except OSError:
                continue
    return list(dict.fromkeys([*more, *names]))


def _authority(folder: Path, hosts: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    ca_key, ca_name = ec.generate_private_key(ec.SECP384R1()), _name("fedsense fleet authority")
    limits = x509.BasicConstraints(ca=True, path_length=0)
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = _certificate(ca_name, ca_name, ca_key.public_key(), ca_key, [(limits, True), (signs, True)])
    key = ec.generate_private_key(ec.SECP384R1())
    own = _certificate(
        _name("fedsense fleet server"),
        ca_name,
        key.public_key(),
        ca_key,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.SubjectAlternativeName([_host(name) for name in hosts]), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ],
        ca_key.public_key(),
    )
    (folder / CA).write_bytes(ca)
    (folder / CERTIFICATE).write_bytes(own)
    for name, each in (("ca.key", ca_key), (KEY, key)):
        pkcs8 = serialization.PrivateFormat.PKCS8
        _private(folder / name, each.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    issuer_key: ec.EllipticCurvePublicKey | None = None,
) -> bytes:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key or public), False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
