# Every target has a description (`make help`) and calls the script of the same name, which works without make.
.DEFAULT_GOAL := help
.PHONY: docs help setup up down test test-speedups verify check format manifests lock olm-bundle charts interop interop-admin interop-bench crash damage fuzz mutations audit-faults exactly-once exactly-once-sink table-kills bench-send bench-store bench-ha bench-delay bench-acl bench-sidecar bench-transactions bench-acks bench-operator bench-spark screenshots image image-operator image-pipelines image-archive image-test sbom e2e e2e-cluster clean bench-filter bench-burst abuse bench-pull bench-compare bench bench-backlog bench-scale bench-proxy museum history histories interruptions soak kind-node bench-archive bench-search

help: ## List all targets with their descriptions.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv and install the locked runtime packages and Gantry itself.
	@scripts/setup runtime

up: ## Start a name server, a master, a slave and their sidecars, check that they work, and run until Ctrl-C.
	@scripts/up

down: ## Stop the group that `make up` started.
	@scripts/down

test: ## Run all checks and one test of every path, and list what this machine could not run (CHANGED=1, DURATIONS=1: CONTRIBUTING.md).
	@scripts/test

verify: ## Run the tests with more seeds, modes and peers that `make test` omits (PART=...: one part).
	@scripts/verify

check: ## Check format, lint, prose, types, import contracts and docs; runs no broker.
	@scripts/check

format: ## Format all files, and update the generated pages in docs/ and the package graph.
	@scripts/format

docs: ## Build the documentation as a site in .gantry/docs/site, and check every link.
	@scripts/docs

manifests: ## Generate the CRDs, the schema of broker-group, the READMEs of charts, the dashboard and manifests/ from their sources.
	@scripts/manifests

olm-bundle: ## Write an OLM bundle of the operator to .gantry/olm-bundle (OLM_BUNDLE="--version 0.2.0 --image IMAGE").
	@scripts/olm-bundle $(OLM_BUNDLE)

charts: ## Package both charts in .gantry/charts, as files that `helm push` takes (CHARTS="--version 0.2.0").
	@scripts/charts $(CHARTS)

lock: ## Update requirements/*.txt, with hashes.
	@scripts/lock

interop: ## Run Apache's Java clients of RocketMQ 4 and 5 against our processes (needs Java and Maven).
	@scripts/interop

interop-admin: ## Run the commands of Apache's mqadmin against Apache's servers and ours, and compare (needs Java and Maven).
	@scripts/interop-admin $(INTEROP_ADMIN)

museum: ## Run reported failures of other systems on Apache RocketMQ and on Gantry, and compare with docs/museum.md (needs Java and root).
	@scripts/museum $(MUSEUM)

interop-bench: ## Run Apache's own benchmark Producer and Consumer against our processes (needs Java and Maven).
	@scripts/interop-bench

crash: ## Kill the broker in every mode at crash points, inject disk faults, and check that no acknowledged message is lost.
	@scripts/crash

soak: ## Run every feature of a group for an hour with faults: memory, files, threads and latency must stay flat (HOURS=6).
	@scripts/soak --hours $(or $(HOURS),1) $(SOAK)

damage: ## Damage every kind of file of a store in every way, some 3,200 times, and check for wrong and silently missing messages.
	@scripts/damage $(DAMAGE)

history: ## Repeat one history of a simulated group: make history SEED=7.
	@scripts/history --seed $(SEED)

histories: ## Run 10,000 histories of a simulated group with overlapping faults: make histories HISTORIES="--part 1/4 --result part-1.json".
	@scripts/histories $(HISTORIES)

interruptions: ## Interrupt every operation of the operator at every write: make interruptions INTERRUPTIONS="--operation failover".
	@scripts/interruptions $(INTERRUPTIONS)

exactly-once: ## Archive a million messages while driver, workers and brokers are killed, and compare with the log (needs Java).
	@scripts/exactly-once $(EXACTLY_ONCE)

test-speedups: ## Test the compiled hot path with sanitizers, then the broker with the Python path (needs a C compiler).
	@scripts/test-speedups

fuzz: ## Send two million mutated frames to a broker and a name server, and check that both still serve.
	@scripts/fuzz

abuse: ## Attack brokers and name servers (partial frames, slow readers, resets, bombs); measure memory, files and a normal client's p99.
	@scripts/abuse $(ABUSE)

mutations: ## Inject hand-made faults into copies of the tree, one at a time; `make test` or `make verify` must detect each.
	@scripts/mutations $(MUTATIONS)

audit-faults: ## Inject 100 faults into the stores of a master and its slave; the audit must report exactly these.
	@scripts/audit-faults

exactly-once-sink: ## Kill driver, workers and brokers under a transactional Spark sink: each row must exist exactly once (needs Java).
	@scripts/exactly-once-sink

