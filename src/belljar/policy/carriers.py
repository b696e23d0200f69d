"""Hosts through which data can leave: whoever may write there may let someone else read it. Pure data, checked 2026-11.

No such list is complete. It names what people reach without thinking of uploads, and what programs that steal data use.
Two things read it: `belljar policy lint`, and the proxy, which does not open kinds with `needs_name` for a rule with a
star that is wider than the entry.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from belljar.policy.keys.patterns import Pattern


class Carrier(NamedTuple):
    """One kind of host. `*.` stands for any subdomain, and a star further on for a part of one label."""

    kind: str
    why: str
    names: tuple[str, ...]
    needs_name: bool = False
    """Whether a rule has to name such a host: one that is wider than the entry does not open it."""
    guarded: bool = False
    """Whether a request to it may carry no credential but the policy's, unless its rule says `foreign_credentials`."""
    not_these: tuple[str, ...] = ()
    """Hosts that the names cover and that are of another kind."""


_CONTROL_PLANES = Carrier(
    "cloud control plane",
    "a key found in the jar commands a cloud account there, and a key brought along stores data in someone else's",
    (
        # Amazon Web Services: each service has a host for each region. Storage, load balancers, virtual machines and
        # functions carry other people's sites, so they are not commands to the account.
        *("*.amazonaws.com", "*.amazonaws.com.cn", "*.amazonaws.eu", "*.api.aws", "*.api.amazonwebservices.com.cn"),
        *("sts.amazonaws.com", "sts.*.amazonaws.com", "iam.amazonaws.com", "sts-fips.*.amazonaws.com"),
        *("ssm.*.amazonaws.com", "secretsmanager.*.amazonaws.com", "kms.*.amazonaws.com", "ec2.*.amazonaws.com"),
        *("lambda.*.amazonaws.com", "logs.*.amazonaws.com", "sqs.*.amazonaws.com", "dynamodb.*.amazonaws.com"),
        *("organizations.*.amazonaws.com", "cloudformation.*.amazonaws.com", "sso.*.amazonaws.com"),
        *("oidc.*.amazonaws.com", "portal.sso.*.amazonaws.com", "api.ecr.*.amazonaws.com", "eks.*.amazonaws.com"),
        *("signin.aws.amazon.com", "console.aws.amazon.com", "*.console.aws.amazon.com", "*.awsapps.com"),
        # Microsoft: Resource Manager, logins, vaults, Graph, and the same in the clouds of governments and China.
        *("management.azure.com", "management.core.windows.net", "management.usgovcloudapi.net"),
        *("management.chinacloudapi.cn", "login.microsoftonline.com", "login.windows.net", "sts.windows.net"),
        *("login.microsoftonline.us", "login.partner.microsoftonline.cn", "*.vault.azure.net", "*.vault.azure.cn"),
        *("*.vault.usgovcloudapi.net", "*.managedhsm.azure.net", "graph.microsoft.com", "graph.microsoft.us"),
        *("graph.windows.net", "portal.azure.com", "*.portal.azure.com", "*.azmk8s.io", "*.azconfig.io"),
        *("*.servicebus.windows.net", "*.queue.core.windows.net", "*.table.core.windows.net", "*.documents.azure.com"),
        # Google: every API is a host beneath googleapis.com, and `www` answers for older ones, compute among them.
        *("*.googleapis.com", "oauth2.googleapis.com", "sts.googleapis.com", "iamcredentials.googleapis.com"),
        *("cloudresourcemanager.googleapis.com", "secretmanager.googleapis.com", "compute.googleapis.com"),
        *("www.googleapis.com", "accounts.google.com", "console.cloud.google.com", "*.rep.googleapis.com"),
        # Others, and what deploys to them.
        *("api.cloudflare.com", "api.digitalocean.com", "cloud.digitalocean.com", "api.linode.com", "api.vultr.com"),
        *("api.hetzner.cloud", "robot-ws.your-server.de", "api.scaleway.com", "api.ovh.com", "eu.api.ovh.com"),
        *("*.oraclecloud.com", "*.oci.oraclecloud.com", "iam.cloud.ibm.com", "*.cloud.ibm.com", "api.exoscale.com"),
        *("ecs.aliyuncs.com", "sts.aliyuncs.com", "ram.aliyuncs.com", "*.tencentcloudapi.com", "*.myhuaweicloud.com"),
        *("api.heroku.com", "api.fly.io", "api.machines.dev", "api.render.com", "api.vercel.com", "api.netlify.com"),
        *("backboard.railway.app", "backboard.railway.com", "api.supabase.com", "api.upcloud.com", "api.kamatera.com"),
        *("app.terraform.io", "api.pulumi.com", "*.hashicorp.cloud", "api.doppler.com", "*.1password.com"),
        *("api.tailscale.com", "login.tailscale.com", "controlplane.tailscale.com"),
    ),
    needs_name=True,
    guarded=True,
    not_these=(
        *("s3.amazonaws.com", "*.s3.amazonaws.com", "s3.*.amazonaws.com", "*.s3.*.amazonaws.com"),
        *("s3-*.amazonaws.com", "*.s3-*.amazonaws.com", "s3.dualstack.*.amazonaws.com"),
        *("*.s3.dualstack.*.amazonaws.com", "*.s3-website.*.amazonaws.com", "*.s3.*.amazonaws.com.cn"),
        *("s3.*.amazonaws.com.cn", "*.elb.amazonaws.com", "*.elb.*.amazonaws.com", "*.*.elb.amazonaws.com"),
        *("*.compute.amazonaws.com", "*.compute-1.amazonaws.com", "*.*.compute.amazonaws.com"),
        *("*.execute-api.*.amazonaws.com", "*.lambda-url.*.on.aws", "checkip.amazonaws.com"),
        *("storage.googleapis.com", "*.storage.googleapis.com", "commondatastorage.googleapis.com"),
        *("fonts.googleapis.com", "ajax.googleapis.com", "maps.googleapis.com", "imasdk.googleapis.com"),
    ),
)

