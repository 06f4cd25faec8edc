# `make demo` and `make test` do everything that a fresh machine needs; a second run downloads nothing.
# What they take from outside: Python 3.11, Java 17 or 21, and at the first run a network.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test test-library test-kafka test-pipeline test-compose test-peers test-java test-storage classes images docs lint types bench bench-quick bench-guard peers fuzz sim mutants schemas sbom jars lock clean java

PYTHON := $(shell for each in python3.11 python3; do \
	$$each -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$each && break; done)
UV ?= uv
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --require-hashes --no-build-isolation

help:
	@echo "make demo          the service on a real Kafka and a real Spark, from nothing; checks every record"
	@echo "make test          lint, types, import contracts and all tests except those with containers"
	@echo "make test-compose  the compose file: fed, killed, upgraded and on a Spark cluster. Without a container"
	@echo "                   engine it starts one as root on Debian (installs docker.io), or says why it skips"
	@echo "make test-peers    every system of the benchmarks, with few records; all outputs must be right"
	@echo "make test-storage  checkpoints on servers of HDFS and S3: services killed, and started at another host"
	@echo "make images        stand-ins for the official base images, for machines without an image registry"
	@echo "make test-java     the client for Java, with jobs that are killed and a service that reads them (needs Maven)"
	@echo "make docs          the pages in build/site, with the tables of config keys from the code"
	@echo "make bench         against Spark, Kafka Streams and Flink, 20 minutes; writes the performance page."
	@echo "                   OPTIONS='--rounds 3 --systems ours streams' for more rounds, or fewer systems"
	@echo "make bench-quick   the same with few records, 4 minutes; only prints the tables"
	@echo "make bench-guard   CPU of the core's hot paths, and what has changed since benchmarks/guard.json"
	@echo "make peers         what the benchmarks need of Kafka Streams and Flink, in build/peers (needs Maven)"
	@echo "make lint          ruff and the import contracts"
	@echo "make types         mypy --strict"
	@echo "make fuzz          ten minutes of random bytes for everything that reads bytes; FUZZ_SECONDS=60 for less"
	@echo "make sim           ten minutes of random histories of the whole service; SEEDS=100000 or"
	@echo "                   SIM_SECONDS=60 for more or less, SEED=4711 for one history in words"
	@echo "make mutants       how many histories find each defect that is put into the code on purpose"
	@echo "make schemas       schemas/ from the code"
	@echo "make sbom          build/bom.json: every package and jar of a service, in CycloneDX"
	@echo "make lock          resolve all versions into requirements/*.txt and replayfilter/jvm/jars.lock (needs uv)"
	@echo "make clean         remove the virtual environment and all caches in this folder"

demo: .venv/service.installed jars
	$(BIN)/replayfilter demo

# Three strands, because one alone would mostly wait. Two cores are enough.
test: .venv/dev.installed jars
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types classes
	@echo "three strands of tests; each prints its output when it ends"
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target test-pipeline test-library test-kafka

# Tests start dozens of short-lived JVMs. Java's first compiler alone needs half the CPU for that.
test test-%: export SPARK_SUBMIT_OPTS = -XX:TieredStopAtLevel=1
test test-%: export KAFKA_OPTS = -XX:TieredStopAtLevel=1

test-library:
	$(BIN)/python -m pytest -m "not kafka and not spark and not compose and not java and not storage"
	$(BIN)/python -m pytest -m "spark and not kill and not storage" tests/service/runtime

test-kafka:
	$(BIN)/python -m pytest -m "kafka and not spark and not java"
	$(BIN)/python -m pytest -m kill

test-pipeline:
	$(BIN)/python -m pytest -m "spark and not kill and not peers and not storage" --ignore tests/service/runtime

# Spark's classes, read once: every service that the tests start then starts 7 s sooner.
classes: .venv/share/replayfilter/classes.jsa

.venv/share/replayfilter/classes.jsa: .venv/service.installed | jars
	@$(BIN)/replayfilter prepare

ENGINE_FOLDER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/replayfilter/engine

test-compose: .venv/dev.installed jars
	tests/compose/engine $(ENGINE_FOLDER) tests/compose/run $(BIN)/python

images: .venv/dev.installed jars
	tests/compose/engine $(ENGINE_FOLDER) tests/compose/local-images $(BIN)/python

docs: .venv/dev.installed
	$(BIN)/python docs/remake.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: .venv/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev.installed
	$(BIN)/mypy

