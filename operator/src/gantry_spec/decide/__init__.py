"""``decide``: what to do about a group, from what it should be and what was seen. Pure, and without a memory.

It may be called at any time with any look, however old, by as many as like. What is decided is safe to do late, twice,
or not at all (``gantry_spec.actions``), and what has to be remembered is in the shard's Lease (``gantry_spec.lease``).

    no Lease        beginning     who is the first master
                    by_hand       the last term, where a person gives the orders (`gantry ha promote`)
    an epoch taken  electing      promises, keys, loss, and then a name
    an epoch named  settled       promote it, gather the others, notice when it is gone
                    `- moving     what is done to a healthy shard on purpose
    kept from clients  withheld   fenced, or scaled away; sleeping, which of them sleep
    always          membership    which brokers run, which go, which disk is replaced
"""

from gantry_spec.decide.decision import Condition, Decision
from gantry_spec.decide.group import decide

__all__ = ["Condition", "Decision", "decide"]
