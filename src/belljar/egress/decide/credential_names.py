"""The names by which headers and query keys are known to carry credentials. Pure data and small decisions, 2026-11.

A service may use any name. So besides those of known services, a name counts that is made like one (`x-shop-api-token`,
`accessToken`), unless it is known to be something else, such as a page's cursor. A key inside of a path or of a body is
not seen.
"""

from __future__ import annotations

import re

_HEADERS = frozenset(
    (
        # What HTTP and its kin define, and what gateways take in its stead
        *(
            b"authorization",
            b"x-authorization",
            b"auth",
            b"x-auth",
            b"dpop",
            b"key",
            b"x-key",
            b"api-key",
            b"x-api-key",
        ),
        # Google: API keys; Cloud Run takes this one where Authorization is another's; grants of IAM
        *(b"x-goog-api-key", b"x-serverless-authorization", b"x-goog-iam-authorization-token"),
        # Amazon and Microsoft: keys of subscriptions and functions, and tokens of sessions
        *(b"x-amz-security-token", b"x-ms-token", b"x-functions-key", b"ocp-apim-subscription-key"),
        # Cloudflare: the older pair of a key and its owner, and Access for services; Vercel: a way past its login
        *(b"x-auth-key", b"x-auth-email", b"cf-access-client-id", b"x-vercel-protection-bypass"),
        # Code hosts and registries
        *(b"private-token", b"job-token", b"deploy-token", b"x-gitlab-token", b"x-jfrog-art-api", b"x-nuget-apikey"),
        # Others whose names say little
        *(b"x-subscription-token", b"dd-api-key", b"dd-application-key", b"x-algolia-api-key", b"x-session-token"),
    )
)
_HEADER_WORDS = frozenset(
    (
        *(b"authorization", b"auth", b"token", b"apikey", b"secret", b"password", b"passwd", b"bearer", b"jwt"),
        *(b"credential", b"credentials", b"passphrase"),
    )
)
_HEADER_ENDS = (b"-key", b"token", b"apikey", b"secret", b"password", b"authorization")
_OTHER_HEADERS = frozenset(
    (
        # Against forged forms: given by the same host
        *(b"csrf-token", b"x-csrf-token", b"xsrf-token", b"x-xsrf-token", b"x-csrftoken", b"x-csrf-key"),
        # To do a thing once
        *(b"idempotency-key", b"x-idempotency-key", b"x-client-token", b"client-token", b"x-request-key"),
        # Part of the protocol, of paging, of caches, of a client's own encryption
        *(b"sec-websocket-key", b"x-ms-continuation-token", b"x-continuation-token", b"x-next-token", b"x-page-token"),
        *(b"x-sync-token", b"x-ms-session-token", b"surrogate-key", b"cache-key", b"x-cache-key", b"x-partition-key"),
        *(b"x-goog-encryption-key", b"x-amz-server-side-encryption-customer-key", b"x-ms-encryption-key"),
    )
)

_QUERY_KEYS = frozenset(
    (
        *("accesstoken", "apikey", "apitoken", "authtoken", "oauthtoken", "privatetoken", "jobtoken", "authorization"),
        *("clientsecret", "clientassertion", "subscriptionkey", "xapikey", "bearertoken", "idtoken", "refreshtoken"),
        # Signed URLs: Amazon's, Google's, Azure's
        *("xamzcredential", "xamzsignature", "xamzsecuritytoken", "xgoogcredential", "xgoogsignature"),
        *("awsaccesskeyid", "googleaccessid", "signature", "sig", "appkey", "appsecret"),
        # Google takes any header of a request, Authorization among them, from `$httpHeaders`
        "httpheaders",
    )
)
_QUERY_ENDS = ("token", "secret", "apikey", "password", "credential", "accesskey", "secretkey", "authkey", "jwt")
_OTHER_QUERY_KEYS = frozenset(
    (
        *("pagetoken", "nextpagetoken", "nexttoken", "continuationtoken", "synctoken", "csrftoken"),
        *("xsrftoken", "cursortoken", "clienttoken", "resumetoken"),
    )
)
_GENERIC_QUERY_KEYS = frozenset(("key", "k", "auth", "pass", "pwd", "code", "appid", "bearer"))
"""Names for anything: a credential at an API that belljar knows, elsewhere if the value looks like one."""
_LIKE_A_KEY = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_.~+/=-]{16,}\Z")


def is_credential_header(name: bytes) -> bool:
    """Return True if a header, by its name in small letters with dashes, carries a credential."""
    if name in _HEADERS:
        return True
    if name in _OTHER_HEADERS:
        return False
    return name.endswith(_HEADER_ENDS) or not _HEADER_WORDS.isdisjoint(name.split(b"-"))


def is_credential_key(key: str, value: str, *, at_known_api: bool) -> bool:
    """Return True if a key of a query, decoded, carries a credential."""
    name = "".join(character for character in key.lower() if character.isalnum())
    if name in _GENERIC_QUERY_KEYS:
        return at_known_api or _LIKE_A_KEY.match(value) is not None
    if name in _QUERY_KEYS:
        return True
    return name.endswith(_QUERY_ENDS) and name not in _OTHER_QUERY_KEYS
