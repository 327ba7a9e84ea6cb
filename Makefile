# Every target says what it does (`make help`) and calls a script of the same name, which works without make.
.DEFAULT_GOAL := help
.PHONY: help setup up down test verify check format manifests lock interop interop-admin interop-bench crash damage fuzz mutations audit-faults exactly-once exactly-once-sink bench-send bench-store bench-ha bench-delay bench-acl bench-sidecar bench-transactions bench-operator bench-spark screenshot image image-operator image-pipelines image-archive image-test e2e e2e-cluster clean bench-filter bench-burst abuse bench-pull bench-compare

help: ## Show every target and what it does.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv and install the locked runtime packages and Gantry itself.
	@scripts/setup runtime

up: ## Start a name server, a master, a slave and their sidecars; prove that they work; stay until Ctrl-C.
	@scripts/up

down: ## Stop what `make up` started.
	@scripts/down

test: ## Check, then prove every path once, and say what this machine could not run (CHANGED=1, DURATIONS=1: CONTRIBUTING.md).
	@scripts/test

verify: ## Run the tests that repeat make test with more seeds, modes and peers (PART=...: one part).
	@scripts/verify

check: ## Format, lint, types, import contracts and the docs test; runs no broker.
	@scripts/check

format: ## Put every file into the one form, and write docs/settings.md, docs/commands.md and docs/groups.md again.
	@scripts/format

manifests: ## Write the CRD, the charts' schemas and READMEs, the dashboard and manifests/ from their sources.
	@scripts/manifests

lock: ## Write requirements/*.txt again, with hashes.
	@scripts/lock

interop: ## Run Apache's Java clients 4.9.8 and 5.3.3 against our processes (needs Java and Maven).
	@scripts/interop

interop-admin: ## Run every command of Apache's mqadmin against Apache's servers and ours, and compare (needs Java and Maven).
	@scripts/interop-admin $(INTEROP_ADMIN)

interop-bench: ## Run Apache's own benchmark Producer and Consumer against our processes (needs Java and Maven).
	@scripts/interop-bench

crash: ## Kill the broker in every mode at every bad moment, break its disk, and look for what it promised.
	@scripts/crash

damage: ## Damage every kind of file of a store in every way, 2,200 times, and look for wrong and silently missing messages.
	@scripts/damage $(DAMAGE)

exactly-once: ## Archive a million messages while everybody is killed, and compare what readers see with the log (needs Java).
	@scripts/exactly-once $(EXACTLY_ONCE)

fuzz: ## Send two million mutated frames to a broker and see that it still serves.
	@scripts/fuzz

abuse: ## Attack brokers and name servers (half frames, deaf readers, resets, bombs); show memory, files and an honest client's p99.
	@scripts/abuse $(ABUSE)

mutations: ## Put thirty hand-made faults into copies of the tree, one at a time; `make test` or `make verify` must catch each.
	@scripts/mutations $(MUTATIONS)

audit-faults: ## Plant 100 faults into the stores of a master and its slave; the audit must name each, and nothing else.
	@scripts/audit-faults

exactly-once-sink: ## Kill driver, workers and brokers under a transactional Spark sink: each row must be there once (needs Java).
	@scripts/exactly-once-sink

bench-send: ## Measure sends: rate, latency, and broker CPU per message beside an echo server.
	@scripts/bench-send

bench-burst: ## Show bursts beside Apache's broker: refused, stored, p99 of an honest client.
	@scripts/bench-burst $(BENCH_BURST)

bench-store: ## Measure the store: append tail with and without a write buffer, sync flush, recovery, memory.
	@scripts/bench-store $(BENCH_STORE)

bench-ha: ## Measure replication: eight setups beside Apache RocketMQ's, little memory, a slow slave.
	@scripts/bench-ha $(BENCH_HA)

bench-delay: ## Measure delays: memory with a million pending messages, and how late they are delivered.
	@scripts/bench-delay $(BENCH_DELAY)

bench-acl: ## Measure what access control costs a send: CPU per message with and without it.
	@scripts/bench-acl $(BENCH_ACL)

bench-sidecar: ## Measure the sidecar: ranges of the log beside `cp`, sends beside a reader, the cost of a scrape.
	@scripts/bench-sidecar $(BENCH_SIDECAR)

bench-transactions: ## Measure transactions: 100 in flight beside none, 10,000 and 100,000 that are open.
	@scripts/bench-transactions $(BENCH_TRANSACTIONS)

bench-spark: ## Measure Spark: reads, archive and sink beside its own Parquet and tuples, and sends beside a reader.
	@scripts/bench-spark $(BENCH_SPARK)

bench-filter: ## Measure filters in SQL92: how many messages a second one core judges.
	@scripts/bench-filter $(BENCH_FILTER)

bench-pull: ## Measure what verifying every read costs a pull: hot and first reads, messages side by side and apart.
	@scripts/bench-pull $(BENCH_PULL)

bench-compare: ## Measure what changed since the commit BEFORE: sends and replication of both in one run (BEFORE=REV).
	@scripts/bench-compare $(or $(BEFORE),$(error BEFORE is missing; example: make bench-compare BEFORE=HEAD~10)) $(BENCH_COMPARE)

bench-operator: ## Measure the operator: 50 groups at once at a real API server, and its calls and memory at rest.
	@scripts/bench-operator $(BENCH_OPERATOR)

screenshot: ## Take the pictures of the console in docs/images again, of a group under load (needs Chromium).
	@scripts/screenshot $(SCREENSHOT)

image: ## Build the broker image with buildah (needs root).
	@scripts/image

image-operator: ## Build the operator image with buildah (needs root).
	@scripts/image-operator

image-pipelines: ## Build the image of pipelines, Spark and a Java in it, with buildah (needs root).
	@scripts/image-pipelines

image-test: ## Build the broker image on a base made here, and run `gantry` in it (needs root and buildah).
	@scripts/image-test

image-archive: ## Write the image to a file that docker, containerd and kind import (needs root and buildah).
	@scripts/image-archive

e2e: ## Run groups with the operator on three real Kubernetes nodes on this machine, and break them (needs root and Go; scripts/e2e --help: other clusters).
	@scripts/e2e

e2e-cluster: ## Make three real Kubernetes nodes on this machine, and see what the operator leans on work there (needs root and Go).
	@scripts/e2e-cluster

clean: ## Remove environments, caches and build products; messages in .gantry stay.
	@scripts/clean
