"""Which Gantry this is, as every status page, sidecar and command says.

It is on the lowest floor, where all can see it, and it is written here, and not looked up in what pip has installed:
looking takes a tenth of a broker's start, and finds nothing in a copy that was not installed. A test holds it against
pyproject.toml.
"""

from typing import Final

VERSION: Final = "0.1.0"