table-kills: ## Kill archives with Iceberg and Delta tables at random steps, and compare all readers with the log (needs Java).
	@scripts/table-kills $(TABLE_KILLS)

bench: ## Measure every performance goal and print one table: both code paths, Apache and a C server (under an hour).
	@scripts/bench $(BENCH)

bench-send: ## Measure sends: rate, latency, and broker CPU per message, compared with an echo and a C server.
	@scripts/bench-send $(BENCH_SEND)

bench-backlog: ## Measure pulls of a backlog on both code paths, compared with Apache's broker.
	@scripts/bench-backlog $(BENCH_BACKLOG)

bench-burst: ## Measure bursts, compared with Apache's broker: refused and stored messages, p99 of a normal client.
	@scripts/bench-burst $(BENCH_BURST)

bench-store: ## Measure the store: append tail with and without a write buffer, sync flush, recovery, memory.
	@scripts/bench-store $(BENCH_STORE)

bench-ha: ## Measure replication: eight setups compared with Apache RocketMQ, low memory, a slow slave.
	@scripts/bench-ha $(BENCH_HA)

bench-delay: ## Measure delayed messages: memory with a million pending messages, and delivery lateness.
	@scripts/bench-delay $(BENCH_DELAY)

bench-acl: ## Measure the cost of access control: CPU per message with and without it.
	@scripts/bench-acl $(BENCH_ACL)

bench-sidecar: ## Measure the sidecar: ranges of the log compared with `cp`, sends during reads, the cost of a scrape.
	@scripts/bench-sidecar $(BENCH_SIDECAR)

bench-proxy: ## Measure the gRPC proxy: rate, latency and CPU per message, compared with Apache's proxy.
	@scripts/bench-proxy $(BENCH_PROXY)

bench-acks: ## Measure sends by what their acknowledgement waits for: nothing, a slave, a slave's disk, both disks.
	@scripts/bench-acks $(BENCH_ACKS)

bench-transactions: ## Measure transactions: 100 in flight compared with none, 10,000 and 100,000 open ones.
	@scripts/bench-transactions $(BENCH_TRANSACTIONS)

bench-archive: ## Measure a consumer that reads a topic which mostly only the archive has, and sends beside it.
	@scripts/bench-archive $(BENCH_ARCHIVE)

bench-search: ## Measure search and live tail of a topic with ten million messages, and sends beside a search.
	@scripts/bench-search $(BENCH_SEARCH)

bench-scale: ## Measure memory, CPU and starts as topics, connections, consumers, shards and the log grow, with pictures.
	@scripts/bench-scale $(BENCH_SCALE)

bench-spark: ## Measure Spark: reads, archive and sink compared with Parquet and tuples, and sends during reads.
	@scripts/bench-spark $(BENCH_SPARK)

bench-filter: ## Measure SQL92 filters: messages per second on one core.
	@scripts/bench-filter $(BENCH_FILTER)

bench-pull: ## Measure the cost of read verification in pulls: hot and first reads, adjacent and scattered messages.
	@scripts/bench-pull $(BENCH_PULL)

bench-compare: ## Measure sends and replication of this tree and of the commit BEFORE in one run (BEFORE=REV).
	@scripts/bench-compare $(or $(BEFORE),$(error BEFORE is missing; example: make bench-compare BEFORE=HEAD~10)) $(BENCH_COMPARE)

bench-operator: ## Measure the operator: 50 groups at once at a real API server, and its requests and memory at rest.
	@scripts/bench-operator $(BENCH_OPERATOR)

screenshots: ## Take the screenshots of the console in docs/images from a group under load (needs Chromium).
	@scripts/screenshots $(SCREENSHOTS)

image: ## Build the broker image with buildah (needs root).
	@scripts/image

image-operator: ## Build the operator image with buildah (needs root).
	@scripts/image-operator

image-pipelines: ## Build the pipelines image, with Spark and Java, with buildah (needs root).
	@scripts/image-pipelines

image-test: ## Build the images on a local base, and run their programs (needs root and buildah).
	@scripts/image-test

sbom: ## Write the SBOMs (CycloneDX) of the wheel and of the built images, and validate them (needs root and buildah).
	@scripts/sbom $(SBOM)

image-archive: ## Write the image to a file that docker, containerd and kind import (needs root and buildah).
	@scripts/image-archive

e2e: ## Test groups of the operator under faults on three Kubernetes nodes on this machine (needs root and Go; scripts/e2e --help: other clusters).
	@scripts/e2e

kind-node: ## Build the image of a node for `scripts/e2e --kind`, without a registry (needs root and Go).
	@scripts/kind-node

e2e-cluster: ## Check the Kubernetes features that the operator needs on three nodes on this machine (needs root and Go).
	@scripts/e2e-cluster

clean: ## Remove environments, caches and build products; messages in .gantry are kept.
	@scripts/clean
