"""The names that tools on the host act upon: a table, and what is ordinary source and comes back."""

from __future__ import annotations

import re

import pytest

from belljar.sandbox.files.trusted_names import acted_upon, entries, in_bytecode, link_acted_upon

REFUSED = """
    .mvn/extensions.xml .mvn/jvm.config mvnw gradlew gradle/wrapper/gradle-wrapper.jar .bsp/sbt.json
    .bloop/x.json .metals/x .sbtopts .jvmopts tools/bazel .bazelrc .bazelversion .bazeliskrc .buckconfig
    .pants.rc rust-toolchain rust-toolchain.toml .cargo/config.toml rust-analyzer.toml .vim/coc-settings.json
    .nvim.lua .lazy.lua .exrc .dir-locals.el .SpaceVim.d/init.vim .ycm_extra_conf.py app.sublime-project
    .idea/workspace.xml .run/x.xml .zed/tasks.json .helix/languages.toml x.suo eslint.config.js
    eslint.config.mjs eslint.config.ts .eslintrc .eslintrc.js .eslintrc.json .prettierrc prettier.config.cjs
    .stylelintrc.js tslint.json .pylintrc pylintrc .flake8 mypy.ini .rubocop.yml .php-cs-fixer.php
    .golangci.yml .lintr .formatter.exs .luarc.json hie.yaml .clangd compile_commands.json .phpactor.json
    omnisharp.json svelte.config.js .openhands/setup.sh .kilocode/mcp.json .factory/settings.json gptme.toml
    .goosehints .windsurfrules .junie/x .kiro/x .trae/rules.md .opencode/x .amazonq/x .cursorignore WARP.md
    .deepagents/hooks.json .takt/config.yaml reasonix.toml .bob/skills/x/SKILL.md .pochi/x .commandcode/x .adal/x
    .autohand/x .codestudio/x .kimi-code/x .aiassistant/rules/x.md QWEN.local.md rulesync.local.jsonc .devinignore
    CRUSH.md SKILL.md .vscode/mcp.json mcp.json .claude-plugin/p x.pth lib/site-packages/evil.pth
    sitecustomize.py usercustomize.py .venv/pyvenv.cfg .venv/bin/python venv/bin/activate a/b.pyc
    jupyter_server_config.py .ipython/profile_default/startup/x.py .ropeproject/config.py .tool-versions
    .python-version .nvmrc .node-version .ruby-version .sdkmanrc .mise.toml mise.production.toml .rtx.toml
    .envrc .autoenv .bashrc .zshenv .profile .ssh/authorized_keys authorized_keys .config/autostart/x
    .local/bin/ls .netrc .curlrc .gdbinit foo-gdb.py .lldbinit .Rprofile .RData .irbrc .iex.exs .ghci
    .latexmkrc startup.m .husky/pre-commit .lintstagedrc.json lint-staged.config.js commitlint.config.js
    lefthook-local.yml .gitconfig .sops.yaml .hg/hgrc .hgsub .repo/manifest.xml .svn/x .terraform/x
    ansible.cfg .aws/config .kube/config .docker/config.json .npmrc bunfig.toml .pnp.cjs .yarn/sdks/x
    .bundle/config pip.conf nuget.config global.json .swiftpm/x .directory x.desktop desktop.ini .user.ini
    .htaccess .github/workflows/ci.yml .gitlab-ci.yml .circleci/config.yml .woodpecker.yml renovate.json
    .mergify.yml azure-pipelines-release.yml build.jenkinsfile .zuul.d/jobs.yaml netlify.toml
"""

