"""Files that hold credentials and the names that presets deny them by: what is hidden, and what must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.policy.globs import DenyGlobs
from belljar.policy.load.resolve import resolve
from belljar.policy.presets import preset_names


def _words(text: str) -> list[str]:
    return text.split()


HIDDEN = _words("""
.env .env.production .env.dev.local .envrc .ssh/config id_rsa keys/id_ed25519.pub .gnupg/x .aws/credentials
.azure/msal_token_cache.json .config/gcloud/credentials.db .kube/config .docker/config.json .netrc .npmrc .pypirc
.git-credentials .config/gh/hosts.yml .claude/.credentials.json .claude.json .codex/auth.json
.gemini/oauth_creds.json .config/github-copilot/apps.json .local/share/opencode/auth.json .pgpass .my.cnf
.mylogin.cnf .snowsql/config .databrickscfg .dbt/profiles.yml kubeconfig deploy/kubeconfig prod.kubeconfig
kubeconfig.yaml k3s.yaml talosconfig .minikube/ca.key .vault-token .terraform.d/credentials.tfrc.json .terraformrc
.pulumi/credentials.json .vault_pass.txt .boto .s3cfg rclone.conf .config/rclone/rclone.conf .oci/config
.aliyun/config.json .fly/config.yml .cloudflared/cert.pem .dev.vars .config/doctl/config.yaml
.config/configstore/firebase-tools.json .config/containers/auth.json .dockercfg
application_default_credentials.json service-account.json app/serviceAccountKey.json client_secret.json
client_secret_1-x.apps.googleusercontent.com.json .streamlit/secrets.toml config/master.key
config/credentials/prod.key .microsoft/usersecrets/x/secrets.json .cargo/credentials .cargo/credentials.toml
.m2/settings.xml .m2/settings-security.xml .gradle/gradle.properties .sbt/.credentials .gem/credentials
.composer/auth.json .config/pypoetry/auth.toml .config/git/credentials .gitcookies .subversion/auth/svn.simple/x
.sentryclirc .kaggle/kaggle.json .cache/huggingface/token ssh_host_ed25519_key key.ppk privkey.pem privkey1.pem
AuthKey_ABC123.p8 cosign.key age.agekey .config/sops/age/keys.txt sops/age/keys.txt upload-keystore.jks
my-release-key.keystore keystore.properties android/key.properties secring.gpg passwords.kdbx office.ovpn
.password-store/x.gpg .lpass/key .config/op/config .authinfo _netrc .htpasswd .smbcredentials .msmtprc
.erlang.cookie .ethereum/keystore/x wallet.dat .mozilla/firefox/x/logins.json .config/chromium/Default/Cookies
.env~ .env.bak .env.old .env.swp .bash_history .psql_history
.snowflake/connections.toml .wrangler/config/default.toml .config/.wrangler/config/default.toml .supabase/access-token
.config/supabase/access-token .local/share/amp/secrets.json .kiro/credentials.json .hermes/auth.json
.passwd-s3fs .bluemix/config.json .circleci/cli.yml ewallet.p12
""")

SHOWN = _words("""
.env.example .env.template .envs/readme env.py id_token.py id_rs.go app/ssh.py aws.py .awsrc docker/config.json
.dockerignore config.json .docker/Dockerfile npmrc.md .nvmrc .yarnrc.yml .gitignore .gitattributes
.github/workflows/ci.yml .config/app.toml .claude/settings.json .claude/commands/x.md .codex/config.toml
.gemini/settings.json my.cnf pgpass.md kubeconfig.go kubeconfig_test.go pkg/kube/config.go .terraform/modules/x
main.tf terraform.tfvars .terraform.lock.hcl vault.go .cargo/config.toml .cargo/config .m2/wrapper.properties
settings.xml gradle.properties gradle/wrapper/gradle-wrapper.jar build.sbt credentials.py credentials.json
auth.json secrets.py secrets.yaml config/credentials.yml.enc config/secrets.yml cert.pem ca.pem server.key
public.pem test.jks truststore.jks debug.keystore src/test/resources/server.p12 keystore.go service-account.yaml
serviceaccount.go account.json client.json .streamlit/config.toml profiles.yml .circleci/config.yml .sbtopts
.wrangler/state/v3/x .supabase/config.toml .kiro/steering/product.md
.ruby-version Gemfile composer.json .composer/cache/x tokens.py token.json huggingface/tokenizer.json
config/op.yaml wallet.py key.properties .mozconfig chromium/README .secrets.baseline .htaccess age.py keys.txt
""")


@pytest.mark.parametrize("preset", [name for name in preset_names() if name != "unrestricted"])
def test_credentials_are_hidden_and_other_files_are_not(preset: str) -> None:
    """In every preset, at the top of a project and in it."""
    globs = DenyGlobs(resolve(preset, managed=None).fs.deny_globs)
    for place in ("/workspace", "/workspace/a/b"):
        assert [path for path in HIDDEN if globs.match(f"{place}/{path}") is None] == []
        assert [path for path in SHOWN if globs.match(f"{place}/{path}") is not None] == []


def test_a_project_that_holds_them(tmp_path: Path) -> None:
    """Code sees the other files, and none of these."""
    for path in (*HIDDEN, *SHOWN):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    with Sandbox(workspace=str(tmp_path)) as jar:
        result = jar.run(
            "import os\nfor top, _, names in os.walk('.'):\n for name in names: print(os.path.join(top, name)[2:])"
        )
    assert sorted(result.stdout.split()) == sorted(SHOWN)


def test_every_pattern_says_why() -> None:
    """The page of presets shows it."""
    lines = Path("src/belljar/policy/presets/aicode.yaml").read_text().splitlines()
    items = [line.strip() for line in lines if line.startswith("    - '")]
    assert len(items) > 90
    assert [item for item in items if "'  # " not in item] == []