bench: .venv/service.installed jars classes peers
	$(BIN)/python -m benchmarks $(OPTIONS)
	$(BIN)/python -m benchmarks.report --page

bench-quick: .venv/service.installed jars classes peers
	$(BIN)/python -m benchmarks --quick $(OPTIONS)

bench-guard: .venv/dev.installed
	$(BIN)/python -m benchmarks.guard $(OPTIONS)

# Every system once, with few records: all outputs must be right.
test-peers: .venv/dev.installed jars peers
	$(BIN)/python -m pytest -m peers

NEEDS_MAVEN := command -v mvn >/dev/null && command -v javac >/dev/null || { echo "Maven or a JDK is missing: \
	install both (on Debian and Ubuntu: apt install maven openjdk-17-jdk-headless)." >&2; exit 1; }

# Checkpoints on real servers of HDFS and S3.
test-storage: .venv/dev.installed jars classes
	@$(BIN)/python -m replayfilter.jvm.jars s3a >/dev/null
	$(BIN)/python -m pytest -m storage

PEERS := build/peers

peers: $(PEERS)/streams/peers-1.jar $(PEERS)/python/installed

$(PEERS)/streams/peers-1.jar: benchmarks/peers/pom.xml benchmarks/peers/streams/Dedup.java
	@$(NEEDS_MAVEN)
	mvn --quiet --batch-mode --file $< package
	@touch $@

# A virtual environment of its own: Flink pins other versions of pandas and pyarrow.
$(PEERS)/python/installed: benchmarks/peers/requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 is missing: install it with its venv module \
	(on Debian and Ubuntu: apt install python3.11 python3.11-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(PEERS)/python
	$(PEERS)/python/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@

test-java: .venv/dev.installed jars
	@$(NEEDS_MAVEN)
	mvn --quiet --batch-mode --file clients/java/pom.xml package
	$(BIN)/python -m pytest -m java

# What it finds is kept in tests/fuzz/cases and is a failing test from then on.
fuzz: FUZZ_SECONDS ?= 600
fuzz: .venv/dev.installed
	$(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

sim: SIM_SECONDS ?= $(if $(SEEDS),1000000,600)
sim: .venv/dev.installed
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000000) --seconds $(SIM_SECONDS))

mutants: .venv/dev.installed
	$(BIN)/python -m tests.sim --mutants

schemas: .venv/dev.installed
	$(BIN)/python schemas/remake.py

# What a service consists of, in CycloneDX.
sbom: .venv/service.installed
	@mkdir -p build
	$(BIN)/python requirements/sbom.py build/bom.json

# Fetches the jars that are not in the user's cache yet.
jars: .venv/service.installed
	@$(BIN)/python -m replayfilter.jvm.jars >/dev/null

# dev.txt holds all of service.txt in the same versions, so whoever has the one has the other.
.venv/dev.installed: requirements/build.txt requirements/dev.txt pyproject.toml | java
	@$(call install,requirements/dev.txt)
	@touch .venv/service.installed $@

.venv/service.installed: requirements/build.txt requirements/service.txt pyproject.toml | java
	@$(call install,requirements/service.txt)
	@touch $@

define install
	test -n "$(PYTHON)" || { echo "Python 3.11 is missing: install it with its venv module \
	(on Debian and Ubuntu: apt install python3.11 python3.11-venv)." >&2; exit 1; }; \
	echo "installing $(1) into .venv (once)"; \
	$(PYTHON) -m venv .venv; \
	$(PIP) -r requirements/build.txt; \
	$(PIP) -r $(1); \
	$(BIN)/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation -e .
endef

java:
	@command="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	"$$command" -version 2>&1 | grep -Eq 'version "(17|21)[."]' || { echo "$$command is not Java 17 or 21: install one \
	(on Debian and Ubuntu: apt install openjdk-17-jre-headless) and put it on PATH or name it in JAVA_HOME." >&2; exit 1; }

COMPILE := $(UV) pip compile --quiet --generate-hashes --no-header --no-emit-index-url --python-version 3.11

lock: .venv/dev.installed
	$(COMPILE) requirements/build.in -o requirements/build.txt
	$(COMPILE) pyproject.toml --extra dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra service --extra avro --extra protobuf --extra tracing -c requirements/dev.txt -o requirements/service.txt
	$(BIN)/python -m replayfilter.jvm.jars --lock >/dev/null

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
