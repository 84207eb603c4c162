"""Notice a job of a scheduler that ezpz does not know: its hosts are named by hand, and a launch without them says so.

    PE_HOSTFILE=/opt/sge/spool/n01/active_jobs/55.1/pe_hostfile      Grid Engine: host, slots, queue, processors
        n01 2 all.q@n01 UNDEFINED
    COBALT_NODEFILE=/var/tmp/cobalt.123      COBALT_JOBID=123        Cobalt: a host per line

Sources: sge_pe(5), "PE_HOSTFILE"; Cobalt's qsub(1). Never run on such a machine.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read


def unknown_job(environ: Mapping[str, str], read: Read) -> str:
    """Return a note where the shell is in a job of several hosts, or of none that can be read; empty else.

    Args:
        environ: The environment to read.
        read: Returns the text of a file or None.
    """
    first_words = '--hosts "$(cut -d" " -f1 "$PE_HOSTFILE" | paste -sd,)"'
    for title, variable, path, words in (
        ("Grid Engine", "PE_HOSTFILE", environ.get("PE_HOSTFILE"), first_words),
        ("Cobalt", "COBALT_NODEFILE", environ.get("COBALT_NODEFILE"), '--hostfile "$COBALT_NODEFILE"'),
    ):
        hosts = {line.split()[0] for line in (read(path) or "").splitlines() if line.strip()} if path else {""}
        if len(hosts) == 1:
            continue
        of = f"of {len(hosts)} hosts" if hosts else "whose hosts cannot be read"
        all_of_them = f"; to use them all, run `launch {words} COMMAND`" if hosts else ""
        not_known = "which is not known here: this host alone is used"
        return f"this is a job of {title} {of} (from {variable}), {not_known}{all_of_them}"
    return ""
