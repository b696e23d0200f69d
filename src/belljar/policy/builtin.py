"""What no jar reaches, even if a broad rule would allow it: lifted only by name, in `net.allow_builtin`. Pure data.

A model vendor's key reaches that vendor's files too, and a key that came with the code reaches someone else's: an
allowed API host is then a way to carry data to another account. So uploads are closed, and questions are not.
"""

from __future__ import annotations

from belljar._startup.records import dataclass

HOST_NAME = "host.belljar.internal"
"""The name by which a jar knows the loopback address of the host."""
CHECKED = "2026-11"
"""When the vendors' documentation was last read for this list."""
_METADATA_HOSTS = (
    # AWS (EC2, ECS, EKS), Google, Azure (and its agent), Alibaba, Oracle, Tencent, Scaleway, Akamai, Rancher: addresses
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("169.254.0.23", "169.254.10.10", "169.254.42.42", "169.254.169.250", "169.254.169.251", "169.254.100.1"),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1"),
    "fe80::a9fe:a9fe",
    # and the names by which they are known
    *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
    *("metadata.azure.internal", "metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net"),
    *("api.metadata.cloud.ibm.com", "rancher-metadata", "rancher-metadata.rancher.internal"),
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

_OPENAI = ("api.openai.com", "*.api.openai.com")
_AZURE = (
    *("*.openai.azure.com", "*.openai.azure.us", "*.openai.azure.cn", "*.services.ai.azure.com"),
    *("*.cognitiveservices.azure.com", "*.cognitiveservices.azure.us"),
)
_GEMINI = (
    *("generativelanguage.googleapis.com", "generativelanguage.mtls.googleapis.com"),
    "generativelanguage.clients6.google.com",
)
_VERTEX = (
    *("aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "*-aiplatform.mtls.googleapis.com"),
    "aiplatform.*.rep.googleapis.com",
)
_COHERE = ("api.cohere.com", "api.cohere.ai", "production.api.cohere.ai")
_TOGETHER = ("api.together.xyz", "api.together.ai")

BUILTIN = (
    BuiltIn("cloud-metadata", _METADATA_HOSTS, why="it hands out the credentials of the machine"),
    BuiltIn("belljar-dashboard", (HOST_NAME,), why="it can stop runs and shows the output of all of them"),
    BuiltIn(
        "anthropic-files",
        ("api.anthropic.com", "a-api.anthropic.com", "api-staging.anthropic.com"),
        (
            *("/v1/files/**", "/v1/skills/**", "/v1/agents/**", "/v1/sessions/**", "/v1/environments/**"),
            *("/v1/memory_stores/**", "/v1/vaults/**", "/v1/deployments/**", "/v1/deployment_runs/**"),
            *("/v1/user_profiles/**", "/v1/organizations/**", "/v1/dreams/**", "/v1/tunnels/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn(
        "anthropic-batches",
        ("api.anthropic.com", "a-api.anthropic.com", "api-staging.anthropic.com"),
        ("/v1/messages/batches/**",),
        _BATCHES,
    ),
    BuiltIn("claude-files", ("claude.ai",), ("/api/**",), _UPLOADS),
    BuiltIn(
        "openai-files",
        _OPENAI,
        (
            *("/v1/files/**", "/v1/uploads/**", "/v1/vector_stores/**", "/v1/containers/**", "/v1/skills/**"),
            *("/v1/conversations/**", "/v1/assistants/**", "/v1/threads/**", "/v1/evals/**", "/v1/fine_tuning/**"),
            *("/v1/videos/**", "/v1/chatkit/**", "/v1/audio/voices/**", "/v1/audio/voice_consents/**"),
            *("/v1/organization/**", "/v1/projects/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn("openai-batches", _OPENAI, ("/v1/batches/**",), _BATCHES),
    BuiltIn(
        "chatgpt-files",
        ("chatgpt.com", "chat.openai.com"),
        ("/backend-api/files/**", "/backend-anon/files/**", "/backend-api/share/**", "/backend-api/gizmos/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "azure-openai-files",
        _AZURE,
        (
            *("/openai/files/**", "/openai/v1/files/**", "/openai/uploads/**", "/openai/v1/uploads/**"),
            *("/openai/vector_stores/**", "/openai/v1/vector_stores/**", "/openai/v1/containers/**"),
            *("/openai/assistants/**", "/openai/threads/**", "/openai/v1/conversations/**"),
            *("/openai/evals/**", "/openai/v1/evals/**", "/openai/fine_tuning/**", "/openai/v1/fine_tuning/**"),
            *("/openai/v1/videos/**", "/openai/v1/video/**", "/api/projects/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn("azure-openai-batches", _AZURE, ("/openai/batches/**", "/openai/v1/batches/**"), _BATCHES),
    BuiltIn(
        "gemini-files",
        _GEMINI,
        (
            *("/upload/**", "/resumable/**", "/*/files/**", "/*/files:*", "/*/cachedContents/**", "/*/media/**"),
            *("/*/fileSearchStores/**", "/*/corpora/**", "/*/tunedModels/**", "/*/generatedFiles/**", "/*/dynamic/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn(
        "gemini-batches",
        _GEMINI,
        ("/*/batches/**", "/*/models/*:batchGenerateContent", "/*/models/*:asyncBatchEmbedContent"),
        _BATCHES,
    ),
    BuiltIn(
        "vertex-files",
        _VERTEX,
        (
            *("/upload/**", "/*/projects/*/locations/*/datasets/**", "/*/projects/*/locations/*/ragCorpora/**"),
            *("/*/projects/*/locations/*/cachedContents/**", "/*/projects/*/locations/*/reasoningEngines/**"),
            *("/*/projects/*/locations/*/tuningJobs/**", "/*/projects/*/locations/*/indexes/**"),
            "/*/projects/*/locations/*/batchPredictionJobs/**",
        ),
        _UPLOADS,
    ),
    BuiltIn(
        "bedrock-files",
        (
            *("bedrock.*.amazonaws.com", "bedrock-agent.*.amazonaws.com", "bedrock-agent-runtime.*.amazonaws.com"),
            *(
                "bedrock-runtime.*.amazonaws.com",
                "bedrock-fips.*.amazonaws.com",
                "bedrock-runtime-fips.*.amazonaws.com",
            ),
            *("bedrock-agent-fips.*.amazonaws.com", "bedrock-agent-runtime-fips.*.amazonaws.com"),
            *("bedrock.*.api.aws", "bedrock-agent.*.api.aws", "bedrock-agent-runtime.*.api.aws"),
            *("bedrock-runtime.*.api.aws", "bedrock-mantle.*.api.aws"),
        ),
        (
            *("/model-invocation-job/**", "/model-customization-jobs/**", "/knowledgebases/**", "/sessions/**"),
            *("/async-invoke/**", "/v1/files/**", "/v1/batches/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn(
        "mistral-files",
        ("api.mistral.ai", "codestral.mistral.ai"),
        ("/v1/files/**", "/v1/libraries/**", "/v1/conversations/**", "/v1/agents/**", "/v1/fine_tuning/**"),
        _UPLOADS,
    ),
    BuiltIn("mistral-batches", ("api.mistral.ai", "codestral.mistral.ai"), ("/v1/batch/**",), _BATCHES),
    BuiltIn("groq-files", ("api.groq.com",), ("/openai/v1/files/**", "/v1/fine_tunings/**"), _UPLOADS),
    BuiltIn("groq-batches", ("api.groq.com",), ("/openai/v1/batches/**",), _BATCHES),
    BuiltIn(
        "together-files",
        _TOGETHER,
        ("/v1/files/**", "/v1/fine-tunes/**", "/v1/evaluation/**", "/tci/**"),
        _UPLOADS,
    ),
    BuiltIn("together-batches", _TOGETHER, ("/v1/batches/**",), _BATCHES),
    BuiltIn(
        "xai-files",
        ("api.x.ai", "*.api.x.ai", "management-api.x.ai"),
        ("/v1/files/**", "/v1/collections/**"),
        _UPLOADS,
    ),
    BuiltIn("xai-batches", ("api.x.ai", "*.api.x.ai"), ("/v1/batches/**",), _BATCHES),
    BuiltIn("cohere-files", _COHERE, ("/v1/datasets/**", "/v1/finetuning/**", "/v1/connectors/**"), _UPLOADS),
    BuiltIn("cohere-batches", _COHERE, ("/v1/embed-jobs/**", "/v2/batches/**"), _BATCHES),
    BuiltIn(
        "fireworks-files",
        ("api.fireworks.ai",),
        ("/v1/accounts/**", "/inference/v1/files/**", "/inference/v1/batches/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "deepinfra-files",
        ("api.deepinfra.com",),
        ("/v1/files/**", "/v1/openai/files/**", "/v1/batches/**", "/v1/openai/batches/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "replicate-files", ("api.replicate.com",), ("/v1/files/**", "/v1/models/*/*/versions/*/trainings"), _UPLOADS
    ),
    BuiltIn("fal-files", ("rest.alpha.fal.ai", "rest.fal.ai"), ("/storage/**",), _UPLOADS),
    BuiltIn("cerebras-files", ("api.cerebras.ai",), ("/v1/files/**", "/v1/batches/**"), _UPLOADS),
    BuiltIn(
        "nebius-files",
        ("api.studio.nebius.ai", "api.studio.nebius.com", "api.tokenfactory.nebius.com"),
        ("/v1/files/**", "/v1/batches/**", "/v1/fine_tuning/**"),
        _UPLOADS,
    ),
    BuiltIn("nvidia-files", ("api.nvcf.nvidia.com", "ai.api.nvidia.com"), ("/v2/nvcf/assets/**",), _UPLOADS),
    BuiltIn("voyage-files", ("api.voyageai.com",), ("/v1/files/**", "/v1/batches/**"), _UPLOADS),
    BuiltIn("ai21-files", ("api.ai21.com",), ("/studio/v1/library/**",), _UPLOADS),
    BuiltIn("assemblyai-files", ("api.assemblyai.com", "api.eu.assemblyai.com"), ("/v2/upload/**",), _UPLOADS),
    BuiltIn("moonshot-files", ("api.moonshot.ai", "api.moonshot.cn"), ("/v1/files/**", "/v1/batches/**"), _UPLOADS),
    BuiltIn(
        "zhipu-files",
        ("open.bigmodel.cn", "api.z.ai"),
        ("/api/paas/v4/files/**", "/api/paas/v4/batches/**", "/api/llm-application/open/document/**"),
        _UPLOADS,
    ),
    BuiltIn(
        "dashscope-files",
        ("dashscope.aliyuncs.com", "dashscope-*.aliyuncs.com"),
        (
            *("/compatible-mode/v1/files/**", "/compatible-mode/v1/batches/**", "/api/v1/files/**"),
            *("/api/v1/uploads/**", "/api/v1/datasets/**"),
        ),
        _UPLOADS,
    ),
    BuiltIn(
        "minimax-files",
        ("api.minimax.io", "api.minimax.chat", "api.minimaxi.com"),
        ("/v1/files/**",),
        _UPLOADS,
    ),
    BuiltIn(
        "siliconflow-files", ("api.siliconflow.cn", "api.siliconflow.com"), ("/v1/files/**", "/v1/batches/**"), _UPLOADS
    ),
    BuiltIn("volcengine-files", ("ark.*.volces.com", "ark.*.bytepluses.com"), ("/api/v3/files/**",), _UPLOADS),
)
"""Every entry. A path that ends in `/**` means the path itself, too. A star inside of a host is a part of a label."""

BUILTIN_NAMES = tuple(entry.name for entry in BUILTIN)
