"""Hide secrets in what is kept or shown of a run: command lines, configurations, messages.

A secret is known in four ways:

    by name    --api-key V    HF_TOKEN=V    {"db_pass": "V"}    Authorization: Bearer V    ?page=2&token=V
    by form    hf_…  sk-…  ghp_…  AKIA…  eyJ….eyJ….…    https://me:V@host    -----BEGIN PRIVATE KEY-----
    by program mysql -pV    curl -u me:V    vault login V    (`ezpz.program_secrets`)
    by value   what a variable of the environment holds whose name is that of a secret

Names decide by their words, most of all by the last one: ``tokenizer`` and ``max_tokens`` are none, ``maxToken`` of 5
is none, ``hf_token`` is one. Patterns are compiled when a text first needs them, because every launch imports this.
"""

from __future__ import annotations

import os

from ezpz.program_secrets import NAMING, PROGRAMS, hidden_words, program_of

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from typing import Any

HIDDEN = "<redacted>"


def redact_argv(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return arguments without secrets; those that hold none come back letter for letter.

    Args:
        argv: The words of a command.
        environ: Where secret variables are looked up; by default this process's own environment.
    """
    return _Scrubber(environ).argv(argv)


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a text without secrets, such as a message, a shell's command or JSON; `redact_argv` knows more of words.

    Args:
        text: The text.
        environ: As for `redact_argv`.
    """
    return _Scrubber(environ).text(text)


def redact_config(config: object, name: str = "", environ: Mapping[str, str] | None = None) -> object:
    """Return a configuration as JSON can hold it: without secrets, foreign objects as their repr.

    Args:
        config: A mapping, a namespace or dataclass, a list, or a value.
        name: The name under which it was found.
        environ: As for `redact_argv`.
    """
    return _Scrubber(environ).config(config, name, _kind(name))


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return what secret variables hold, the longest first: neither numbers nor paths nor less than 8 characters."""
    values = set()
    for name, value in environ.items():
        if len(value) >= 8 and (kind := _kind(name)) in _STRONG and _hides(kind, value) and value not in HIDDEN:
            is_relative = "/" in value and "://" not in value and all(c.isalnum() or c in "-_./" for c in value)
            if not (_is_number(value) or _is_path(value) or (is_relative and not _is_random(value))):
                values.add(value)
    return sorted(values, key=len, reverse=True)


# Names. What a name's value has to be to be hidden is one of these kinds; none is "".

_PASSWORD = "password"  # noqa: S105  # anything, numbers too
_SECRET = "secret"  # noqa: S105  # any text
_KEY = "key"  # any text but numbers and paths
_HEADERS = "headers"  # of HTTP: the values of all but a few
_PROXY = "proxy"  # of a text such as me:V@host the part before the host
_LONG = "long"  # long texts in one word
_RANDOM = "random"  # long texts in one word that look random
_STRONG = frozenset((_PASSWORD, _SECRET, _KEY))


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What comes after the word that matters and changes nothing: API_KEY_2, HF_TOKEN_READ, private_key_pem.
_ENDINGS = _set("""
    pem der b64 base64 hex raw plain plaintext value val str string json hash encoded old new prod dev read write backup
""")
# What a name is about that ends so, whatever comes before: token_type, password_file, secret_name.
_ABOUT = _set("""
    file files path paths dir dirs folder name names length len size sizes count counts num type types kind policy
    required min max ttl timeout expiry expires expiration age enabled env var field fields column prompt stdin store
    manager service provider helper ring id ids index url uri endpoint regex pattern format version mode scheme method
    class embedding embeddings dropout dim dims head heads rate ratio lr prob weight weights loss mask limit budget
    usage used error errors ref refs arn
""")
# Names that begin so are switches and amounts: --no-auth, use_auth_token, max_token.
_SWITCHES = _set("""
    no not use using with without enable disable skip require requires allow is has need needs show print n num max min
    total per each avg mean
""")
_KEY_OF = _set("""
    api apis app access secret private priv priva ssh auth authentication encryption encrypt signing sign account master
    license licence deploy service wandb openai hf huggingface comet neptune anthropic mistral cohere gemini google gcp
    azure aws s3 subscription storage session client consumer gpg pgp rsa ssl tls host hmac jwt cookie rapid admin user
    shared bot
""")
_TOKENS_OF = _KEY_OF | _set(
    "bearer refresh id oauth github gitlab gh git slack discord telegram jira npm pypi security"
)
_PLAIN_KEY = _set("""
    sort primary foreign image img text label target input output metric monitor group cache dict hot short feature data
    column index field batch loss hash partition row lookup join map state prng rng random jax seed press down up legend
    config cfg option param params value query attn attention kv checkpoint model module layer log name type lang
    caption prompt response answer question chosen rejected messages content dataset split score reward time step order
    by root top parent child yaml train val test eval best sample instance item object meta metadata unique composite
    shuffle sampling ranking id dedup merge routing node edge entity relation vocab word token span region box mask
    class category domain source src tgt audio video frame depth camera sensor obs observation action env episode task
    chat conversation instruction system context passage document doc title url path file date timestamp default main
    other new old current last next prev first second any each extra optional required missing invalid unknown expected
    unexpected nested flat full long
""")
_PLAIN_TOKEN = _set("""
    pad padding eos bos sos unk unknown mask masked sep separator cls special start end begin stop image img video audio
    vision last first next prev previous single sub input output prompt completion generated text word char byte eot
    eod eom eoi boi fim target source src tgt prefix suffix middle newline blank space delimiter invalid unexpected
    additional extra class distill dist register time
""")
_PLAIN_PASS = _set("""
    forward backward single multi two one first second third last render optimizer train eval low high band all by pre
    post compiler graph fusion
""")
_PASS_OF = _set("db user admin root key smtp mysql pg ssh store bind ldap")
_PLAIN_PAT = _set("file glob name regex search match include exclude path")
_SECRETS = _set("jwt bearer authorization cookie cookies apikey sas otp totp mnemonic")
_CREDENTIALS = _set("credential credentials creds cred auth pwd pw pswd psk")  # these may also be paths
_PASSES = ("password", "passwd", "passphrase", "passcode")


def _words(name: str) -> list[str]:
    """Return the words of a name in small letters: ``wandb api key`` of ``--wandb_apiKey``."""
    spaced, before = [], ""
    for letter in name[-120:]:
        if not letter.isalnum():
            spaced.append(" ")
        else:
            if letter.isupper() and before.islower():
                spaced.append(" ")
            spaced.append(letter.lower())
        before = letter
    return "".join(spaced).split()


_kinds: dict[str, str] = {}  # of names that were asked for: lines of a log repeat theirs


def _kind(name: str) -> str:
    """Return of which kind a name is."""
    kind = _kinds.get(name)
    if kind is None:
        if len(_kinds) >= 1000:
            _kinds.clear()
        kind = _kinds[name] = _kind_of_name(name)
    return kind


def _kind_of_name(name: str) -> str:
    words = _words(name)
    while len(words) > 1 and (words[-1] in _ENDINGS or words[-1].lstrip("v").isdigit()):
        words.pop()
    if not words:
        return ""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "sock" or (last != "tokenizers" and "tokenizers" in words):
        return _LONG
    if last in _ABOUT:
        # AWS_ACCESS_KEY_ID and Vault's secret_id go with their secrets.
        return _KEY if last == "id" and (before == "secret" or words[-3:-1] == ["access", "key"]) else ""
    if last in {"key", "keys"} and before not in _KEY_OF and len(_words(name.rpartition(".")[2])) == 1:
        before = ""  # layers.key: what holds it says less than a word of its own
    kind = _kind_of_last(last, before)
    if not kind and any(word.endswith(_PASSES) for word in words):
        kind = _PASSWORD  # PASSWORD_DB
    if not kind and any(pair in _COMPOUNDS for pair in zip(words, words[1:])):  # noqa: B905, RUF007  # no import
        kind = _SECRET  # SECRET_KEY_BASE, api_key_for_x
    return _RANDOM if kind in _STRONG and words[0] in _SWITCHES and len(words) > 1 else kind


_COMPOUNDS = frozenset(
    [
        *((word, "key") for word in ("api", "secret", "private")),
        *((word, "token") for word in ("auth", "access", "hf", "bearer", "pypi")),
    ]
)


def _kind_of_last(last: str, before: str) -> str:
    """Return the kind of a name that ends with these two words."""
    if last.endswith((*_PASSES, "passwords", "secret", "secrets")) or last in _SECRETS:
        return _PASSWORD if "pass" in last else _SECRET
    if last.endswith(("token", "tokens")):
        return _kind_of_token(last, before)
    if last.endswith(("key", "keys")):
        return _kind_of_key(last, before)
    if last == "pass":
        return _RANDOM if before in _PLAIN_PASS else _KEY
    is_known = last in _CREDENTIALS or last.endswith("pwd") or _is_password_of(last)
    if is_known or (last == "pat" and before not in _PLAIN_PAT):
        return _KEY
    return _HEADERS if last in {"headers", "header", "extraheader"} else _PROXY if last == "proxy" else ""


def _is_password_of(word: str) -> bool:
    """Tell whether a word is such as ``sshpass`` or ``bindpw``."""
    return (word.endswith("pass") and word[:-4] in _PASS_OF) or (word.endswith("pw") and word[:-2] in _PASS_OF)


def _kind_of_token(last: str, before: str) -> str:
    known = before if last in {"token", "tokens"} else last.removesuffix("s").removesuffix("token")
    if known in _PLAIN_TOKEN:
        return _RANDOM
    return _SECRET if last.endswith("token") or known in _TOKENS_OF else _LONG


def _kind_of_key(last: str, before: str) -> str:
    if before in {"public", "pub"}:
        return ""
    if last in {"key", "keys"}:
        return _KEY if before in _KEY_OF or (last == "key" and before and before not in _PLAIN_KEY) else _RANDOM
    return _KEY if last.removesuffix("s").removesuffix("key") in _KEY_OF else ""  # apikey; not monkey


# Values.

_PLAIN = _set("none null nil true false yes no on off auto default")
_WAYS_TO_LOG_IN = _set("basic bearer digest oauth oauth2 kerberos ldap ntlm munge jwt iam anonymous sso token apikey")
_PLAIN_HEADERS = _set("""
    accept accept-encoding accept-language cache-control connection content-encoding content-length content-type date
    etag host origin pragma range referer retry-after server te transfer-encoding user-agent vary via
""")


def _is_number(text: str) -> bool:
    try:
        for part in text.split(","):
            float(part)
    except ValueError:
        return False
    return True


def _is_path(text: str) -> bool:
    """Tell whether a text is a path; one that begins with ``/`` may also be base64."""
    if not text.startswith(("/", "~", "./", "../", "file:")):
        return False
    return not (len(text) >= 32 and "/" not in text[1:] and _is_random(text[1:]))


def _is_harmless(text: str) -> bool:
    """Tell whether a text is no secret under any name: a switch, a reference, a placeholder, ``<pad>``."""
    if not any(map(str.isalnum, text)) or text.lower() in _PLAIN:
        return True
    return (text[0] == "$" and text.strip("${}()").replace("_", "a").isalnum() and len(text) > 1) or (
        text.startswith("$(")
        or (text[0] == "<" and text[-1] == ">")
        or (text[0] == "[" and text[-1] == "]" and text[1:-1].isupper())
        or (text.startswith("{{") and text.endswith("}}"))
    )


def _is_random(text: str) -> bool:
    """Tell whether a text has a run of letters and digits that no word has."""
    run = letters = digits = 0
    for character in [*text, " "]:
        if character.isascii() and character.isalnum():
            run, digits, letters = run + 1, digits + character.isdigit(), letters + character.isalpha()
            if run >= 32 or (run >= 16 and digits and letters):
                return True
        else:
            run = letters = digits = 0
    return False


def _hides(kind: str, text: str) -> bool:
    """Tell whether a text under a name of that kind is hidden."""
    if _is_harmless(text):
        return False
    if kind in {_PASSWORD, _SECRET} or _is_number(text) or _is_path(text):
        return kind in {_PASSWORD, _SECRET}
    if kind == _KEY:
        return text.lower() not in _WAYS_TO_LOG_IN
    if kind == _HEADERS:
        return ":" in text or "=" in text or _is_random(text)
    is_word = not any(map(str.isspace, text)) and "://" not in text
    return is_word and (_is_random(text) or (kind == _LONG and len(text) >= 20 and "/" not in text))


# Forms: what a text must hold before its pattern is tried, and the pattern. Sources: the services' own pages, and the
# rules of gitleaks (config/gitleaks.toml).

# Tokens that begin with these words, which no text holds otherwise …
_PREFIXES = _set("""
    ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glcbt- glft- glsoat- glimt- glagent- gloas- glffct-
    xoxa- xoxb- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp- GOCSPX- ya29. whsec_ sk_live_ rk_live_ pk_live_ sk_test_
    rk_test_ pk_test_ rzp_live_ shpat_ shpca_ shppa_ shpss_ dckr_pat_ dckr_oat_ dop_v1_ doo_v1_ dor_v1_ wandb_v1_
    lsv2_pt_ lsv2_sk_ nvapi- tgp_v1_ pcsk_ tvly- esecret_ KGAT_ hvs. hvb. hvr. dp.pt. dp.ct. dp.sa. dp.scim. dp.audit.
    lin_oauth_ figd_ figo_ figu_ tskey- sntrys_ sntryu_ glsa_ sq0atp- sq0csp- sq0idp- xkeysib- xsmtpsib-
    pscale_tkn_ pscale_oauth_ pscale_pw_ sb_secret_ CCIPAT_ CLOJARS_ CFPAT- NRAK- NRJS- PMAK- HRKU- FLWSECK- FLWSECK_
    pat-na1- pat-eu1- sha256~ dt0c01. bedrock-api-key-
""")
_LONG_TOKEN = r"[\w-]{10,}[\w.=-]*"  # noqa: S105
# … and with these, which may also begin a name: fw_forward_pass.
_NAME_LIKE_PREFIXES = _set("""
    api_org_ lin_api_ ntn_ nfp_ fw_ jina_ rpa_ csk- pnu_ pnb_ pul- sgp_ vcp_ vck_ phx_ glc_ sbp_ bkua_ rdme_ rubygems_
    fm2_ fm1r_ fm1a_ fo1_ r8_ gsk_ xai- pplx- npm_
""")
_MIXED_TOKEN = r"(?=[a-z]{0,15}[A-Z0-9])[A-Za-z0-9]{16}[\w+/=-]*"  # noqa: S105
_MARKED_FORMS = (
    *((prefix, rf"(?<![A-Za-z0-9]){prefix.replace('.', '[.]')}{_LONG_TOKEN}") for prefix in sorted(_PREFIXES)),
    *((prefix, rf"(?<![A-Za-z0-9]){prefix}{_MIXED_TOKEN}") for prefix in sorted(_NAME_LIKE_PREFIXES)),
    ("hf_", r"\bhf_(?:[A-Za-z0-9]{16,}|(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*\d)[A-Za-z0-9]{10,})"),
    ("sk-", r"(?<![A-Za-z0-9])sk-[A-Za-z0-9]{20,}"),
    ("sk-", r"(?<![A-Za-z0-9])sk-(?:[a-z][a-z0-9]*-){0,8}(?=[A-Za-z_]*\d|[a-z0-9_]*[A-Z])[A-Za-z0-9_-]{16,}"),
    ("pypi-", r"\bpypi-[A-Za-z0-9_-]{32,}"),
    ("secret_", r"(?<![A-Za-z0-9])secret_(?=[a-z]{0,30}[A-Z0-9])[A-Za-z0-9]{40,}"),  # of Notion
    ("dp.st.", r"\bdp\.st\.(?:[a-z0-9-]{2,35}\.)?[\w-]{10,}"),  # of Doppler, for one configuration
    ("SG.", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    ("key-", r"(?<![\w-])key-[a-f0-9]{32}\b"),
    ("AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-1[A-Z0-9]{16,}"),
    (".atlasv1.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{10,}"),  # of Terraform
)
# Where the last three characters of one stand before more of a token; of most lines that is all that they cost.
_ENDS_OF_HINTS = sorted({hint[-3:].replace(".", "[.]") for hint, _ in _MARKED_FORMS})
_MARKED = rf"[_.~-](?<={'|'.join(_ENDS_OF_HINTS)})[\w.+/-]{{10}}"
_FORMS = (
    ("AKIA", r"\bAKIA[A-Z0-9]{12,}"),
    ("ASIA", r"\bASIA[A-Z0-9]{12,}"),
    ("ABIA", r"\bABIA[A-Z0-9]{12,}"),
    ("ABSK", r"\bABSK[A-Za-z0-9+/]{60,}={0,2}"),
    ("LTAI", r"\bLTAI[A-Za-z0-9]{16,}"),
    ("AKCp", r"\bAKCp[A-Za-z0-9]{60,}"),
    ("AIza", r"\bAIza[\w-]{30,}"),
    ("Q~", r"(?<![\w~.])[\w~.]{3}\dQ~[\w~.-]{31,}"),  # of Microsoft Entra
    ("1//0", r"(?<![\w/])1//0[\w-]{30,}"),  # refreshes a token of Google
    ("EAA", r"\bEAA[A-Za-z0-9_-]{57,}"),  # of Square, of Facebook
    ("eyJ", r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}"),
    ("ops_eyJ", r"\bops_eyJ[\w+/=-]{40,}"),  # of 1Password
    ("eyJ", r"\beyJ(?:hcGlf|rIjoi)[\w+/=-]{16,}"),  # of Neptune, of Grafana: {"api_…, {"k":"…
    ("dapi", r"\bdapi[a-f0-9]{32}\b(?:-\d)?"),
    ("SK", r"\bSK[a-f0-9]{32}\b"),  # of Twilio
    ("AT", r"\bAT(?:ATT|CTT|BB)[\w=-]{16,}"),  # of Atlassian
    (":AA", r"(?<!\d)\d{8,10}:AA[\w-]{30,}"),  # of a bot of Telegram
    ("hooks.", r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/-]{8,}"),
    ("hooks.", r"(?<=hooks\.zapier\.com/hooks/catch/)[\w/-]{8,}"),
    ("/api/webhooks/", r"(?<=/api/webhooks/)\d+/[\w-]{8,}"),
    ("webhook.office.com/", r"(?<=webhook\.office\.com/)[\w@/-]{16,}"),
    ("anaconda.", r"(?<=conda\.anaconda\.org/t/)[\w-]{8,}"),
    ("anaconda.", r"(?<=repo\.anaconda\.cloud/t/)[\w-]{8,}"),
    (
        "PRIVATE KEY",
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    ("LS0tLS1CRUdJTi", r"LS0tLS1CRUdJTi(?!BDRVJU|BQVUJM)[\w+/=-]{20,}"),  # -----BEGIN in base64, no certificate
    ("$", r"\$(?:1|5|6|y|apr1|2[abxy]|argon2id?)\$[\w./$=,+-]{16,}"),  # a password's hash
    ("earer", r"(?<=\b[Bb]earer )\s*(?=[A-Za-z._~+/-]*\d|\S{16})[\w.~+/=-]{8,}"),
    ("asic", r"(?<=\b[Bb]asic )\s*(?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{8,}={0,2}"),
)

# https://me:V@host and https://V@host. V may hold / and @; what follows a port, or is in a path, is none:
# http://host:8080/@scope/name. A name alone is no secret where it is an account or a container.
_LOGIN = r"""(?x)(?P<scheme>[A-Za-z][\w+.-]{0,40})://(?:
    (?P<user>[^\s/@:"'<>]*):(?P<word>(?:(?!://)[^\s"'<>])+)@(?=(?P<host>[^\s/@:,"']+))|(?P<alone>[^\s/@:"']+)@)"""
_ACCOUNTS = _set("ssh sftp scp rsync git+ssh svn+ssh hdfs abfs abfss wasb wasbs nfs smb gsiftp")

# A name and the text between it and its value:
# NAME=V, name: V, "name": "V", --name V, ["name"] = "V", ("NAME", "V").
_NAMED = r"""(?x)(?<![A-Za-z0-9_-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,200})
    (?P<between>\\*["']?\]?[ \t]{0,20}(?:=>|:=|[=:](?![/=]))[ \t\n]{0,3}|(?<=[\w])[ \t]+|\\*["'],[ \t]*(?=\\*["']))"""
_HINTS = ("key", "token", "pass", "pwd", "secret", "cred", "auth", "header", "cookie", "jwt", "bearer", "pat=", "pat ",
          "pat:", 'pat"', "sig", "sas", "_sock", "pat'", "psk", "pw")  # fmt: skip
_SIGNED = frozenset(("sig", "signature", "key"))  # names in the query of a URL
_TO_ENVIRON = _set("-e -env --env -genv --genv setenv --setenv")  # -e NAME V
_TO_SHELL = _set("-c -lc -ic -cl -ec -xc -lic --command")
# Their -e is followed by a pattern, or by a variable that is handed on as it is.
_NO_ENVIRON = _set("docker podman nerdctl grep egrep fgrep rg sed perl")
_MOST_NAMES = 20  # --env=NAME=V: what comes behind so many is a text
# machine HOST login me password V, of a .netrc
_NETRC = r"""(?x)(?P<before>(?:\bmachine\s{1,20}\S{1,200}\s{1,20}|\bdefault\s{1,20}|(?:\A|(?<=\n))[ \t]{0,20}(?=login))
    (?:(?:login|account)\s{1,20}\S{1,200}\s{1,20}){0,2}password\s{1,20})\S+"""
_TAGGED = r"<(?P<name>[A-Za-z][\w.:-]{0,80})>(?P<value>[^<>]{1,500})(?=</)"  # <password>V</password>
_IN_SQL = r"(?i)(?P<before>\bidentified\s[^'\"\n;]{0,80}['\"])[^'\"\n]+"
_ASKS = r"(?:--password-stdin|--with-token|--passphrase-fd|\bchpasswd\b|\bsudo[ ](?:-[A-Za-z]{1,9}[ ]){0,3}-S\b)"
# echo V | sudo -S, docker login --password-stdin <<< V
_PIPED = rf"""(?x)(?P<before>\b(?:echo|printf)[ \t]+(?:-[neE]{{1,3}}[ \t]+|["']?%s(?:\\n)?["']?[ \t]+)?)
    (?P<value>[^|;&\n]{{1,300}}?)(?P<after>[ \t]{{0,9}}\|(?=[^|;&\n]{{0,200}}{_ASKS}))"""
_HERE = rf"""(?x)(?P<before>{_ASKS}[^|;&<\n]{{0,200}}<<<[ \t]*)(?P<value>"[^"\n]*"?|'[^'\n]*'?|[^\s;&|]+)(?P<after>)"""
_QUOTED = r"'[^'\n]*'|\"[^\"\n]*\""
_LISTED = rf"\[(?:{_QUOTED})(?:,[ ]?(?:{_QUOTED})){{1,1000}}\]"  # ['mysql', '-pV'], of Python and JSON
# The words of a shell's commands, and what parts the commands. A quote that is not closed ends with the text.
_SHELL_WORDS = r"""(?x)(?:[^\s"'\\;&|()]|\\.|"(?:[^"\\]|\\.)*\\?(?:"|\Z)|'[^']*(?:'|\Z))+|[;&|()\n]"""

_PARTS_COMMANDS = _set("; & | ( )") | {"\n"}
_IN_COMMANDS = r"[\s\"'](?:--?[A-Za-z]|(?:auth|login|put|secrets?|config|password)\b)"  # of the programs that are known

_patterns: dict[str, re.Pattern[str]] = {}


def _pattern(text: str) -> re.Pattern[str]:
    found = _patterns.get(text)
    if found is None:
        import re

        found = _patterns[text] = re.compile(text, re.DOTALL)
    return found


class _Scrubber:
    """Takes secrets out; knows those of one environment."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        values = secret_values(os.environ if environ is None else environ)
        self._values: list[tuple[str, bool]] = []
        for value in values:
            is_word = value.isalpha() and value.islower()  # may be part of a longer word that is none
            self._values.append((value, is_word))
            quoted = "".join(c if c.isalnum() and c.isascii() else _quoted(c) for c in value)
            if quoted != value:  # in a URL
                self._values.append((quoted, False))

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if text[:1] in {"{", "["} and (known := self._json(text, "", "")) is not None:
            return known
        for value, is_word in self._values:
            if value in text:
                text = _without_word(text, value) if is_word else text.replace(value, HIDDEN)
        if "://" in text and "@" in text:
            text = _pattern(_LOGIN).sub(_without_login, text)
        text = _without_forms(text)
        lower = text.lower()
        is_named = False
        for hint in _HINTS:  # any() takes twice as long
            if hint in lower:
                is_named = True
                break
        if is_named or " -" in text or "'-" in text or '"-' in text or "login" in text or "dentified by" in lower:
            text = self._without_those_of_programs(text)
        return self._without_named(text) if is_named else text

    def _without_those_of_programs(self, text: str) -> str:
        """Return a text without what programs are given on command lines in it, and in their files."""
        if "<<<" in text or ("|" in text and ("echo" in text or "printf" in text)):
            for form in (_PIPED, _HERE):
                text = _pattern(form).sub(_without_given, text)
        if "password" in text and ("login" in text or "machine" in text):
            text = _pattern(_NETRC).sub(rf"\g<before>{HIDDEN}", text)
        if "dentified" in text or "DENTIFIED" in text:
            text = _pattern(_IN_SQL).sub(rf"\g<before>{HIDDEN}", text)
        if "</" in text:
            text = _pattern(_TAGGED).sub(self._without_tagged, text)
        if _pattern(_IN_COMMANDS).search(text) and not PROGRAMS.isdisjoint(_pattern(r"[\w.-]+").findall(text)):
            if "['" in text or '["' in text:
                text = _pattern(_LISTED).sub(self._without_listed, text)
            text = self._commands(text)
        return text

    def _without_listed(self, match: re.Match[str]) -> str:
        """Return a list of a command's words, as Python prints one, without secrets."""
        quoted = _pattern(_QUOTED).findall(match[0])
        words = [word[1:-1] for word in quoted]
        shown = zip(quoted, words, self.argv(words), strict=True)
        return f"[{', '.join(word if safe == given else f'{word[0]}{safe}{word[0]}' for word, given, safe in shown)}]"

    def _without_tagged(self, match: re.Match[str]) -> str:
        return f"<{match['name']}>{self._named(_kind(match['name']), match['value'])}"

    def _commands(self, text: str) -> str:
        """Return a shell's commands without what their words show to be secrets."""
        parts, done = [], 0
        command: list[re.Match[str]] = []
        for word in [*_pattern(_SHELL_WORDS).finditer(text), None]:
            if word is not None and word[0] not in _PARTS_COMMANDS:
                command.append(word)
                continue
            words = [_unquoted(each[0]) for each in command]
            shown = self._command(words) if words and len(words[0]) < len(text) else words  # no word is the whole text
            for each, given, safe in zip(command, words, shown, strict=True):
                if safe != given:
                    quote = each[0][0] if each[0] in {f"'{given}'", f'"{given}"'} else ""
                    parts += [text[done : each.start()], quote, safe, quote]
                    done = each.end()
            command = []
        return "".join([*parts, text[done:]])

    def _command(self, words: list[str]) -> list[str]:
        """Return a shell's words without secrets of programs, which may also be in a word: ``ssh n01 'mysql -pV'``."""
        if not PROGRAMS.isdisjoint(map(program_of, words)):
            return self.argv(words)
        return [self._commands(word) if " " in word else word for word in words]

    def _json(self, text: str, name: str, kind: str) -> str | None:
        """Return the text of a JSON object or list without secrets; None where it is none."""
        import json

        try:
            known = json.loads(text)
        except (ValueError, RecursionError):
            return None
        shown = self.config(known, name, kind)
        return text if shown == known else json.dumps(shown, ensure_ascii=False)

    def _without_named(self, text: str) -> str:
        """Return a text without the values of names; text in quotes or brackets is one value."""
        parts, done = [], 0
        match = _pattern(_NAMED).search(text)
        while match is not None:
            name, between = match["name"], match["between"]
            at = match.end()
            kind = _kind(name)
            if kind == _RANDOM and not between.isspace():  # a name of two words: api key: V
                ahead = text[max(0, match.start() - 12) : match.start()].lower().split()
                kind = _kind(f"{ahead[-1]}_{name}") if ahead and ahead[-1] in _KEY_OF else kind
            if match.start() and text[match.start() - 1] in "?&" and _words(name)[-1:] and _words(name)[-1] in _SIGNED:
                kind = kind if kind in _STRONG else _SECRET
            is_option = between.isspace()
            if is_option and name in _TO_ENVIRON:
                kind, at = _handed_over(text, at)
            elif is_option and not name.startswith("-"):
                kind = kind if kind == _PASSWORD and text[at : at + 1] in {"'", '"'} else ""  # WITH PASSWORD 'V'
            elif "," in between and not (name.isupper() and "_" in name):
                kind = ""
            start, end = _value_in(text, at, kind)
            if kind and not (is_option and text.startswith("-", start)):
                parts += [text[done:start], self._named(kind, text[start:end])]
                done = end
                at = max(end, at)
            else:
                at = match.end()
            match = _pattern(_NAMED).search(text, at)
        return "".join([*parts, text[done:]])

    def _named(self, kind: str, value: str) -> str:
        """Return the value of a name of that kind as it may be shown; of headers, each by its own name."""
        if kind == _HEADERS and value[:1] in {"{", "["} and (known := self._json(value, "", kind)) is not None:
            return known
        if kind == _PROXY:
            login, at, host = value.rpartition("@")
            return f"{HIDDEN}@{host}" if at and ":" in login and "://" not in value else value
        if kind == _HEADERS and value.partition(":")[0].strip().lower() in _PLAIN_HEADERS:
            return value
        return HIDDEN if kind and value and _hides(kind, value) else value

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return words without secrets."""
        shown: list[str] = []
        kind = before = ""
        programs = set(map(program_of, argv))
        of_programs = hidden_words(argv, _without_it)
        for at, word in enumerate(argv):
            if at in of_programs:
                shown.append(of_programs[at])
                kind = ""
            elif kind and not word.startswith("--") and not _is_scheme(word):
                hidden = self._named(kind, word)
                shown.append(self._word(word, before) if hidden == word else hidden)
                kind = ""
            else:
                shown.append(self._word(word, before))
                kind = kind if kind and _is_scheme(word) else self._kind_of_next(word, before, programs)
            before = word
        return shown

    def _kind_of_next(self, word: str, before: str, programs: set[str]) -> str:
        """Return of which kind a name is whose value is the next word."""
        if before in _TO_ENVIRON and not programs & _NO_ENVIRON and word.isidentifier():
            return _kind(word)
        if "=" in word or any(map(str.isspace, word)):
            return ""
        if before in {"set", "-x", "-gx", "-Ux"} and "set" in programs:  # fish; aws configure set NAME V
            return _kind(word)
        if programs & NAMING and word.isidentifier():  # nmcli … password V
            return kind if (kind := _kind(word)) in _STRONG else ""
        if word.lower() == "bearer":
            return _SECRET
        return _kind(word) if (word.startswith("-") and word != "-") or word.endswith(":") else ""

    def _word(self, word: str, before: str = "") -> str:
        """Return one word of a command without secrets."""
        names = ""
        for _ in range(_MOST_NAMES):
            name, equals, value = word.partition("=")
            is_name = equals and all(letter.isalnum() or letter in "-_+.~" for letter in name)
            if not is_name or before in _TO_SHELL:
                break
            kind = _kind(name)
            shown = self._named(kind, value) if kind else value
            if shown != value:
                return f"{names}{name}={shown}"
            if not kind and any(map(str.isspace, value)) and not name.startswith("-"):
                break
            names, word, before = f"{names}{name}=", value, "" if kind else name
        return names + self.text(word)

    def config(self, value: object, name: str, kind: str) -> object:
        """Return a configuration without secrets; ``name`` with dots, ``kind`` of it or of what holds it."""
        if value is None or isinstance(value, (bool, float, int)):
            return _number(value, kind)
        if isinstance(value, str):
            shown = self._named(kind, value)
            return self._word(value) if shown == value else shown
        return self._several(value, name, kind)

    def _several(self, value: object, name: str, kind: str) -> object:
        if kind in _STRONG and (not hasattr(value, "__len__") or len(value)):
            return HIDDEN
        if hasattr(value, "items"):
            return self._mapping(dict(value.items()), name, kind)
        if isinstance(value, (list, tuple, set, frozenset)):
            texts = [item for item in value if isinstance(item, str)]
            is_command = any(item.startswith("-") for item in texts) or (texts and program_of(texts[0]) in PROGRAMS)
            if len(texts) == len(value) and is_command and not kind:
                return self.argv(texts)
            return [self._header(item) if kind == _HEADERS else self.config(item, name, kind) for item in value]
        fields = {} if callable(value) else getattr(value, "__dict__", {})  # of a namespace or dataclass
        return self._mapping(fields, name, kind) if fields else self.text(str(value))

    def _header(self, item: object) -> object:
        """Return an item of a list of headers: ``"Name: V"`` or ``["Name", "V"]``."""
        if isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str):
            return [item[0], self._mapping({item[0]: item[1]}, "", _HEADERS)[item[0]]]
        return self.config(item, "", _HEADERS)

    def _mapping(self, items: Mapping[object, object], name: str, kind: str) -> dict[str, object]:
        shown: dict[str, object] = {}
        pair = _kind(str(items.get("name", items.get("key", "")))) if "value" in items and len(items) <= 3 else ""
        for key, value in items.items():
            text = str(key)
            below = f"{name}.{text}"
            own = pair if pair and text == "value" else _kind(below)
            if kind == _HEADERS and own not in _STRONG:
                own = "" if text.lower() in _PLAIN_HEADERS else _SECRET
            shown[self.text(text)] = self.config(value, below, own or (kind if kind == _LONG else ""))
        return shown


def _without_forms(text: str) -> str:
    for hint, form in _FORMS:
        if hint in text:
            text = _pattern(form).sub(HIDDEN, text)
    if _pattern(_MARKED).search(text):
        for hint, form in _MARKED_FORMS:
            if hint in text:
                text = _pattern(form).sub(HIDDEN, text)
    return text


def _number(value: Any, kind: str) -> object:
    """Return a number as JSON can hold it; one that is not finite has no JSON and becomes text."""
    if kind == _PASSWORD and isinstance(value, int) and not isinstance(value, bool):
        return HIDDEN
    return value if value is None or value - value == 0 else str(value)


def _quoted(character: str) -> str:
    if character in "-_.~":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _without_word(text: str, word: str) -> str:
    import re

    return re.sub(rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])", HIDDEN, text)


def _without_login(match: re.Match[str]) -> str:
    scheme, word, alone = match["scheme"], match["word"], match["alone"]
    if alone is not None:
        return match[0] if scheme.lower() in _ACCOUNTS else f"{scheme}://{HIDDEN}@"
    port, slash, _ = word.partition("/")
    if slash and port.isdigit() and not _is_host(match["host"]):
        return match[0]
    return f"{scheme}://{HIDDEN}@"


def _without_it(secret: str) -> str:
    return secret if _is_harmless(secret) else HIDDEN


def _without_given(match: re.Match[str]) -> str:
    """Return what is piped into a program that asks for a password, without it."""
    value = match["value"]
    word = value.strip(" \t'\"")
    return match[0] if not word or _is_harmless(word) else f"{match['before']}{HIDDEN}{match['after']}"


def _unquoted(word: str) -> str:
    """Return a word of a shell without its quotes: ``-pa b`` of ``-p'a b'``."""
    quote, inside = "", []
    for letter in word:
        if letter in "\"'" and quote in {"", letter}:
            quote = "" if quote else letter
        else:
            inside.append(letter)
    return "".join(inside)


def _is_host(text: str) -> bool:
    """Tell whether a text is a host with its domain, or an address: ``db.example.org``, not ``v1.2``."""
    labels = text.split(".")
    return len(labels) > 1 and (labels[-1].isalpha() or (len(labels) == 4 and "".join(labels).isdigit()))


def _is_scheme(word: str) -> bool:
    return word.lower() in {"bearer", "basic", "digest", "token", "apikey"}


def _handed_over(text: str, at: int) -> tuple[str, int]:
    """Return the kind of the variable that begins at a place, and where its value begins."""
    match = _pattern(r"([A-Za-z_]\w*)[ \t]+(?![-|&;])").match(text, at)
    if match is None or not _NO_ENVIRON.isdisjoint(text.split()):
        return "", at
    return _kind(match[1]), match.end()


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _value_in(text: str, at: int, kind: str) -> tuple[int, int]:
    """Return where a value begins and ends: in quotes, in brackets, or up to a blank or what ends a word."""
    at = _end(r"[A-Za-z_]\w{0,40}\((?=[\"'])", text, at)  # SecretStr('V')
    mark = _pattern(r"\\*[\"']").match(text, at)
    if mark:
        quote = mark[0]
        end = text.find(quote, mark.end())
        while end > 0 and text[end - 1] == "\\" and not quote.startswith("\\"):  # an escaped one
            end = text.find(quote, end + 1)
        return mark.end(), len(text) if end < 0 else end
    opening = at + text.startswith("$(", at)
    if text[opening : opening + 1] in _CLOSING:
        return at, _closed(text, opening)
    before = text[max(0, at - 20) : at].rstrip().lower()
    if before.endswith("cookie:") and kind in {_SECRET, _PASSWORD}:
        return at, _end(r"[^\"'\n]*", text, at)
    if before.endswith("authorization:"):  # any scheme, and the fields behind it
        return at, _end(r"(?:[A-Za-z][\w-]{0,30}[ \t]+)?[^\s\"'&;|\\]*(?:(?<=,)[ \t]*\w+=[^\s\"'&;|\\]*)*", text, at)
    end = _end(r"(?:(?i:bearer|basic|digest|token|apikey|negotiate)[ \t]+)?[^\s\"'&;|\\]*", text, at)
    cut = _pattern(r",(?=[ ]|$|[\w.-]+[:=])|(?<![)\]}])[)\]}]+$").search(text[at:end])
    return at, end if cut is None else at + cut.start()


def _end(form: str, text: str, at: int) -> int:
    """Return where what a pattern matches at a place ends."""
    match = _pattern(form).match(text, at)
    return match.end() if match else at


def _closed(text: str, at: int) -> int:
    """Return where the bracket that opens at a place has been closed again."""
    opening, closing, depth = text[at], _CLOSING[text[at]], 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if not depth:
            return place + 1
    return len(text)
