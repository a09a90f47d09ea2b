# The verbs of this project, for people and for CI.
.DEFAULT_GOAL := help
.PHONY: help run test test-chart test-faults check bench fmt

# Finds or fetches what tests run, and tells them by the environment.
tools = envoy=$$(scripts/tool envoy) && redis=$$(scripts/tool redis-server) && \
	promtool=$$(scripts/tool promtool) && helm=$$(scripts/tool helm) && helm3=$$(scripts/tool helm3) && \
	kubernetes_validate=$$(scripts/tool kubernetes-validate) && \
	ENVOY=$$envoy REDIS_SERVER=$$redis PROMTOOL=$$promtool HELM=$$helm HELM3=$$helm3 \
	KUBERNETES_VALIDATE=$$kubernetes_validate

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

run: ## Run tidegate behind Envoy and show a burst running into the limit
	@scripts/run

test: ## Run all tests, those with a real Redis, a real Envoy, promtool and helm included
	@$(tools) cargo test

test-chart: ## Run the tests of the Helm chart alone
	@$(tools) cargo test --test chart

test-faults: ## Break Redis in every way under load, which takes minutes, and write target/faults.md
	@redis=$$(scripts/tool redis-server) && rm -f target/faults.md && \
		REDIS_SERVER=$$redis FAULTS_TABLE=$(CURDIR)/target/faults.md \
		cargo test --profile faults --test faults -- --include-ignored --test-threads=1; \
		status=$$?; cat target/faults.md; exit $$status

check: ## Look for what needs no running: format, lints, docs, who uses whom
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps
	cargo test --test it modules

bench: ## Measure
	cargo bench

fmt: ## Format
	cargo fmt
