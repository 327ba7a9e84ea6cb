"""Access control: accounts, request signatures, and the guard in front of broker and name server.

It depends on the wire package only and not on connections: it decides on a command and the address of its peer. Clients
use it to sign their requests.
"""

from gantry_access.account import Account
from gantry_access.account_file import AccountFile
from gantry_access.account_store import AccountStore
from gantry_access.accounts import Accounts, read_accounts
from gantry_access.credentials import OwnAccount, read_credentials
from gantry_access.errors import AccessFileError
from gantry_access.guard import Denial, Guard
from gantry_access.needs import NEEDS, needs_of
from gantry_access.permissions import ADMIN_ONLY, Kind, Need, Needs, Permission
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
    "AccountStore",
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
    "needs_of",
    "read_accounts",
    "read_credentials",
    "signer",
]
