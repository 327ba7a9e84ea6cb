"""The document types of all commands, for docs/output.md and for tests.

The names of their fields are stable; fields may be added. A document that another package defines (the status of a
broker, the findings in a store) is used directly, so that no copy of it can become outdated.
"""

from __future__ import annotations

from typing import Any, Final

from gantry_broker.store.inspect.repair import RepairPlan
from gantry_broker.store.inspect.summary import StoreSummary
from gantry_broker.store.loss import LossRecord
from gantry_broker.store.message_store import RecoveryReport
from gantry_cli.doctor.results import DoctorDocument
from gantry_cli.group.documents import (
    CloneDocument,
    DirectConsumeDocument,
    GroupDeletedDocument,
    GroupDocument,
    GroupLagDocument,
    MembersOfGroupDocument,
    ResendDocument,
    ResendOutcomeDocument,
    ResetDocument,
    RunningDocument,
)
from gantry_cli.ha.group import MembersDocument
from gantry_cli.ha.promote import PromotionDocument
from gantry_cli.kube.backups import BackupDocument
from gantry_cli.kube.capacity_documents import CapacityDocument
from gantry_cli.kube.documents import ClusterGroupStatus, KubeExplainDocument
from gantry_cli.local.group_status import ExplainDocument
from gantry_cli.message.documents import MessageDescriptionDocument
from gantry_cli.messages.documents import MessageDocument, ReceiptDocument
from gantry_cli.migrate.migrator import MigrationResult
from gantry_cli.orders import OrderDocument
from gantry_cli.status.commands import ClusterDocument
from gantry_cli.store.documents import RecordDocument, VerifyDocument
from gantry_cli.topic.documents import (
    TopicCreatedDocument,
    TopicDeletedDocument,
    TopicDocument,
    TopicOrderDocument,
    TopicPlanDocument,
)
from gantry_status.orders import HaStatus, Promised

DOCUMENTS: Final[dict[str, Any]] = {
    "gantry status": ClusterDocument,
    "gantry doctor": DoctorDocument,
    "gantry explain": ExplainDocument,
    "gantry explain --capacity": CapacityDocument,
    "gantry promote": OrderDocument,
    "gantry fence": OrderDocument,
    "gantry restore": OrderDocument,
    "gantry backup": BackupDocument,
    "gantry topic list": list[str],
    "gantry topic create": TopicCreatedDocument,
    "gantry topic create --dry-run": TopicPlanDocument,
    "gantry topic delete": TopicDeletedDocument,
    "gantry topic describe": TopicDocument,
    "gantry topic order": TopicOrderDocument,
    "gantry topic stats": TopicDocument,
    "gantry produce": ReceiptDocument,
    "gantry consume": MessageDocument,
    "gantry search": MessageDocument,
    "gantry group list": list[str],
    "gantry group list --lag": list[GroupLagDocument],
    "gantry group describe": GroupDocument,
    "gantry group stats": GroupDocument,
    "gantry group members": MembersOfGroupDocument,
    "gantry group connections": MembersOfGroupDocument,
    "gantry group running": list[RunningDocument],
    "gantry group reset": ResetDocument,
    "gantry group clone": CloneDocument,
    "gantry group consume": DirectConsumeDocument,
    "gantry group delete": GroupDeletedDocument,
    "gantry group resend": ResendDocument,
    "gantry group resend --outcomes": ResendOutcomeDocument,
    "gantry message describe": MessageDescriptionDocument,
    "gantry message resend": ResendDocument,
    "gantry store inspect": StoreSummary,
    "gantry store verify": VerifyDocument,
    "gantry store dump": RecordDocument,
    "gantry store repair-plan": RepairPlan,
    "gantry store recover": RecoveryReport,
    "gantry store accept-loss": LossRecord,
    "gantry ha status": MembersDocument,
    "gantry ha promote": PromotionDocument,
    "gantry ha promise": Promised,
    "gantry ha promote-at": HaStatus,
    "gantry ha follow": HaStatus,
    "gantry ha demote": HaStatus,
    "gantry ha fence": HaStatus,
    "gantry ha drain": HaStatus,
    "gantry ha flush": HaStatus,
    "gantry ha accept-loss": HaStatus,
    "gantry migrate": MigrationResult,
    "kubectl gantry status": ClusterGroupStatus,
    "kubectl gantry explain": KubeExplainDocument,
    "kubectl gantry explain --capacity": CapacityDocument,
    "kubectl gantry promote": OrderDocument,
    "kubectl gantry fence": OrderDocument,
    "kubectl gantry restore": OrderDocument,
    "kubectl gantry backup": BackupDocument,
}
