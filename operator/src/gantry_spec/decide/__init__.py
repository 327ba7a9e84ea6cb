"""``decide``: the actions for a group, from its spec and its observed state. Pure and stateless.

It may be called at any time, with an observation of any age, by any number of processes at once. Every decision is safe
to execute late, twice, or not at all (``gantry_spec.actions``); the durable state is in the shard's Lease
(``gantry_spec.lease``).

    no Lease             bootstrap            the first master of a shard
                         manual_promotion     the last term, where a person gives the orders (`gantry ha promote`)
    an epoch taken       election             promises, end of the old master's grants, loss, and then the new master
    a settled epoch      term_maintenance     promote the master, attach the slaves, detect its failure
                         planned_changes      switchovers and restarts of a healthy shard
    closed to clients    withdrawal           shards that are fenced or removed
                         hibernation          shards that are stopped until the group is woken
    always               membership           which brokers run, which are removed, which disks are replaced

A settled epoch is one of which the Lease names the master. Every action is checked by the safety gate (``gate``) last.
"""

from gantry_spec.decide.decision import Condition, Decision, Fences
from gantry_spec.decide.group import decide

__all__ = ["Condition", "Decision", "Fences", "decide"]