_MODEL_APIS = Carrier(
    "model API",
    "what is sent stays readable for whoever holds the key that was sent",
    (
        *("api.anthropic.com", "api-staging.anthropic.com", "a-api.anthropic.com", "mcp-proxy.anthropic.com"),
        *("claude.ai", "platform.claude.com", "console.anthropic.com"),
        *("api.openai.com", "*.api.openai.com", "chatgpt.com", "chat.openai.com", "auth.openai.com"),
        *("*.openai.azure.com", "*.openai.azure.us", "*.openai.azure.cn", "*.cognitiveservices.azure.com"),
        *("*.cognitiveservices.azure.us", "*.services.ai.azure.com", "*.models.ai.azure.com"),
        *("*.inference.ai.azure.com", "models.inference.ai.azure.com", "*.inference.ml.azure.com"),
        *("*.api.cognitive.microsoft.com", "models.github.ai", "api.githubcopilot.com", "*.githubcopilot.com"),
        *("generativelanguage.googleapis.com", "generativelanguage.mtls.googleapis.com"),
        *("generativelanguage.clients6.google.com", "*-generativelanguage.googleapis.com"),
        *("aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com"),
        *("*-aiplatform.mtls.googleapis.com", "discoveryengine.googleapis.com", "*-discoveryengine.googleapis.com"),
        *("cloudcode-pa.googleapis.com", "daily-cloudcode-pa.sandbox.googleapis.com"),
        *("bedrock.*.amazonaws.com", "bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com"),
        *("bedrock-agent.*.amazonaws.com", "bedrock-agent-runtime.*.amazonaws.com", "bedrock-mantle.*.api.aws"),
        *("bedrock-fips.*.amazonaws.com", "bedrock.*.api.aws", "bedrock-runtime.*.api.aws"),
        *("runtime.sagemaker.*.amazonaws.com", "q.*.amazonaws.com", "codewhisperer.*.amazonaws.com"),
        *("api.mistral.ai", "codestral.mistral.ai", "api.groq.com", "api.cohere.com", "api.cohere.ai"),
        *("production.api.cohere.ai", "api.together.xyz", "api.together.ai", "api.x.ai", "*.api.x.ai"),
        *("management-api.x.ai", "api.deepseek.com", "openrouter.ai", "*.openrouter.ai", "api.perplexity.ai"),
        *("api.fireworks.ai", "api.deepinfra.com", "api.cerebras.ai", "api.sambanova.ai", "api.ai21.com"),
        *(
            "api.replicate.com",
            "api-inference.huggingface.co",
            "router.huggingface.co",
            "*.endpoints.huggingface.cloud",
        ),
        *("queue.fal.run", "fal.run", "rest.alpha.fal.ai", "rest.fal.ai", "api.voyageai.com", "api.jina.ai"),
        *("integrate.api.nvidia.com", "ai.api.nvidia.com", "api.nvcf.nvidia.com", "api.hyperbolic.xyz"),
        *("api.studio.nebius.ai", "api.studio.nebius.com", "api.tokenfactory.nebius.com", "api.novita.ai"),
        *("api.baseten.co", "inference.baseten.co", "*.api.baseten.co", "api.runpod.ai", "*.modal.run"),
        *("api.moonshot.ai", "api.moonshot.cn", "api.z.ai", "open.bigmodel.cn", "api.minimax.io", "api.minimax.chat"),
        *("api.minimaxi.com", "dashscope.aliyuncs.com", "dashscope-*.aliyuncs.com", "api.siliconflow.cn"),
        *("api.siliconflow.com", "ark.cn-beijing.volces.com", "ark.*.volces.com", "ark.*.bytepluses.com"),
        *("api.stepfun.com", "api.baichuan-ai.com", "api.lingyiwanwu.com", "qianfan.baidubce.com"),
        *("gateway.ai.cloudflare.com", "ai-gateway.vercel.sh", "api.portkey.ai", "api.helicone.ai", "oai.helicone.ai"),
        *(
            "api.assemblyai.com",
            "api.eu.assemblyai.com",
            "api.deepgram.com",
            "api.elevenlabs.io",
            "api.stability.ai",
            "api.cursor.sh",
        ),
        *("*.cursor.sh", "api.writer.com", "api.reka.ai", "api.upstage.ai", "api.inceptionlabs.ai"),
    ),
    needs_name=True,
    guarded=True,
)

