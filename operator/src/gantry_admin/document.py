"""What all documents are: typed, frozen, and open to what a younger peer adds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Root of all answers. A peer of a younger version may say more; that is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
