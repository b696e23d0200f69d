"""Made-up values of every kind, from a seed. None of them is anybody's: they are random, and no file holds them.

What the corpus needs is written here independently of belljar's own patterns: from the vendors' and countries' rules.
"""

# ruff: noqa: E501, SIM905 (rows of tables)

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

LETTERS, DIGITS, UPPER, LOWER = string.ascii_letters, string.digits, string.ascii_uppercase, string.ascii_lowercase
ALNUM = LETTERS + DIGITS
HEX = "0123456789abcdef"
URL_SAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"
FIRST = "anna ben carla david elif farid greta hugo ines jonas kira luis maria nadia olaf petra quentin rosa sven tara".split()
LAST = "berger costa dubois eriksen fischer garcia hansen ito jansen kowalski lopez meyer novak okafor petrov rossi".split()
HOSTS = "example.com example.org mail.example.net firma.de corp.example.co.uk univ.example.edu startup.io team.dev bank.ch".split()
WORDS = (
    "amber brook cedar delta ember frost grove harbor island jasper kettle lantern meadow north orchid pepper".split()
)


class Values:
    """A source of made-up values; the same seed, the same values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, letters: str, length: int) -> str:
        return "".join(self.random.choices(letters, k=length))

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def make(self, name: str) -> str:
        return str(getattr(self, name)())

    # --- secrets -----------------------------------------------------------------------------------------------------

    def private_key(self) -> str:
        kind = self.pick("RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "DSA ")
        lines = [self.some(BASE64, 64) for _ in range(self.random.randint(3, 26))]
        if kind == "RSA " and self.random.random() < 0.3:
            lines = ["Proc-Type: 4,ENCRYPTED", f"DEK-Info: AES-128-CBC,{self.some('0123456789ABCDEF', 32)}", "", *lines]
        body = "\n".join([*lines, self.some(BASE64, self.random.randint(10, 60)) + self.pick("", "=", "==")])
        return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"

    def private_key_inline(self) -> str:
        return self.private_key().replace("\n", "\\n")

    def pgp_key(self) -> str:
        body = "\n".join(self.some(BASE64, 64) for _ in range(12))
        return f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{body}\n={self.some(BASE64, 4)}\n-----END PGP PRIVATE KEY BLOCK-----"

    def token(self) -> str:
        form: Callable[[], str] = self.random.choice(
            [
                lambda: self.pick("AKIA", "ASIA") + self.some(UPPER + "234567", 16),
                lambda: self.pick("ghp_", "gho_", "ghs_", "ghu_") + self.some(ALNUM, 36),
                lambda: "github_pat_" + self.some(ALNUM, 22) + "_" + self.some(ALNUM, 59),
                lambda: "glpat-" + self.some(URL_SAFE[:-2] + "_", 20),
                lambda: f"xoxb-{self.some(DIGITS, 12)}-{self.some(DIGITS, 13)}-{self.some(ALNUM, 24)}",
                lambda: (
                    f"xoxp-{self.some(DIGITS, 12)}-{self.some(DIGITS, 12)}-{self.some(DIGITS, 12)}-{self.some(HEX, 32)}"
                ),
                lambda: self.pick("sk_live_", "sk_test_", "rk_live_") + self.some(ALNUM, self.random.choice([24, 99])),
                lambda: "sk-ant-api03-" + self.some(URL_SAFE, 93) + "AA",
                lambda: "sk-proj-" + self.some(URL_SAFE, self.random.choice([48, 156])),
                lambda: "sk-" + self.some(ALNUM, 48),
                lambda: "AIza" + self.some(URL_SAFE, 35),
                lambda: "ya29." + self.some(URL_SAFE, 120),
                lambda: "npm_" + self.some(ALNUM, 36),
                lambda: "pypi-" + "AgEIcHlwaS5vcmc" + self.some(URL_SAFE, 140),
                lambda: "hf_" + self.some(LETTERS, 34),
                lambda: f"SG.{self.some(URL_SAFE, 22)}.{self.some(URL_SAFE, 43)}",
                lambda: "SK" + self.some(HEX, 32),
                lambda: f"{self.some(DIGITS[1:], 10)}:AA{self.some(URL_SAFE, 33)}",
                lambda: "dop_v1_" + self.some(HEX, 64),
                lambda: "shpat_" + self.some(HEX, 32),
                lambda: "dapi" + self.some(HEX, 32),
                lambda: "hvs." + self.some(ALNUM, 90),
                lambda: "glsa_" + self.some(ALNUM, 32) + "_" + self.some(HEX, 8),
                lambda: "dckr_pat_" + self.some(URL_SAFE[:-2] + "-", 27),
                lambda: "lin_api_" + self.some(ALNUM, 40),
                lambda: self.some(HEX, 32) + f"-us{self.random.randint(1, 21)}",
                lambda: "key-" + self.some(HEX, 32),
                lambda: "tskey-auth-" + self.some(ALNUM, 17) + "-" + self.some(ALNUM, 32),
                lambda: "gsk_" + self.some(ALNUM, 52),
                lambda: "AGE-SECRET-KEY-1" + self.some("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
            ]
        )
        # One that ends in a sign would be a matter of opinion where it ends.
        value = form()
        return value[:-1] + "a" if value[-1] in "-_" else value

    def slack_hook(self) -> str:
        return f"T{self.some(UPPER + DIGITS, 8)}/B{self.some(UPPER + DIGITS, 10)}/{self.some(ALNUM, 24)}"

    def jwt(self) -> str:
        def part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()

        header = part({"alg": self.pick("HS256", "RS256", "ES256"), "typ": "JWT"})
        claims = part(
            {"sub": self.some(DIGITS, 10), "name": self.name(), "iat": self.random.randint(15 * 10**8, 18 * 10**8)}
        )
        return f"{header}.{claims}.{self.some(ALNUM, 43)}"

    def url_password(self) -> str:
        return self.pick(
            self.some(ALNUM, 12),
            self.some(ALNUM + "!$*-_.", 15) + "x",
            self.pick(*WORDS) + self.some(DIGITS, 3),
            self.pick(*WORDS),
        )

    def password(self) -> str:
        word = self.pick(*WORDS)
        return self.pick(
            word.capitalize() + self.some(DIGITS, 4) + self.pick("!", "?", "#", ""),
            self.some(ALNUM, 14) + self.pick("!", "#", "7"),
            self.some(ALNUM + "!#%*-_+^", 20) + "9a",
            word + self.some(DIGITS, 2),
            f"{word}-{self.pick(*WORDS)}-{self.some(DIGITS, 4)}",
            "P@ss" + self.some(DIGITS, 4),
        )

    def secret(self) -> str:
        return self.pick(
            self.some(HEX, 32), self.some(HEX, 64), self.some(BASE64, 40), self.some(ALNUM, 24), self.uuid(),
            self.some(URL_SAFE, 32) + "3", self.some(BASE64, 43) + "=", self.some(ALNUM, 20),
        )  # fmt: skip

    def basic(self) -> str:
        return base64.b64encode(f"{self.pick(*FIRST)}:{self.some(ALNUM, 12)}".encode()).decode()

    # --- personal data -----------------------------------------------------------------------------------------------

    def email(self) -> str:
        first, last, host = self.pick(*FIRST), self.pick(*LAST), self.pick(*HOSTS)
        return self.pick(
            f"{first}.{last}@{host}", f"{first}@{host}", f"{first[0]}{last}{self.random.randint(1, 99)}@{host}",
            f"{first}+{self.pick(*WORDS)}@{host}", f"{first}_{last}@{host}", f"{last.upper()}@{host.upper()}",
            f"{first}-{last}@{self.pick(*WORDS)}.{host}", f"{first}.o'{last}@{host}",
        )  # fmt: skip

    def phone(self) -> str:
        digit, r = self.some, self.random
        area, exchange = str(r.randint(201, 989)), str(r.randint(200, 999))
        return self.pick(
            f"+1 {area} {exchange} {digit(DIGITS, 4)}", f"+1 ({area}) {exchange}-{digit(DIGITS, 4)}",
            f"+1-{area}-{exchange}-{digit(DIGITS, 4)}", f"+1{area}{exchange}{digit(DIGITS, 4)}",
            f"({area}) {exchange}-{digit(DIGITS, 4)}", f"{area}-{exchange}-{digit(DIGITS, 4)}",
            f"{area}.{exchange}.{digit(DIGITS, 4)}", f"1-{area}-{exchange}-{digit(DIGITS, 4)}",
            f"+44 20 {digit(DIGITS[1:], 4)} {digit(DIGITS, 4)}", f"+44 7{digit(DIGITS, 3)} {digit(DIGITS, 6)}",
            f"020 {digit(DIGITS[1:], 4)} {digit(DIGITS, 4)}", f"07{digit(DIGITS, 3)} {digit(DIGITS, 6)}",
            f"+49 30 {digit(DIGITS[1:], 6)}", f"+49 (0)89 {digit(DIGITS[1:], 7)}", f"+49 171 {digit(DIGITS[1:], 7)}",
            f"+33 {r.randint(1, 7)} {' '.join(digit(DIGITS, 2) for _ in range(4))}",
            f"0{r.randint(1, 7)} {' '.join(digit(DIGITS, 2) for _ in range(4))}",
            f"+34 6{digit(DIGITS, 2)} {digit(DIGITS, 3)} {digit(DIGITS, 3)}", f"+39 06 {digit(DIGITS[1:], 7)}",
            f"+41 44 {digit(DIGITS[1:], 3)} {digit(DIGITS, 2)} {digit(DIGITS, 2)}",
            f"+91 9{digit(DIGITS, 4)} {digit(DIGITS, 5)}", f"+81-3-{digit(DIGITS[1:], 4)}-{digit(DIGITS, 4)}",
            f"+86 138 {digit(DIGITS, 4)} {digit(DIGITS, 4)}", f"+55 11 9{digit(DIGITS, 4)}-{digit(DIGITS, 4)}",
            f"+61 4{digit(DIGITS, 2)} {digit(DIGITS, 3)} {digit(DIGITS, 3)}", f"+31 6 {digit(DIGITS[1:], 8)}",
            f"+46 70 {digit(DIGITS, 3)} {digit(DIGITS, 2)} {digit(DIGITS, 2)}", f"+353 1 {digit(DIGITS[1:], 3)} {digit(DIGITS, 4)}",
            f"+{self.pick('420', '48', '351', '43', '32', '45')}{digit(DIGITS[1:], 9)}",
        )  # fmt: skip

    def phone_labelled(self) -> str:
        """What is a number only because a word beside it says so."""
        digit = self.some
        return self.pick(
            f"030 {digit(DIGITS[1:], 7)}", f"0171/{digit(DIGITS[1:], 7)}", f"{digit('23456789', 10)}", f"9{digit(DIGITS, 2)} {digit(DIGITS, 3)} {digit(DIGITS, 3)}",
            f"0049 89 {digit(DIGITS[1:], 6)}", f"04{digit(DIGITS, 2)} {digit(DIGITS, 3)} {digit(DIGITS, 3)}", self.phone(), f"555-{digit(DIGITS, 4)}",
        )  # fmt: skip

    def card(self) -> str:
        prefix, length = self.random.choice(
            [
                ("4", 16),
                ("4", 16),
                ("51", 16),
                ("55", 16),
                ("2221", 16),
                ("34", 15),
                ("37", 15),
                ("6011", 16),
                ("65", 16),
                ("3528", 16),
                ("36", 14),
                ("62", 16),
            ]
        )
        body = prefix + self.some(DIGITS, length - len(prefix) - 1)
        digits = next(body + check for check in DIGITS if _luhn(body + check) == 0)
        if length == 16:
            groups = [digits[place : place + 4] for place in range(0, 16, 4)]
        else:
            groups = [digits[:4], digits[4:10], digits[10:]]
        return self.pick(digits, " ".join(groups), "-".join(groups))

    def iban(self) -> str:
        country, form = self.random.choice(
            [("DE", "n18"), ("GB", "a4n14"), ("FR", "n10c11n2"), ("ES", "n20"), ("IT", "a1n10c12"), ("NL", "a4n10"), ("CH", "n5c12"),
             ("AT", "n16"), ("BE", "n12"), ("PL", "n24"), ("SE", "n20"), ("NO", "n11"), ("IE", "a4n14"), ("PT", "n21"), ("LU", "n3c13"), ("SA", "n2c18")]
        )  # fmt: skip
        account = ""
        for part in _parts(form):
            account += self.some({"n": DIGITS, "a": UPPER, "c": DIGITS + UPPER}[part[0]], int(part[1:]))
        number = int("".join(str(int(letter, 36)) for letter in account + country + "00"))
        whole = f"{country}{98 - number % 97:02}{account}"
        return self.pick(whole, " ".join(whole[place : place + 4] for place in range(0, len(whole), 4)))

    def national_id(self) -> str:
        r, digit = self.random, self.some
        dni = digit(DIGITS, 8)
        nie = digit(DIGITS, 7)
        start = r.randrange(3)
        nir = f"{r.randint(1, 2)}{r.randint(40, 99)}{r.randint(1, 12):02}{r.randint(10, 95)}{r.randint(1, 990):03}{r.randint(1, 999):03}"
        cpf = digit(DIGITS, 9)
        for _ in range(2):
            cpf += str(sum(int(d) * w for d, w in zip(cpf, range(len(cpf) + 1, 1, -1), strict=True)) * 10 % 11 % 10)
        ahv = "756" + digit(DIGITS, 9)
        ahv += str(-sum(int(d) * (1 if place % 2 == 0 else 3) for place, d in enumerate(ahv)) % 10)
        swede = f"{r.randint(40, 99)}{r.randint(1, 12):02}{r.randint(1, 28):02}{digit(DIGITS, 3)}"
        swede += next(check for check in DIGITS if _luhn(swede + check) == 0)
        letters = "TRWAGMYFPDXBNJZSQVHLCKE"
        return self.pick(
            f"{r.randint(100, 665)}-{r.randint(10, 99)}-{r.randint(1000, 9999)}",
            f"{self.pick('AB', 'CE', 'JK', 'PR', 'SW')}{digit(DIGITS, 6)}{self.pick(*'ABCD')}",
            f"JG {digit(DIGITS, 2)} {digit(DIGITS, 2)} {digit(DIGITS, 2)} C",
            dni + letters[int(dni) % 23], "XYZ"[start] + nie + letters[int(f"{start}{nie}") % 23],
            f"{nir}{97 - int(nir) % 97:02}", f"{cpf[:3]}.{cpf[3:6]}.{cpf[6:9]}-{cpf[9:]}",
            f"{ahv[:3]}.{ahv[3:7]}.{ahv[7:11]}.{ahv[11:]}", f"{swede[:6]}-{swede[6:]}",
        )  # fmt: skip

    def bsn(self) -> str:
        while True:
            value = self.some(DIGITS[1:], 9)
            if sum(int(d) * w for d, w in zip(value, (9, 8, 7, 6, 5, 4, 3, 2, -1), strict=True)) % 11 == 0:
                return value

    def ip(self) -> str:
        four = ".".join(str(self.random.randint(1, 254)) for _ in range(3))
        return self.pick(
            f"{self.random.choice([8, 23, 51, 81, 104, 151, 185, 203])}.{four}", f"10.{four}", f"192.168.{self.random.randint(0, 9)}.{self.random.randint(2, 254)}",
            f"2001:db8:{self.some(HEX[1:], 4)}::{self.some(HEX[1:], 4)}", f"fe80::{':'.join(self.some(HEX[1:], 4) for _ in range(4))}",
            ":".join(self.some(HEX[1:], 4) for _ in range(8)),
        )  # fmt: skip

    # --- what is none of these ---------------------------------------------------------------------------------------

    def name(self) -> str:
        return f"{self.pick(*FIRST).capitalize()} {self.pick(*LAST).capitalize()}"

    def word(self) -> str:
        return self.pick(*WORDS)

    def user(self) -> str:
        return self.pick(*FIRST)

    def uuid(self) -> str:
        digits = self.some(HEX, 32)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

    def sha1(self) -> str:
        return self.some(HEX, 40)

    def sha7(self) -> str:
        return self.some(HEX, 7)

    def sha256(self) -> str:
        return self.some(HEX, 64)

    def sha512(self) -> str:
        return self.some(BASE64, 86) + "=="

    def blob(self) -> str:
        return self.some(BASE64, self.random.randint(60, 400))

    def time(self) -> str:
        r = self.random
        return f"20{r.randint(20, 26)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}.{r.randint(0, 999):03}Z"

    def date(self) -> str:
        r = self.random
        return self.pick(
            f"20{r.randint(20, 26)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
            f"{r.randint(1, 28):02}.{r.randint(1, 12):02}.20{r.randint(20, 26)}",
            f"{r.randint(1, 12):02}/{r.randint(1, 28):02}/20{r.randint(20, 26)}",
        )

    def epoch(self) -> str:
        return self.pick(
            str(self.random.randint(16 * 10**8, 18 * 10**8)),
            str(self.random.randint(16 * 10**11, 18 * 10**11)),
            str(self.random.randint(16 * 10**17, 18 * 10**17)),
        )

    def version(self) -> str:
        return ".".join(str(self.random.randint(0, 40)) for _ in range(self.random.choice([2, 3, 3, 3])))

    def version4(self) -> str:
        return ".".join(str(self.random.randint(0, 140)) for _ in range(4))

    def number(self) -> str:
        return self.pick(
            self.some(DIGITS[1:], 3),
            self.some(DIGITS[1:], 6),
            self.some(DIGITS[1:], 9),
            self.some(DIGITS[1:], 12),
            f"{self.random.uniform(0, 9999):.4f}",
        )

    def id16(self) -> str:
        return self.some(DIGITS[1:], 1) + self.some(DIGITS, 15)

    def snowflake(self) -> str:
        return "1" + self.some(DIGITS, 18)

    def bad_card(self) -> str:
        digits = "4" + self.some(DIGITS, 14)
        digits += self.random.choice([check for check in DIGITS if _luhn(digits + check)])
        return self.pick(digits, " ".join(digits[place : place + 4] for place in range(0, 16, 4)))

    def bad_iban(self) -> str:
        iban = self.iban().replace(" ", "")
        return iban[:-1] + str((int(iban[-1], 36) + 1) % 10)

    def mac(self) -> str:
        return ":".join(self.some(HEX, 2) for _ in range(6))

    def hex32(self) -> str:
        return self.some(HEX, 32)

    def public_key(self) -> str:
        body = "\n".join(self.some(BASE64, 64) for _ in range(5))
        kind = self.pick("PUBLIC KEY", "CERTIFICATE", "RSA PUBLIC KEY", "CERTIFICATE REQUEST")
        return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"

    def not_jwt(self) -> str:
        return (
            base64.urlsafe_b64encode(
                json.dumps({"page": self.random.randint(1, 99), "after": self.some(ALNUM, 12)}).encode()
            )
            .rstrip(b"=")
            .decode()
        )


def _parts(form: str) -> list[str]:
    """`a4n14` as `a4`, `n14`."""
    parts: list[str] = []
    for letter in form:
        if letter.isalpha():
            parts.append(letter)
        else:
            parts[-1] += letter
    return parts


def _luhn(digits: str) -> int:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        number = int(digit) * (2 if place % 2 else 1)
        total += number - 9 if number > 9 else number
    return total % 10