CARRIERS: tuple[Carrier, ...] = (
    _CONTROL_PLANES,
    _MODEL_APIS,
    Carrier(
        "code hosting",
        "anyone with an account can push, open an issue or write a gist",
        (
            *("github.com", "api.github.com", "uploads.github.com", "gist.github.com", "*.githubusercontent.com"),
            *("gitlab.com", "bitbucket.org", "api.bitbucket.org", "codeberg.org", "sourcehut.org", "*.sr.ht"),
            *("dev.azure.com", "*.visualstudio.com", "huggingface.co", "*.hf.co", "hub.docker.com", "ghcr.io"),
            *("gitea.com", "gitee.com", "sourceforge.net", "*.kaggle.com", "api.replit.com"),
        ),
    ),
    Carrier(
        "object store",
        "anyone's bucket has a name there",
        (
            *("s3.amazonaws.com", "*.s3.amazonaws.com", "s3.*.amazonaws.com", "*.s3.*.amazonaws.com"),
            *("storage.googleapis.com", "*.storage.googleapis.com", "*.firebasestorage.app", "*.firebaseio.com"),
            *("*.blob.core.windows.net", "*.file.core.windows.net", "*.dfs.core.windows.net"),
            *("*.r2.cloudflarestorage.com", "*.r2.dev", "*.digitaloceanspaces.com", "*.backblazeb2.com"),
            *("*.wasabisys.com", "*.linodeobjects.com", "*.aliyuncs.com", "*.myqcloud.com", "*.supabase.co"),
            *("*.vultrobjects.com", "*.scw.cloud", "*.your-objectstorage.com", "*.storjshare.io", "*.idrivee2.com"),
            *("*.blob.vercel-storage.com", "*.fly.storage.tigris.dev", "*.t3.storage.dev", "*.ufs.sh"),
        ),
    ),
    Carrier(
        "file sharing",
        "uploads are what it is for",
        (
            *("*.dropbox.com", "*.dropboxapi.com", "drive.google.com", "docs.google.com", "www.googleapis.com"),
            *("*.sharepoint.com", "graph.microsoft.com", "*.box.com", "upload.box.com", "*.onedrive.com"),
            *("onedrive.live.com", "*.pcloud.com", "*.notion.so", "api.notion.com", "api.airtable.com"),
        ),
    ),
    Carrier(
        "file drop",
        "anyone can upload without an account, and whoever has the link can read",
        (
            *("transfer.sh", "*.transfer.sh", "file.io", "www.file.io", "0x0.st", "catbox.moe", "*.catbox.moe"),
            *("bashupload.com", "bashupload.app", "temp.sh", "oshi.at", "gofile.io", "*.gofile.io", "wetransfer.com"),
            *("*.wetransfer.com", "we.tl", "tmpfiles.org", "uguu.se", "*.uguu.se", "filebin.net", "pixeldrain.com"),
            *("*.pixeldrain.com", "tempfile.org", "tmpfile.link", "x0.at", "envs.sh", "ttm.sh"),
            *("send.vis.ee", "upload.ee", "anonfiles.com", "bayfiles.com", "mega.nz", "*.mega.nz", "*.mega.co.nz"),
            *("g.api.mega.co.nz", "sendspace.com", "*.sendspace.com", "mediafire.com", "*.mediafire.com"),
            *("uploadfiles.io", "ufile.io", "*.ufile.io", "dropmefiles.com", "keep.sh", "free.keep.sh", "fex.net"),
            *("qu.ax", "pomf.lain.la", "pomf2.lain.la", "buzzheavier.com", "*.buzzheavier.com", "storj.io"),
            *("litterbox.catbox.moe", "paste.c-net.org", "plik.root.gg", "imgbb.com", "api.imgbb.com"),
            *("api.imgur.com", "freeimage.host", "postimages.org", "telegra.ph", "graph.org", "filemail.com"),
            *("*.filemail.com", "fromsmash.com", "*.swisstransfer.com", "swisstransfer.com"),
        ),
        needs_name=True,
    ),
    Carrier(
        "paste site",
        "anyone can write, and anyone can read",
        (
            *("pastebin.com", "paste.rs", "ix.io", "dpaste.com", "dpaste.org", "hastebin.com", "rentry.co"),
            *("rentry.org", "termbin.com", "paste.ee", "controlc.com", "privatebin.net", "*.privatebin.net"),
            *("sprunge.us", "ghostbin.com", "0bin.net", "paste.debian.net", "bpaste.net", "bpa.st", "pastes.io"),
            *(
                "paste.mozilla.org",
                "paste.centos.org",
                "paste.ubuntu.com",
                "paste.opensuse.org",
                "paste.fedoraproject.org",
            ),
            *("pastebin.pl", "pastebin.ai", "paste2.org", "paste.gg", "pasteio.com", "justpaste.it", "friendpaste.com"),
            *("ideone.com", "glot.io", "jsfiddle.net", "codepen.io", "cl1p.net", "clbin.com", "p.ip.fi", "paste.sh"),
            *("pst.moe", "katb.in", "write.as", "txt.fyi", "nekobin.com", "del.dog"),
            *(
                "jsonbin.io",
                "api.jsonbin.io",
                "jsonblob.com",
                "api.npoint.io",
                "kvdb.io",
                "keyvalue.xyz",
                "extendsclass.com",
            ),
            *("api.restful-api.dev", "jsonkeeper.com", "textbin.net", "snippet.host", "dumpz.org", "pastecode.io"),
        ),
        needs_name=True,
    ),
    Carrier(
        "chat or webhook",
        "a message carries whatever is in it",
        (
            *("slack.com", "*.slack.com", "hooks.slack.com", "discord.com", "discordapp.com", "*.discord.com"),
            *("canary.discord.com", "ptb.discord.com", "*.discordapp.com", "api.telegram.org", "*.webhook.office.com"),
            *(
                "outlook.office.com",
                "chat.googleapis.com",
                "hooks.zapier.com",
                "hook.integromat.com",
                "hook.*.make.com",
            ),
            *("maker.ifttt.com", "ntfy.sh", "api.pushover.net", "api.pushbullet.com"),
            *("open.feishu.cn", "open.larksuite.com", "oapi.dingtalk.com", "qyapi.weixin.qq.com", "sctapi.ftqq.com"),
            *("api.twilio.com", "rest.nexmo.com", "graph.facebook.com", "api.line.me"),
            *("events.pagerduty.com", "*.logic.azure.com", "*.powerplatform.com", "webhooks.workato.com"),
        ),
        needs_name=True,
    ),
    Carrier(
        "request catcher",
        "it shows requests to whoever made the address",
        (
            *("webhook.site", "*.webhook.site", "webhook.cool", "*.webhook.cool", "requestbin.com", "*.requestbin.com"),
            *("requestbin.net", "*.requestbin.net", "*.m.pipedream.net", "*.pipedream.net", "requestcatcher.com"),
            *("*.requestcatcher.com", "requestrepo.com", "*.requestrepo.com", "hookbin.com", "hookdeck.com"),
            *("*.hookdeck.com", "hkdk.events", "smee.io", "typedwebhook.tools", "beeceptor.com", "*.beeceptor.com"),
            *("*.free.beeceptor.com", "mockbin.org", "*.mockbin.io", "*.mockapi.io", "ptsv2.com", "ptsv3.com"),
            *("postb.in", "www.postb.in", "postman-echo.com", "httpbin.org", "httpbin.dev", "*.x.pipedream.net"),
            *("*.oastify.com", "*.burpcollaborator.net", "*.burpcollaborator.me", "*.interact.sh", "*.interactsh.com"),
            *("*.oast.fun", "*.oast.pro", "*.oast.live", "*.oast.site", "*.oast.online", "*.oast.me", "*.oast.us"),
            *("canarytokens.com", "*.canarytokens.com", "canarytokens.org", "*.dnslog.cn", "*.ceye.io", "*.hyuga.co"),
            *(
                "*.dnsbin.zhack.ca",
                "*.bxss.me",
                "*.xss.ht",
                "*.ssrf.cloud",
                "*.eyes.sh",
                "*.dns.outbound.watchtowr.com",
            ),
            *("grabify.link", "iplogger.org", "*.iplogger.org", "blasze.com", "webhookrelay.com", "*.webhookrelay.com"),
            *("svix.com", "play.svix.com", "*.mockoon.app", "pipedream.com", "*.pipedream.com"),
        ),
        needs_name=True,
    ),
    Carrier(
        "tunnel",
        "it leads to someone's own machine",
        (
            *("*.ngrok.io", "*.ngrok.app", "*.ngrok.dev", "*.ngrok-free.app", "*.ngrok-free.dev", "*.ngrok.pizza"),
            *("*.ngrok.com", "*.trycloudflare.com", "*.cfargotunnel.com", "*.argotunnel.com", "*.loca.lt"),
            *("*.localtunnel.me", "*.serveo.net", "serveo.net", "*.serveousercontent.com", "*.localhost.run"),
            *("localhost.run", "ssh.localhost.run", "*.lhr.life", "*.lhr.rocks", "*.lhrtunnel.link", "*.pinggy.io"),
            *("*.pinggy.link", "*.pinggy.online", "*.a.pinggy.link", "*.tunnelmole.net", "*.bore.pub", "bore.pub"),
            *("*.devtunnels.ms", "*.tunnels.api.visualstudio.com", "*.rel.tunnels.api.visualstudio.com"),
            *("*.ts.net", "*.telebit.io", "*.telebit.cloud", "*.portmap.io", "*.portmap.host", "*.playit.gg"),
            *("*.zrok.io", "*.share.zrok.io", "*.packetriot.net", "*.pktriot.net", "*.localxpose.io", "*.loclx.io"),
            *("*.webhookrelay.io", "*.beame.io", "*.jprq.io", "*.jprq.live", "*.expose.dev", "*.sharedwithexpose.com"),
            *("*.remote.it", "*.remote.moe", "*.nport.link", "*.gradio.live", "*.cloudpub.ru", "*.cpolar.cn"),
            *("*.cpolar.io", "*.natapp.cc", "*.natappfree.cc", "*.tunnelto.dev", "*.btunnel.co.in"),
            *("*.app.github.dev", "*.preview.app.github.dev", "*.gitpod.io", "*.ws.gitpod.io", "*.csb.app"),
        ),
        needs_name=True,
    ),
    Carrier(
        "URL shortener",
        "it leads anywhere, keeps the address that was given, and counts who asks",
        (
            *("bit.ly", "api-ssl.bitly.com", "tinyurl.com", "api.tinyurl.com", "t.co", "goo.gl", "ow.ly", "is.gd"),
            *("v.gd", "buff.ly", "rb.gy", "cutt.ly", "shorturl.at", "t.ly", "tiny.cc", "rebrand.ly", "s.id", "bl.ink"),
            *("da.gd", "ulvis.net", "shrtco.de", "clck.ru", "qr.ae", "lnkd.in", "spoo.me", "dub.sh", "dub.co"),
        ),
        needs_name=True,
    ),
    Carrier(
        "package registry",
        "a package can be published there",
        (
            *("upload.pypi.org", "test.pypi.org", "registry.npmjs.org", "registry.yarnpkg.com", "rubygems.org"),
            *("crates.io", "registry-1.docker.io", "quay.io", "*.jfrog.io", "www.nuget.org", "npm.pkg.github.com"),
            *("*.pkg.github.com", "*.pkg.dev", "*.gcr.io", "*.azurecr.io", "*.dkr.ecr.*.amazonaws.com", "jsr.io"),
        ),
    ),
    Carrier(
        "mail",
        "a message carries whatever is in it",
        (
            *("smtp.gmail.com", "smtp.office365.com", "*.mail.protection.outlook.com", "api.sendgrid.com"),
            *("api.mailgun.net", "api.eu.mailgun.net", "api.postmarkapp.com", "gmail.googleapis.com", "api.resend.com"),
            *(
                "api.brevo.com",
                "api.mailjet.com",
                "api.sparkpost.com",
                "mandrillapp.com",
                "formspree.io",
                "formsubmit.co",
            ),
            *("api.web3forms.com", "api.emailjs.com", "api.smtp2go.com", "api.mailersend.com"),
        ),
        needs_name=True,
    ),
    Carrier(
        "names over HTTPS",
        "it asks DNS for any name, and a name can carry data",
        (
            *("dns.google", "dns.google.com", "dns64.dns.google", "cloudflare-dns.com", "*.cloudflare-dns.com"),
            *("one.one.one.one", "dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net"),
            *("doh.opendns.com", "dns.umbrella.com", "dns.adguard.com", "dns.adguard-dns.com", "*.adguard-dns.com"),
            *("dns.nextdns.io", "*.dns.nextdns.io", "doh.cleanbrowsing.org", "doh.mullvad.net", "dns.mullvad.net"),
            *("base.dns.mullvad.net", "freedns.controld.com", "dns.controld.com", "doh.dns.sb", "dns.alidns.com"),
            *("doh.pub", "dns.pub", "doh.360.cn", "doh.libredns.gr", "dns.switch.ch", "doh.applied-privacy.net"),
            *("mozilla.cloudflare-dns.com", "dns0.eu", "*.dns0.eu", "doh.li", "wikimedia-dns.org", "dnsforge.de"),
        ),
        needs_name=True,
    ),
    Carrier(
        "shared hosting",
        "anyone can have a name there",
        (
            *("*.github.io", "*.gitlab.io", "*.pages.dev", "*.workers.dev", "*.vercel.app", "*.netlify.app"),
            *("*.herokuapp.com", "*.onrender.com", "*.fly.dev", "*.web.app", "*.firebaseapp.com", "*.appspot.com"),
            *("*.run.app", "*.cloudfunctions.net", "*.azurewebsites.net", "*.cloudfront.net", "*.azureedge.net"),
            *("*.fastly.net", "*.b-cdn.net", "*.glitch.me", "*.repl.co", "*.replit.app", "*.replit.dev", "*.deno.dev"),
            *("*.execute-api.*.amazonaws.com", "*.lambda-url.*.on.aws", "*.elb.amazonaws.com", "*.azurefd.net"),
            *("*.trafficmanager.net", "*.up.railway.app", "*.surge.sh", "*.hf.space", "*.streamlit.app", "*.val.run"),
            *("*.web.val.run", "script.google.com", "script.googleusercontent.com", "*.bolt.host", "*.lovable.app"),
        ),
    ),
)
"""What such hosts are, why data can leave there, and their names."""


