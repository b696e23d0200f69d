"""Hosts through which data can leave: whoever may write there may let someone else read it. Pure data, for `lint`.

No such list is complete. It names what people put on an allowlist without thinking of uploads.
"""

from __future__ import annotations

CARRIERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "code hosting",
        "anyone with an account can push, open an issue or write a gist",
        (
            *("github.com", "api.github.com", "uploads.github.com", "gist.github.com", "*.githubusercontent.com"),
            *("gitlab.com", "bitbucket.org", "api.bitbucket.org", "codeberg.org", "sourcehut.org", "*.sr.ht"),
            *("dev.azure.com", "*.visualstudio.com", "huggingface.co", "*.hf.co", "hub.docker.com", "ghcr.io"),
        ),
    ),
    (
        "object store",
        "anyone's bucket has a name there",
        (
            *(
                "s3.amazonaws.com",
                "*.s3.amazonaws.com",
                "*.amazonaws.com",
                "storage.googleapis.com",
                "*.storage.googleapis.com",
            ),
            *("*.blob.core.windows.net", "*.file.core.windows.net", "*.dfs.core.windows.net"),
            *("*.r2.cloudflarestorage.com", "*.r2.dev", "*.digitaloceanspaces.com", "*.backblazeb2.com"),
            *("*.wasabisys.com", "*.linodeobjects.com", "*.aliyuncs.com", "*.myqcloud.com", "*.supabase.co"),
        ),
    ),
    (
        "file sharing",
        "uploads are what it is for",
        (
            *("*.dropbox.com", "*.dropboxapi.com", "drive.google.com", "docs.google.com", "www.googleapis.com"),
            *("transfer.sh", "file.io", "0x0.st", "catbox.moe", "*.catbox.moe", "bashupload.com", "temp.sh"),
            *("oshi.at", "gofile.io", "*.gofile.io", "wetransfer.com", "*.sharepoint.com", "graph.microsoft.com"),
        ),
    ),
    (
        "paste site",
        "anyone can write, and anyone can read",
        (
            *("pastebin.com", "paste.rs", "ix.io", "dpaste.com", "dpaste.org", "hastebin.com", "rentry.co"),
            *("termbin.com", "paste.ee", "controlc.com", "privatebin.net", "sprunge.us", "ghostbin.com"),
        ),
    ),
    (
        "model API",
        "what is sent stays readable for whoever holds the key that was sent",
        (
            *("api.anthropic.com", "api.openai.com", "*.openai.azure.com", "generativelanguage.googleapis.com"),
            *("*.aiplatform.googleapis.com", "aiplatform.googleapis.com", "api.mistral.ai", "api.groq.com"),
            *("api.cohere.com", "api.together.xyz", "api.x.ai", "api.deepseek.com", "openrouter.ai"),
            *("api.replicate.com", "api-inference.huggingface.co"),
        ),
    ),
    (
        "chat or webhook",
        "a message carries whatever is in it",
        (
            *("slack.com", "*.slack.com", "hooks.slack.com", "discord.com", "discordapp.com", "*.discord.com"),
            *("api.telegram.org", "*.webhook.office.com", "hooks.zapier.com", "*.pipedream.net", "ntfy.sh"),
        ),
    ),
    (
        "request catcher",
        "it shows requests to whoever made the address",
        (
            *("webhook.site", "*.webhook.site", "requestbin.com", "*.requestbin.net", "*.ngrok.io", "*.ngrok.app"),
            *("*.ngrok-free.app", "*.trycloudflare.com", "*.loca.lt", "*.serveo.net", "*.oastify.com"),
            *("*.burpcollaborator.net", "*.interact.sh", "*.oast.fun", "*.oast.pro", "httpbin.org", "*.beeceptor.com"),
        ),
    ),
    (
        "package registry",
        "a package can be published there",
        (
            *("upload.pypi.org", "test.pypi.org", "registry.npmjs.org", "registry.yarnpkg.com", "rubygems.org"),
            *("crates.io", "registry-1.docker.io", "quay.io", "*.jfrog.io", "www.nuget.org"),
        ),
    ),
    (
        "mail",
        "a message carries whatever is in it",
        (
            *("smtp.gmail.com", "smtp.office365.com", "*.mail.protection.outlook.com", "api.sendgrid.com"),
            *("api.mailgun.net", "api.postmarkapp.com", "gmail.googleapis.com"),
        ),
    ),
    (
        "names over HTTPS",
        "it asks DNS for any name, and a name can carry data",
        (
            "dns.google",
            "cloudflare-dns.com",
            "*.cloudflare-dns.com",
            "dns.quad9.net",
            "doh.opendns.com",
            "dns.adguard.com",
        ),
    ),
    (
        "shared hosting",
        "anyone can have a name there",
        (
            *("*.github.io", "*.gitlab.io", "*.pages.dev", "*.workers.dev", "*.vercel.app", "*.netlify.app"),
            *("*.herokuapp.com", "*.onrender.com", "*.fly.dev", "*.web.app", "*.firebaseapp.com", "*.appspot.com"),
            *("*.run.app", "*.cloudfunctions.net", "*.azurewebsites.net", "*.cloudfront.net", "*.azureedge.net"),
            *("*.fastly.net", "*.b-cdn.net", "*.glitch.me", "*.repl.co", "*.replit.app", "*.deno.dev"),
        ),
    ),
)
"""What such hosts are, why data can leave there, and their names."""


def carrier(host: str) -> tuple[str, str, str] | None:
    """The kind, the reason and the name of a host in the table that a rule's host reaches; the closest one."""
    found: list[tuple[int, tuple[str, str, str]]] = []
    for kind, why, names in CARRIERS:
        found += [(len(name), (kind, why, name)) for name in names if overlap(host, name)]
    return max(found)[1] if found else None


def overlap(one: str, other: str) -> bool:
    """Whether two hosts, with or without `*.`, have a name in common."""
    if one == other:
        return True
    if one.startswith("*.") and (other.removeprefix("*").endswith(one[1:])):
        return True
    return other.startswith("*.") and one.removeprefix("*").endswith(other[1:])
