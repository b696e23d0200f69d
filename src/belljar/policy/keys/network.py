"""The keys of the network: `net`, the entries of its lists, and `credentials`."""

from __future__ import annotations

from belljar.policy.builtin import BUILTIN_NAMES
from belljar.policy.keys.key import Bound, Key, ValueKind

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_TERABYTE = 1024**4

NET_KEYS = (
    Key(
        "net.enabled",
        ValueKind.BOOLEAN,
        "Whether the jar reaches the hosts of the allowlist. There is no other way out.",
        example=False,
        bound=Bound.OFF,
    ),
    Key(
        "net.allowlist",
        ValueKind.HOSTS,
        "The hosts, each a name or a mapping. It replaces the inherited list. An empty one allows nothing.",
        [],
        Bound.COVERED,
    ),
    Key(
        "net.allowlist[].host",
        ValueKind.HOST,
        "A name matches itself, `*.example.com` its subdomains only, `*` everything on the public internet. An address "
        "names itself, a private one too.",
        "api.example.com",
    ),
    Key(
        "net.allowlist[].ports",
        ValueKind.PORTS,
        "Its ports; 443 and 80 unless written.",
        [443],
        minimum=1,
        maximum=65535,
    ),
    Key("net.allowlist[].methods", ValueKind.CHOICES, "HTTP methods; any unless written.", ["GET"], choices=METHODS),
    Key(
        "net.allowlist[].paths",
        ValueKind.PATHS,
        "URL paths; any unless written. `*` is any part between two slashes, `**` any number of parts.",
        ["/v1/items/**"],
    ),
    Key(
        "net.allowlist[].query",
        ValueKind.QUERY_KEYS,
        "The keys that the query of a URL may have; any unless written.",
        ["page", "limit"],
    ),
    Key(
        "net.allowlist[].credential",
        ValueKind.CREDENTIAL,
        "The credential that the proxy adds. The code never sees it, and no other credential reaches the host.",
        "items-api",
        optional=True,
    ),
    Key(
        "net.allowlist[].rate",
        ValueKind.RATE,
        "The most requests to each host: `10/s`, `600/m`, `1000/h`.",
        "10/s",
        optional=True,
    ),
    Key(
        "net.allowlist[].addresses",
        ValueKind.ADDRESSES,
        "Where the name is dialled, instead of asking DNS; private addresses are dialled only if they are named.",
        ["10.1.2.3", "127.0.0.1:8443"],
    ),
    Key(
        "net.allowlist[].budget_mb",
        ValueKind.SIZE,
        "The most bytes, both ways together, that a run may exchange with each host.",
        10,
        minimum=1,
        maximum=_TERABYTE,
        optional=True,
    ),
    Key(
        "net.allowlist[].get_body",
        ValueKind.BOOLEAN,
        "Whether GET and HEAD may carry a body. A server that ignores such a body takes it for another request, which "
        "nothing has judged.",
        example=True,
    ),
    Key(
        "net.allowlist[].sign",
        ValueKind.CREDENTIAL,
        "The credential with an `algorithm` by which the proxy signs each request (RFC 9421).",
        "items-key",
        optional=True,
    ),
    Key(
        "net.allowlist[].foreign_credentials",
        ValueKind.BOOLEAN,
        "Whether the code may send credentials of its own to this host. The model APIs and cloud control planes that "
        "belljar knows refuse them otherwise, because the key decides whose account has the data. Other hosts do not.",
        example=True,
    ),
    Key(
        "net.denylist",
        ValueKind.DENIED,
        "What is refused whatever the allowlist says. Entries add to the inherited ones.",
        [],
        Bound.ADDED,
    ),
    Key("net.denylist[].host", ValueKind.HOST, "As in the allowlist.", "api.example.com"),
    Key("net.denylist[].ports", ValueKind.PORTS, "Its ports; any unless written.", [443], minimum=1, maximum=65535),
    Key("net.denylist[].methods", ValueKind.CHOICES, "HTTP methods; any unless written.", ["DELETE"], choices=METHODS),
    Key("net.denylist[].paths", ValueKind.PATHS, "URL paths; any unless written.", ["/admin/**"]),
    Key("net.denylist[].query", ValueKind.QUERY_KEYS, "Query keys, any of which is refused.", ["debug"]),
    Key(
        "net.allow_builtin",
        ValueKind.CHOICES,
        "Entries of belljar's own deny list that do not hold here.",
        [],
        Bound.SUBSET,
        choices=BUILTIN_NAMES,
    ),
    Key(
        "net.host_ports",
        ValueKind.SERVICE_PORTS,
        "Ports of the host's loopback address that the code reaches, as `host.belljar.internal`.",
        [5432],
        Bound.SUBSET,
        minimum=1,
        maximum=65535,
    ),
    Key(
        "net.publish",
        ValueKind.JAR_PORTS,
        "Ports on which the host's loopback address reaches a server in the jar: `8000`, or `18000:8000` for another "
        "port of the host.",
        ["18000:8000"],
        Bound.SUBSET,
        minimum=1,
        maximum=65535,
    ),
    Key(
        "net.strip_headers",
        ValueKind.HEADERS,
        "Headers that are taken out of every request, besides those that tell of proxies. They add to the inherited "
        "ones.",
        ["user-agent"],
        Bound.ADDED,
    ),
    Key(
        "net.budget_mb",
        ValueKind.SIZE,
        "The most bytes, both ways together, that a run may exchange with all hosts.",
        100,
        Bound.MOST,
        1,
        _TERABYTE,
        optional=True,
    ),
    Key(
        "net.max_name_length",
        ValueKind.COUNT,
        "The longest name, of those that a `*` covers.",
        100,
        Bound.MOST,
        1,
        253,
        default=100,
    ),
    Key(
        "net.max_name_entropy",
        ValueKind.NUMBER,
        "How random the parts of a name may look that a `*` covers, in bits for each character; parts of less than 16 "
        "characters are not looked at.",
        4.2,
        Bound.MOST,
        0,
        8,
        default=4.2,
    ),
    Key(
        "net.max_names",
        ValueKind.COUNT,
        "How many different names, of those that a `*` covers, a run may ask for.",
        256,
        Bound.MOST,
        0,
        65536,
        default=256,
    ),
    Key(
        "net.ca_file",
        ValueKind.FILE,
        "Certificates, as PEM, by which hosts are verified besides those that this host trusts.",
        "./company-ca.pem",
        Bound.SAME,
        optional=True,
    ),
    Key(
        "net.canary_files",
        ValueKind.JAR_FILES,
        "Where belljar plants files with a token of no use. A run that sends one anywhere is stopped. They add to the "
        "inherited ones.",
        ["/workspace/.aws/credentials"],
        Bound.ADDED,
    ),
)

