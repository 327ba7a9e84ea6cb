"""Hand-made faults of access control, the gRPC proxy, the client library, the name server and the command line."""

from __future__ import annotations

from typing import Final

from mutations.planted_fault import Fault

CLIENT: Final = (
    Fault(
        "one attempt too few",
        "broker/src/gantry_client/sender.py",
        "if len(attempts) > self._settings.retries:",
        "if len(attempts) >= self._settings.retries:",
        "A send is tried again as often as `retries` says.",
    ),
    Fault(
        "message lost when not taken back",
        "broker/src/gantry_client/handling.py",
        "        if retry is not None and not await self._send_back_or_retry(item, retry.delay_level):\n"
        "            return\n",
        "        if retry is not None:\n            await self._send_back_or_retry(item, retry.delay_level)\n",
        "A message that its handler refused and no broker took back is handled again.",
        judges=("services",),
        is_about_messages=True,
    ),
)

NAME_SERVER: Final = (
    Fault(
        "silent broker never expires",
        "broker/src/gantry_nameserver/directory.py",
        "return self.last_heartbeat_ms + self.heartbeat_timeout_ms < now_ms",
        "return self.last_heartbeat_ms - now_ms > self.heartbeat_timeout_ms",
        "A broker without heartbeats leaves all routes.",
    ),
)

ACCESS: Final = (
    Fault(
        "unknown message may be read",
        "broker/src/gantry_access/guard.py",
        "if resolved is None or not account.has_permission(resolved, peer):",
        "if resolved is not None and not account.has_permission(resolved, peer):",
        "A message whose topic is not known is readable for administrators only.",
    ),
    Fault(
        "changed accounts not taken over",
        "broker/src/gantry_access/account_file.py",
        "return None if data == known else (data, read_accounts(data, self.path, self._mode))",
        "return None if len(data) == len(known) else (data, read_accounts(data, self.path, self._mode))",
        "A permission that is removed from the file of accounts is gone within seconds.",
    ),
    Fault(
        "allow before deny",
        "broker/src/gantry_access/policies.py",
        "return self.resource.precedence, self.decision is Decision.ALLOW",
        "return self.resource.precedence, self.decision is Decision.DENY",
        "Where two policies match equally well, the one that denies decides.",
    ),
    Fault(
        "request with old signature accepted",
        "broker/src/gantry_access/replay_detector.py",
        "if claim.number <= session.number:",
        "if claim.number < session.number:",
        "A strictly signed request that was recorded on the network is refused when it comes again.",
    ),
    Fault(
        "client certificate optional",
        "broker/src/gantry_remoting/tls_contexts.py",
        "context.verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        "A listener that demands client certificates refuses clients without one.",
    ),
)

PROXY: Final = (
    Fault(
        "unread message not returned",
        "broker/src/gantry_proxy/handlers/receiving.py",
        "for _, receipt in delivery.messages[written:]:",
        "for _, receipt in delivery.messages[written + 1 :]:",
        "A message that a client was not sent because it left returns to its group at once.",
    ),
    Fault(
        "failed ack reported as done",
        "broker/src/gantry_proxy/handlers/acknowledging.py",
        "            if is_settled:\n                reply",
        "            if outcome.code != ResponseCode.SYSTEM_BUSY:\n                reply",
        "A client of the proxy learns when the broker has refused its ack.",
    ),
    Fault(
        "invisible time renewed for ever",
        "broker/src/gantry_proxy/renewal.py",
        "if self._now_ms() - message.since_ms >= WORK_MS_MAX:",
        "if self._now_ms() - message.visible_at_ms >= WORK_MS_MAX:",
        "A message whose consumer hangs is delivered to another one after three hours.",
    ),
    Fault(
        "deleted account kept by the proxy",
        "broker/src/gantry_proxy/broker_accounts.py",
        "        if not reply.body:\n            return None\n        try:\n            user",
        "        if not reply.body:\n            return self._known.peek(name)\n        try:\n            user",
        "An account that is deleted at the brokers cannot be used at the proxy.",
    ),
)

COMMAND_LINE: Final = (
    Fault(
        "silent broker called serving",
        "operator/src/gantry_cli/status/page.py",
        "    if reading.is_stale():\n        return EXIT_UNRESPONSIVE\n",
        "    if reading.is_writer_alive is False:\n        return EXIT_UNRESPONSIVE\n",
        "`gantry status --page` exits with 4 when the broker's event loop stands still.",
    ),
)