COMES_BACK = """
    Makefile conftest.py tests/conftest.py setup.py pyproject.toml package.json package-lock.json Cargo.toml
    build.rs CMakeLists.txt Dockerfile docker-compose.yml build.gradle pom.xml build.sbt tsconfig.json
    vite.config.ts webpack.config.js jest.config.js go.mod Gemfile Rakefile Justfile requirements.txt tox.ini
    setup.cfg pytest.ini ruff.toml .editorconfig .gitignore .gitattributes .dockerignore README.md
    docs/agents.md.txt src/mvnw.py src/eslint.py model.pt weights.bin .github/CODEOWNERS
    .github/ISSUE_TEMPLATE/bug.md tools/build.py tools/bazel.md hooks/pre-commit gradle/libs.versions.toml
    data/x.path bin/run src/config/settings.py site-packages.txt vim/x venv.py notes/.hidden Project.swift
    x.csproj
"""


@pytest.mark.parametrize("path", REFUSED.split())
def test_refused(path: str) -> None:
    """At the top and below, in any case, as a file, as a link, and if it is deleted."""
    for form in (path, f"sub/dir/{path}", path.upper(), f"sub/{path.title()}"):
        for kind in ("added", "modified", "deleted", "mode"):
            assert acted_upon(form, is_directory=False, kind=kind), (form, kind)
    assert link_acted_upon("innocent", path)


@pytest.mark.parametrize("path", COMES_BACK.split())
def test_ordinary_source_comes_back(path: str) -> None:
    """What a user builds, tests or installs on purpose is their code."""
    for form in (path, f"sub/dir/{path}"):
        for kind in ("added", "modified", "deleted"):
            assert acted_upon(form, is_directory=False, kind=kind) == ""


def test_every_entry_has_a_reason_and_works() -> None:
    """It refuses what it says, and nobody wrote it twice."""
    table = entries()
    assert len(table) > 500
    for name, who, what in table:
        assert name == name.lower()
        assert who, name
        assert what.startswith(("it ", "an editor ")), name
        assert re.fullmatch(r"[^/\s|]+(/[^/\s|*]+)?/?", name), name
        path = name.replace("*", "x") + ("file" if name.endswith("/") else "")
        assert "on the host would act on it" in acted_upon(f"sub/{path}", is_directory=False), name
    names = [entry.name for entry in table]
    assert sorted(names) == sorted(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_a_directory_that_is_merely_there() -> None:
    """Makes no tool act, but to delete one does, and a link in its place does."""
    for path in (".mvn", ".github", ".github/workflows", "tools", ".venv", ".venv/bin"):
        assert acted_upon(path, is_directory=True) == ""
    for path in (".mvn", ".github", ".github/workflows", ".venv/bin"):
        assert acted_upon(path, is_directory=True, kind="deleted")


BYTECODE = [
    ("src/__pycache__/x.cpython-311.pyc", "src/__pycache__"),
    ("__pycache__/bundle.cpython-311", "__pycache__"),
    ("a/__PyCache__/b/c", "a/__PyCache__"),
    ("a/__pycache__", "a/__pycache__"),
    ("a/__pyca\u200cche__/x", "a/__pyca\u200cche__"),
    ("a/__pyca\u00adche__/x", "a/__pyca\u00adche__"),
    ("a/__pycache__\U000e0100/x", "a/__pycache__\U000e0100"),
    ("a/__pycache__.py", ""),
    ("a/b", ""),
]


@pytest.mark.parametrize(("path", "directory"), BYTECODE)
def test_bytecode(path: str, directory: str) -> None:
    """Everything in a `__pycache__`, whatever it is called."""
    assert in_bytecode(path) == directory
    if directory:
        assert acted_upon(path, is_directory=False)


def test_data_of_git() -> None:
    """Nothing of a repository comes back as files."""
    for path in (".git/HEAD", ".git/objects/ab/cd", "sub/.git/refs/heads/main", ".git/objects/.git/config"):
        assert acted_upon(path, is_directory=False)
    assert acted_upon(".git", is_directory=True)


def test_deep_paths_are_judged_in_no_time() -> None:
    """A tree may be 200 directories deep, with a hundred thousand files: each directory is looked at once."""
    deep = "/".join(["info"] * 190)
    for number in range(20_000):
        assert acted_upon(f"{deep}/{number}", is_directory=False) == ""