def carrier(host: str) -> tuple[str, str, str] | None:
    """The kind, the reason and the name of a host in the table that a rule's host reaches; the closest one."""
    found: list[tuple[int, tuple[str, str, str]]] = []
    for item in CARRIERS:
        if not any(fits(name, host) for name in item.not_these):
            found += [
                (len(name), (item.kind, item.why, name))
                for name in item.names
                if overlap(host, name) or fits(name, host)
            ]
    return max(found)[1] if found else None


def overlap(one: str, other: str) -> bool:
    """Whether two hosts, with or without `*.`, have a name in common."""
    if one == other:
        return True
    if one.startswith("*.") and (other.removeprefix("*").endswith(one[1:])):
        return True
    return other.startswith("*.") and one.removeprefix("*").endswith(other[1:])


@lru_cache(maxsize=1024)
def reserved(host: str) -> tuple[Carrier, str] | None:
    """The kind of a host that only a rule that names it opens, and the entry of the table that is closest to it."""
    found: list[tuple[int, Carrier, str]] = []
    for item in CARRIERS:
        if item.needs_name and not any(fits(name, host) for name in item.not_these):
            found += [(len(name), item, name) for name in item.names if fits(name, host)]
    if not found:
        return None
    _length, item, name = max(found, key=lambda entry: entry[0])
    return item, name


