"""The output of a fuzz run: for each server a table by request code and the sums, then the findings."""

from collections.abc import Sequence

import click
from fuzz.tally import NOT_SUPPORTED, Tally

from gantry_wire import RequestCode, ResponseCode


def report(tallies: Sequence[Tally], seconds: float) -> None:
    """Print all counts and findings of a run."""
    for tally in tallies:
        if tally.frames:
            _report_one(tally)
    frames = sum(tally.frames for tally in tallies)
    handled = sum(tally.handled for tally in tallies)
    findings = [finding for tally in tallies for finding in tally.findings]
    click.echo(
        f"\nall: {frames:,} mutated frames in {seconds:.0f} s, {handled:,} ({handled / max(1, frames):.0%}) answered "
        f"by a handler, {len(findings)} findings"
    )
    for finding in findings:
        click.echo(f"FOUND {finding}")


def _report_one(tally: Tally) -> None:
    click.echo(f"\n{tally.target}: request code, frames that parse, answered by a handler, replies")
    for code, parsed, handled, replies in tally.by_request():
        if not _is_known(code):
            continue
        shown = " ".join(f"{reply}:{count}" for reply, count in replies.most_common(6))
        click.echo(f"  {code:>6} {RequestCode(code).name:<42} {parsed:>9,} {handled:>9,}  {shown}")
    others = sum(parsed for code, parsed, _, _ in tally.by_request() if not _is_known(code))
    known = len(tally.codes_parsed)
    click.echo(f"  unknown codes: {others:,}; request codes covered: {known} of {len(RequestCode)}")
    sums = " ".join(f"{_reply_name(reply)}:{count:,}" for reply, count in tally.replies.most_common())
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in tally.kinds.most_common())
    click.echo(
        f"{tally.target}: {tally.frames:,} frames in {tally.sessions:,} connections, {tally.bytes_sent / 1e6:,.0f} MB\n"
        f"  parsed {tally.parsed.total():,}, answered by a handler {tally.handled:,}, "
        f"not supported {tally.replies[NOT_SUPPORTED]:,}, without a reply {tally.without_reply:,}\n"
        f"  closed for breaking the protocol {tally.closed_by_server:,} (with {tally.lost_at_close:,} answers due), "
        f"requests left held {tally.held:,}, notices {tally.notices:,}\n"
        f"  replies: {sums}\n  changes: {kinds}"
    )


def _is_known(code: int) -> bool:
    return code in RequestCode.__members__.values()


def _reply_name(code: int) -> str:
    return ResponseCode(code).name if code in ResponseCode.__members__.values() else str(code)
