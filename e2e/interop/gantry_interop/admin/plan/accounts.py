"""Users and permissions, as brokers of 5.3 keep them."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.masks import Mask
from gantry_interop.admin.steps import Step

LISTED_PASSWORD: Final = (
    Mask(
        "password",
        r"^(?:administrator|alice-one|bob-the-boss) +(?P<value>\S+) +(?:Super|Normal) ",
        "Apache's broker lists passwords, Gantry's returns only that of one user, to a Super user",
    ),
)

STEPS: Final = (
    Step("createUser", "-b {broker} -u alice-one -p secret-of-alice"),
    Step("createUser", "-c {cluster} -u bob-the-boss -p secret-of-bob -t Super"),
    Step("createUser", "-b {broker} -u alice-one -p other-secret"),
    Step("createUser", "-u alice-one -p other-secret"),
    Step("getUser", "-b {broker} -u alice-one"),
    Step("getUser", "-c {cluster} -u bob-the-boss"),
    Step("getUser", "-b {broker} -u nobody"),
    Step("listUser", "-b {broker}", is_unordered=True, masks=LISTED_PASSWORD),
    Step("listUser", "-c {cluster} -f ali", is_unordered=True, masks=LISTED_PASSWORD),
    Step("listUser", "-b {broker} -f nobody"),
    Step("createAcl", "-b {broker} -s User:alice-one -r Topic:orders -a Pub,Sub -d Allow"),
    Step("createAcl", "-c {cluster} -s User:alice-one -r Group:readers -a Sub -d Allow"),
    Step("createAcl", "-b {broker} -s User:nobody -r Topic:orders -a Pub -d Allow"),
    Step("createAcl", "-b {broker} -s User:alice-one -r Nonsense:orders -a Pub -d Allow"),
    Step(
        "createAcl", "-b {broker} -s User:alice-one -r Topic:ord*,Group:* -a Get,List -i 10.0.0.0/8,192.0.2.1 -d Deny"
    ),
    Step("createAcl", "-b {broker} -s User:alice-one -r Topic:orders -a Pub -i nonsense -d Allow"),
    Step("createAcl", "-b {broker} -s User:alice-one -r Topic:orders -a Any -d Allow"),
    Step("createAcl", "-b {broker} -s User:alice-one -r Topic:orders -a Pub -d Perhaps"),
    Step("getAcl", "-b {broker} -s User:alice-one", is_unordered=True),
    Step("getAcl", "-c {cluster} -s User:alice-one", is_unordered=True),
    Step("getAcl", "-b {broker} -s User:nobody"),
    Step("listAcl", "-b {broker}", is_unordered=True),
    Step("listAcl", "-c {cluster} -s alice", is_unordered=True),
    Step("listAcl", "-b {broker} -r readers", is_unordered=True),
    Step("listAcl", "-b {broker} -s nobody"),
    Step("updateUser", "-b {broker} -u alice-one -p new-secret"),
    Step("updateUser", "-b {broker} -u alice-one -t Super"),
    Step("updateUser", "-c {cluster} -u alice-one -s disable"),
    Step("updateUser", "-b {broker} -u nobody -p secret"),
    Step("getUser", "-b {broker} -u alice-one", shows="updateUser"),
    Step("updateAcl", "-b {broker} -s User:alice-one -r Topic:orders -a Pub -d Deny"),
    Step("updateAcl", "-c {cluster} -s User:nobody -r Topic:orders -a Pub -d Deny"),
    Step("getAcl", "-b {broker} -s User:alice-one", shows="updateAcl", is_unordered=True),
    Step("copyUser", "-f {broker} -t {broker} -u alice-one"),
    Step("copyUser", "-f {broker} -t {broker}", is_unordered=True),
    Step("copyAcl", "-f {broker} -t {broker} -s User:alice-one"),
    Step("copyAcl", "-f {broker} -t {broker}", is_unordered=True),
    Step("deleteAcl", "-b {broker} -s User:alice-one -r Topic:orders"),
    Step("getAcl", "-b {broker} -s User:alice-one", shows="deleteAcl"),
    Step("deleteAcl", "-c {cluster} -s User:alice-one"),
    Step("deleteUser", "-b {broker} -u alice-one"),
    Step("getUser", "-b {broker} -u alice-one", shows="deleteUser"),
    Step("deleteUser", "-c {cluster} -u bob-the-boss"),
    Step("deleteUser", "-b {broker} -u nobody"),
)
