"""Who a certificate is about, as one line for logs: `CN=billing,OU=payments,O=Example`.

The most special part first, as LDAP writes names. A name is chosen by whoever asked for the certificate, so everything
that could end a field or a line of a log is written with a backslash.
"""

from typing import Final, cast

_SHORT: Final = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_SPECIAL: Final = frozenset(',+"\\<>;=')

Names = tuple[tuple[tuple[str, str], ...], ...]


def subject_text(certificate: dict[str, object]) -> str:
    """Of what `getpeercert` gives. A certificate without a subject is known by its first other name, or not at all."""
    subject = cast(Names, certificate.get("subject") or ())
    parts = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in subject]
    if parts:
        return ",".join(reversed(parts))
    others = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName") or ())
    return next((f"{kind.replace(' ', '')}:{_escaped(value)}" for kind, value in others), "")


def _escaped(value: str) -> str:
    return "".join(_character(character) for character in value)


def _character(character: str) -> str:
    if character in _SPECIAL:
        return "\\" + character
    if character.isprintable() and character != " ":
        return character
    return "".join(f"\\{byte:02X}" for byte in character.encode("utf-8", "backslashreplace"))