def names(rule_host: str, host: str) -> bool:
    """Return True if a rule with this host, which may have a star, opens `host` as far as the table has a say.

    It does if the table does not know `host`, if the rule names it whole, or if the rule is as narrow as the entry.
    """
    if rule_host == host or (known := reserved(host)) is None:
        return True
    _item, name = known
    return _names_entry(rule_host, name)


def opens_more(outer: str, inner: str) -> bool:
    """Return True if a rule for `inner` opens a host of the table that the wider rule for `outer` leaves closed."""
    if outer == inner or not outer.startswith("*"):
        return False
    if not inner.startswith("*"):
        return not names(outer, inner)
    opened = [name for item in CARRIERS if item.needs_name for name in item.names if _names_entry(inner, name)]
    return any(not _names_entry(outer, name) for name in opened)


def _names_entry(rule_host: str, name: str) -> bool:
    """Return True if a rule with a star opens the hosts of this entry."""
    return rule_host == name or (name.startswith("*.") and "*" not in name[2:] and _is_within(rule_host, name))


def guarded(host: str) -> Carrier | None:
    """The kind of a host that takes no credential but the policy's, unless a rule says otherwise."""
    known = reserved(host)
    return known[0] if known and known[0].guarded else None


def _is_within(rule_host: str, name: str) -> bool:
    return rule_host != "*" and rule_host.removeprefix("*").endswith(name[1:])


def fits(name: str, host: str) -> bool:
    """Return True if an entry of the table means this host, which has no star."""
    if "*" not in name:
        return name == host
    if name.startswith("*.") and "*" not in name[2:]:
        return host.endswith(name[1:])
    return _pattern(name).match(host) is not None


@cache
def _pattern(name: str) -> Pattern:
    inner = name.removeprefix("*.")
    text = inner.replace(".", r"\.").replace("*", "[a-z0-9_-]+")
    return Pattern((r"(?:[a-z0-9_-]+\.)+" if inner != name else "") + text + r"\Z")
