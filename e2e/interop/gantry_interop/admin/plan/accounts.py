"""Users and permissions, as brokers of 5.3 keep them."""

from __future__ import annotations

from typing import Final

from gantry_interop.admin.steps import Step

STEPS: Final = (
    Step("createUser", "-b {broker} -u alice -p secret-of-alice"),
    Step("createUser", "-c {cluster} -u bob -p secret-of-bob -t Super"),
    Step("createUser", "-b {broker} -u alice -p other"),
    Step("getUser", "-b {broker} -u alice", shows="createUser"),
    Step("listUser", "-b {broker}", shows="createUser", is_unordered=True),
    Step("getUser", "-c {cluster} -u bob"),
    Step("getUser", "-b {broker} -u nobody"),
    Step("listUser", "-b {broker}", is_unordered=True),
    Step("listUser", "-c {cluster} -f ali", is_unordered=True),
    Step("updateUser", "-b {broker} -u alice -p new-secret"),
    Step("updateUser", "-b {broker} -u alice -t Super"),
    Step("updateUser", "-c {cluster} -u alice -s disable"),
    Step("updateUser", "-b {broker} -u nobody -p secret"),
    Step("getUser", "-b {broker} -u alice", shows="updateUser"),
    Step("createAcl", "-b {broker} -s User:alice -r Topic:orders -a Pub,Sub -d Allow"),
    Step("createAcl", "-c {cluster} -s User:bob -r Topic:*,Group:* -a Sub -d Deny -i 192.168.0.0/16"),
    Step("createAcl", "-b {broker} -s User:nobody -r Topic:orders -a Pub -d Allow"),
    Step("createAcl", "-b {broker} -s User:alice -r Nonsense:orders -a Pub -d Allow"),
    Step("getAcl", "-b {broker} -s User:alice", shows="createAcl"),
    Step("getAcl", "-c {cluster} -s User:bob"),
    Step("getAcl", "-b {broker} -s User:nobody"),
    Step("listAcl", "-b {broker}", is_unordered=True),
    Step("listAcl", "-c {cluster} -s alice", is_unordered=True),
    Step("listAcl", "-b {broker} -r orders", is_unordered=True),
    Step("updateAcl", "-b {broker} -s User:alice -r Topic:orders -a Pub -d Deny"),
    Step("getAcl", "-b {broker} -s User:alice", shows="updateAcl"),
    Step("updateAcl", "-c {cluster} -s User:nobody -r Topic:orders -a Pub -d Deny"),
    Step("copyUser", "-f {broker} -t {broker} -u alice"),
    Step("copyUser", "-f {broker} -t {broker}"),
    Step("copyAcl", "-f {broker} -t {broker} -s User:alice"),
    Step("copyAcl", "-f {broker} -t {broker}"),
    Step("deleteAcl", "-b {broker} -s User:alice -r Topic:orders"),
    Step("getAcl", "-b {broker} -s User:alice", shows="deleteAcl"),
    Step("deleteAcl", "-c {cluster} -s User:bob"),
    Step("deleteUser", "-b {broker} -u alice"),
    Step("getUser", "-b {broker} -u alice", shows="deleteUser"),
    Step("deleteUser", "-c {cluster} -u bob"),
    Step("deleteUser", "-b {broker} -u nobody"),
)
