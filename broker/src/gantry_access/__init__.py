"""Who may do what: accounts, signatures of requests, and the guard in front of broker and name server.

It stands on the wire alone and knows no connection: a command and a peer's address in, a verdict out. Clients take from
here how to sign.
"""

from gantry_access.account_file import AccountFile
from gantry_access.accounts import Accounts, read_accounts
from gantry_access.credentials import OwnAccount, read_credentials
from gantry_access.errors import AccessFileError
from gantry_access.guard import Denial, Guard
from gantry_access.needs import NEEDS, needed
from gantry_access.permissions import ADMIN_ONLY, Account, Kind, Need, Needs, Permission
from gantry_access.settings import AccessMode, AccessSettings
from gantry_access.signing import Sign, SignatureKind, StrictSigner, signer
from gantry_wire.signatures import Credentials

__all__ = [
    "ADMIN_ONLY",
    "NEEDS",
    "AccessFileError",
    "AccessMode",
    "AccessSettings",
    "Account",
    "AccountFile",
    "Accounts",
    "Credentials",
    "Denial",
    "Guard",
    "Kind",
    "Need",
    "Needs",
    "OwnAccount",
    "Permission",
    "Sign",
    "SignatureKind",
    "StrictSigner",
    "needed",
    "read_accounts",
    "read_credentials",
    "signer",
]
