"""The proxy gives up root after its start, and then may not be able to read its own Python: it has imported all."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from belljar.egress.protocols import dns
from belljar.egress.proxy import main as proxy_main
from belljar.egress.decide import reasons, signing
from belljar.egress.ca import Issuer, new_authority
from belljar.egress.decide.request import Request
from belljar.policy.models import Credential
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
import dns.message

key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
questions = [dns.message.make_query("web.test", kind, use_edns=edns).to_wire() for kind in ("A", "AAAA", "TXT", "MX")
             for edns in (False, True)]
# What this test itself needed is forgotten, as far as the proxy would have to import it again.
for name in [name for name in sys.modules if name.startswith(("dns.rdtypes", "belljar.egress.decide.signing"))]:
    del sys.modules[name]
import dns.rdata
dns.rdata._rdata_classes.clear()
issuer = Issuer(new_authority())
proxy_main.import_everything(issuer)

class Refused:
    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(name)  # as from a directory that can't be read

sys.meta_path.insert(0, Refused())
from belljar.egress.protocols import dns as answering
addresses = {"web.test": ("198.18.1.1", "fd62:656c:6c6a::1")}
print([answering.answer(question, addresses.get) is not None for question in questions])
print(b"\\xc6\\x12\\x01\\x01" in answering.answer(questions[0], addresses.get))
issuer.context("web.test", ("h2",))
issuer.context("192.0.2.7")
print(bool(reasons.words("builtin-cloud-metadata")))
signing_credential = Credential("signer", algorithm="ed25519", key_id="k")
request = Request("web.test", 443, True, "GET", "/", "web.test")
import belljar.egress.decide.signing as signing
print(bool(signing.signature_headers(signing_credential, key, request, created=1)))
import asyncio
loop = asyncio.new_event_loop()
print(loop.run_until_complete(loop.run_in_executor(None, int, "7")))
"""


def test_nothing_is_imported_after_the_start() -> None:
    """Names are answered, certificates made, requests signed and refusals put into words with what is there."""
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "[True, True, True, True, True, True, True, True]",
        "True",
        "True",
        "True",
        "7",
    ]