CREDENTIAL_KEYS = (
    Key(
        "credentials",
        ValueKind.CREDENTIALS,
        "Secrets of the host's that the proxy adds to requests, by name; a rule of the allowlist says where. They "
        "merge by name.",
        {"items-api": {"from": "env:ITEMS_TOKEN"}},
        Bound.AS_WRITTEN,
    ),
    Key(
        "credentials[].from",
        ValueKind.FROM,
        "Where the host gets it, for each run: `env:NAME`, `file:PATH`, `keyring:SERVICE/USER`. Or write a `command`.",
        "env:ITEMS_TOKEN",
    ),
    Key(
        "credentials[].command",
        ValueKind.WORDS,
        "A program of the host that prints it, and its arguments.",
        ["pass", "show", "items"],
    ),
    Key(
        "credentials[].header",
        ValueKind.HEADER,
        "The header that carries it; Authorization unless written.",
        "X-Api-Key",
    ),
    Key(
        "credentials[].format",
        ValueKind.FORMAT,
        "The value of the header: `{}` is the secret, `{base64}` its base64 form. `Bearer {}` for Authorization, else "
        "`{}`, unless written.",
        "token {}",
    ),
    Key("credentials[].query", ValueKind.QUERY_KEY, "The query key that carries it, instead of a header.", "api_key"),
    Key(
        "credentials[].placeholder",
        ValueKind.PLACEHOLDER,
        "What the code may send in its stead. Without it the code sends nothing.",
        "sk-placeholder-0000",
    ),
    Key(
        "credentials[].env",
        ValueKind.VARIABLE,
        "The variable of the jar that holds the placeholder.",
        "ITEMS_TOKEN",
    ),
    Key(
        "credentials[].hosts",
        ValueKind.HOST_NAMES,
        "Hosts that get it, of those that rules name it for; all of them unless written.",
        ["api.example.com"],
    ),
    Key(
        "credentials[].methods", ValueKind.CHOICES, "Methods that get it; any unless written.", ["GET"], choices=METHODS
    ),
    Key("credentials[].paths", ValueKind.PATHS, "URL paths that get it; any unless written.", ["/v1/**"]),
    Key(
        "credentials[].algorithm",
        ValueKind.CHOICE,
        "Makes it a key by which requests are signed (a rule's `sign`), and never sent.",
        "ed25519",
        choices=("ed25519", "hmac-sha256"),
    ),
    Key("credentials[].key_id", ValueKind.KEY_ID, "The name of the key, as the host knows it.", "items-2026"),
    Key(
        "credentials[].on_foreign_credential",
        ValueKind.CHOICE,
        "What happens to any other credential that is sent to the host: the request is refused, or it is stripped.",
        "refuse",
        choices=("refuse", "strip"),
    ),
    Key(
        "credentials[].reflects",
        ValueKind.BOOLEAN,
        "Whether the host may send the secret back, so that its answers are searched and the secret is blotted out.",
        example=False,
    ),
)
