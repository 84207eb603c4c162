"""Find the secrets that well-known programs take on their command lines, where no option's name tells.

Four kinds, each a table below, from the programs' own manuals:

    of an option      mysql -pV    sshpass -p V    curl -u me:V    curl -b session=V
    of a position     vault login V    wandb login V    htpasswd -b FILE me V
    of an assignment  kubectl create secret generic NAME --from-literal=k=V    fly secrets set k=V
    of a name         nmcli … password V    dvc remote modify store password V

`ezpz.redact` decides what of a value is shown: a reference such as ``$PW`` stays.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Programs, the options, where the value is ("next" word, "attached" to the option, or "both"), and what in the value
# comes before the secret. `login` and `secret` belong to many programs: docker login, helm registry login, gh secret.
_MYSQL = """
    mysql mysqldump mysqladmin mysqlbinlog mysqlcheck mysqlimport mysqlpump mysqlshow mysqlslap mycli mariadb
    mariadb-dump mariadb-admin mariadb-check mariadb-import
"""
_OPTIONS = (
    (f"{_MYSQL} 7z 7za 7zr 7zz rar unrar", "-p", "attached", ""),  # -p alone asks for it
    ("sshpass login twine yt-dlp youtube-dl rdesktop", "-p", "both", ""),
    ("mongo mongosh mongodump mongorestore mongoexport mongoimport cqlsh beeline", "-p", "both", ""),
    ("sqlcmd bcp unzip zip zipcloak mosquitto_pub mosquitto_sub ipmitool", "-P", "both", ""),
    ("ldapsearch ldapadd ldapmodify ldapdelete ldapmodrdn ldapcompare ldapwhoami ldappasswd", "-w", "both", ""),
    ("redis-cli valkey-cli", "-a", "next", ""),
    ("influx codecov vercel", "-t", "next", ""),
    ("openssl", "-k -K", "next", ""),
    ("nuget", "-k", "next", ""),
    ("keytool jarsigner", "-storepass -keypass -srcstorepass -deststorepass", "next", ""),
    ("secret", "-b --body", "next", ""),
    ("curl", "-u --user -U --proxy-user -E --cert", "both", ":"),
    ("curl", "-b", "both", "="),  # without "=" it is the name of a file
    ("http https xh xhs", "-a -u --user", "both", ":"),
    ("smbclient rpcclient winexe net", "-U", "both", "%"),
    ("lftp", "-u", "both", ","),
)
# Program, the word behind which the secret comes, and how many other words come between.
_POSITIONS = (
    *(("vault", "login", 0), ("wandb", "login", 0), ("cargo", "login", 0), ("snyk", "auth", 0), ("bw", "unlock", 0)),
    *(("ngrok", "authtoken", 0), ("ngrok", "add-authtoken", 0), ("rclone", "obscure", 0), ("poetry", "pypi-token", 0)),
    *(("bw", "login", 1), ("cf", "auth", 1), ("poetry", "http-basic", 1), ("mc", "set", 2)),
    *(("htpasswd", "-nb", 1), ("htpasswd", "-nbB", 1)),
    *(("htpasswd", "-b", 2), ("htpasswd", "-bc", 2), ("htpasswd", "-cb", 2), ("htpasswd", "-bB", 2)),
)
# Programs, and the words behind which each NAME=V is a secret.
_ASSIGNMENTS = (
    ("vault", "put patch write"),
    ("fly flyctl doppler heroku supabase modal wrangler kubectl oc gh", "secret secrets config:set"),
)
_OF_SECRETS = "--from-literal="
NAMING = frozenset(("dvc", "rclone", "nmcli"))  # programs whose names of values need no dashes
_CURL_FLAGS = "#0123469aBfgGiIjJklLMnNOpqRsSvVZ"  # those without a value, which may stand before another: -sSu me:V
_WRAPPERS = frozenset(("sshpass",))  # what comes behind their options is another command


def _programs() -> frozenset[str]:
    rows = (*(row[0] for row in _OPTIONS), *(row[0] for row in _POSITIONS), *(row[0] for row in _ASSIGNMENTS))
    return NAMING.union(*(row.split() for row in rows))


PROGRAMS = _programs()


def program_of(word: str) -> str:
    """Return the name of the program that a word may be: ``mysql`` of ``/usr/bin/mysql``, "" of a URL."""
    return "" if "://" in word else word.rpartition("/")[2]


def hidden_words(words: Sequence[str], shown: Callable[[str], str]) -> dict[int, str]:
    """Return the words of a command that hold a secret of a program in the tables, as they may be shown, by place.

    Args:
        words: The words of a command.
        shown: Returns a secret as it may be shown.
    """
    if PROGRAMS.isdisjoint(map(program_of, words)):
        return {}
    found = {
        **dict(_in_options(words, shown)),
        **dict(_in_positions(words, shown)),
        **dict(_in_assignments(words, shown)),
    }
    return {at: word for at, word in found.items() if word != words[at]}


def _in_options(words: Sequence[str], shown: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    program, rows, expected = "", [], None
    for at, word in enumerate(words):
        name = program_of(word)
        if expected is not None:  # the value of the option before
            yield at, _behind(expected, word, shown)
            expected = None
        elif name in PROGRAMS:
            program, rows = name, [row for row in _OPTIONS if name in row[0].split()]
        elif not word.startswith("-"):
            rows = [] if program in _WRAPPERS else rows
        else:
            for _, options, place, before in rows:
                option, value = _option_and_value(word, options.split(), program)
                if option and value and place != "next":
                    yield at, word.removesuffix(value) + _behind(before, value, shown)
                elif option and not value and place != "attached":
                    expected = before


def _option_and_value(word: str, options: Sequence[str], program: str) -> tuple[str, str]:
    """Return which of the options a word is, and the value in it: ``-u`` and ``me:V`` of ``-sSume:V`` for curl."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return (name, value) if name in options and (value or not equals) else ("", "")
    if word in options:
        return word, ""
    if program == "curl":
        word = "-" + word[1:].lstrip(_CURL_FLAGS)
    return (word[:2], word[2:]) if word[:2] in options else ("", "")


def _behind(before: str, value: str, shown: Callable[[str], str]) -> str:
    """Return a value as it may be shown, of which all behind a mark is secret; nothing is where the mark is missing."""
    if not before:
        return shown(value)
    head, mark, secret = value.partition(before)
    return head + mark + shown(secret) if secret else value


def _in_positions(words: Sequence[str], shown: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    programs: set[str] = set()
    left = None
    for at, word in enumerate(words):
        is_other = word.startswith("-") or "://" in word or (word.partition("=")[0].isidentifier() and "=" in word)
        if left is not None and not is_other:
            if not left:
                yield at, shown(word)
            left = left - 1 if left else None
        for program, behind, between in _POSITIONS:
            if program in programs and word.partition(".")[0] == behind:
                left = between
        programs.add(program_of(word))


def _in_assignments(words: Sequence[str], shown: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    programs: set[str] = set()
    for at, word in enumerate(words):
        option = _OF_SECRETS if word.startswith(_OF_SECRETS) else ""
        name, equals, value = word[len(option) :].partition("=")
        if equals and (option or not word.startswith("-")):
            for of, behind in _ASSIGNMENTS:
                if not programs.isdisjoint(of.split()) and not programs.isdisjoint(behind.split()):
                    yield at, f"{option}{name}={shown(value)}"
        programs.add(program_of(word))
