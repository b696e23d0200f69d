"""What no jar reaches, even if a broad rule would allow it: lifted only by name, in `net.allow_builtin`. Pure data.

A model vendor's key reaches that vendor's files too, and a key that came with the code reaches someone else's: an
allowed API host is then a way to carry data to another account. So uploads are closed, and questions are not.
"""

from __future__ import annotations

from belljar.policy.records import dataclass

HOST_NAME = "host.belljar.internal"
"""The name by which a jar knows the loopback address of the host."""
_METADATA_HOSTS = (
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"),
    *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
    *("metadata.azure.internal", "metadata.tencentyun.com", "metadata.platformequinix.com"),
)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One entry: a request that fits all that is written is refused. Empty `methods` or `paths` mean any."""

    name: str
    hosts: tuple[str, ...]
    paths: tuple[str, ...] = ()
    why: str = ""
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()


_UPLOADS = "files put there are read by whoever holds the key that was sent"
_BATCHES = "a batch leaves with its data, and is read later by whoever holds the key that was sent"

BUILTIN = (
    BuiltIn("cloud-metadata", _METADATA_HOSTS, why="it hands out the credentials of the machine"),
    BuiltIn("belljar-dashboard", (HOST_NAME,), why="it can stop runs and shows the output of all of them"),
    BuiltIn("anthropic-files", ("api.anthropic.com",), ("/v1/files/**", "/v1/skills/**"), _UPLOADS),
    BuiltIn("anthropic-batches", ("api.anthropic.com",), ("/v1/messages/batches/**",), _BATCHES),
    BuiltIn(
        "openai-files",
        ("api.openai.com", "*.api.openai.com"),
        ("/v1/files/**", "/v1/uploads/**", "/v1/vector_stores/**", "/v1/containers/**"),
        _UPLOADS,
    ),
    BuiltIn("openai-batches", ("api.openai.com", "*.api.openai.com"), ("/v1/batches/**",), _BATCHES),
    BuiltIn(
        "azure-openai-files",
        ("*.openai.azure.com", "*.services.ai.azure.com"),
        ("/openai/files/**", "/openai/v1/files/**", "/openai/uploads/**", "/openai/v1/uploads/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "azure-openai-batches",
        ("*.openai.azure.com", "*.services.ai.azure.com"),
        ("/openai/batches/**", "/openai/v1/batches/**"),
        _BATCHES,
    ),
    BuiltIn(
        "gemini-files",
        ("generativelanguage.googleapis.com",),
        ("/upload/**", "/resumable/**", "/*/files/**", "/*/cachedContents/**", "/*/fileSearchStores/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "gemini-batches",
        ("generativelanguage.googleapis.com",),
        ("/*/batches/**", "/*/models/*:batchGenerateContent", "/*/models/*:asyncBatchEmbedContent"),
        _BATCHES,
    ),
    BuiltIn("mistral-files", ("api.mistral.ai",), ("/v1/files/**", "/v1/libraries/**"), _UPLOADS),
    BuiltIn("mistral-batches", ("api.mistral.ai",), ("/v1/batch/**",), _BATCHES),
    BuiltIn("groq-files", ("api.groq.com",), ("/openai/v1/files/**",), _UPLOADS),
    BuiltIn("groq-batches", ("api.groq.com",), ("/openai/v1/batches/**",), _BATCHES),
    BuiltIn("together-files", ("api.together.xyz", "api.together.ai"), ("/v1/files/**",), _UPLOADS),
    BuiltIn("together-batches", ("api.together.xyz", "api.together.ai"), ("/v1/batches/**",), _BATCHES),
    BuiltIn("xai-files", ("api.x.ai",), ("/v1/files/**", "/v1/collections/**"), _UPLOADS),
    BuiltIn("cohere-files", ("api.cohere.com", "api.cohere.ai"), ("/v1/datasets/**",), _UPLOADS),
    BuiltIn("cohere-batches", ("api.cohere.com", "api.cohere.ai"), ("/v1/embed-jobs/**", "/v2/batches/**"), _BATCHES),
)
"""Every entry. A path that ends in `/**` means the path itself, too."""

BUILTIN_NAMES = tuple(entry.name for entry in BUILTIN)
