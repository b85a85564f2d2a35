"""Metric names and buckets.  Replicas speak vLLM's names: dashboards and scrapers know them;
what vLLM has no name for begins with ``pandal:``."""

from typing import Final

# Replica: https://docs.vllm.ai/en/latest/usage/metrics/
NUM_REQUESTS_RUNNING: Final = "vllm:num_requests_running"
NUM_REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"  # 0..1 in spite of its name
PREFIX_CACHE_QUERIES: Final = "vllm:prefix_cache_queries_total"  # tokens
PREFIX_CACHE_HITS: Final = "vllm:prefix_cache_hits_total"  # tokens
NUM_PREEMPTIONS: Final = "vllm:num_preemptions_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATION_TOKENS: Final = "vllm:generation_tokens_total"
BLOCK_AUDITS: Final = "pandal:block_audits_total"  # when idle: is every block accounted for?
BLOCK_AUDIT_FAULTS: Final = "pandal:block_audit_faults_total"  # more than 0: a bug
PREEMPTIONS: Final = "pandal:preemptions_total"  # label kind: recompute, swap
JOURNAL_WRITTEN: Final = "pandal:usage_journal_written_total"  # records of the second witness
JOURNAL_LOST: Final = "pandal:usage_journal_lost_total"  # more than 0: its disk is full or slow
REQUEST_SUCCESS: Final = "vllm:request_success_total"  # label finished_reason
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"  # histogram
TIME_TO_FIRST_TOKEN: Final = "vllm:time_to_first_token_seconds"
INTER_TOKEN_LATENCY: Final = "vllm:inter_token_latency_seconds"
E2E_REQUEST_LATENCY: Final = "vllm:e2e_request_latency_seconds"
REQUEST_QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
CACHE_CONFIG_INFO: Final = "vllm:cache_config_info"

# Gateway
GATEWAY_REQUESTS: Final = "pandal_gateway_requests_total"  # labels endpoint, status
GATEWAY_REFUSALS: Final = "pandal_gateway_refusals_total"  # label reason
GATEWAY_TENANT_REQUESTS: Final = "pandal_gateway_tenant_requests_total"  # labels tenant, status
GATEWAY_TENANT_TOKENS: Final = "pandal_gateway_tenant_tokens_total"  # labels tenant, class
GATEWAY_TENANT_BUDGET_USED: Final = "pandal_gateway_tenant_budget_used_ratio"  # of its period's
GATEWAY_SHADOW_REFUSALS: Final = "pandal_gateway_shadow_refusals_total"  # labels tenant, rule
GATEWAY_TOKENS: Final = "pandal_gateway_tokens_total"  # label class: input, cached, output
GATEWAY_ROUTES: Final = "pandal_gateway_routes_total"  # label reason: see routing/decision.py
GATEWAY_TTFT: Final = "pandal_gateway_time_to_first_token_seconds"
GATEWAY_TTFT_ERROR: Final = "pandal_gateway_ttft_prediction_error_ratio"  # of the actual one
GATEWAY_STREAM_BREAKS: Final = "pandal_gateway_stream_breaks_total"  # by replicas, mid-stream
GATEWAY_STREAM_RECOVERY: Final = "pandal_gateway_stream_recovery_seconds"  # break to next token
GATEWAY_RETRIES: Final = "pandal_gateway_retries_total"  # label outcome: made, over_budget
GATEWAY_HEDGES: Final = "pandal_gateway_hedges_total"  # second attempts at once: won, lost
GATEWAY_FALLBACKS: Final = "pandal_gateway_fallbacks_total"  # served by another than was asked for
# Answers of which a provider reported more tokens than it was sent, or asked for.
GATEWAY_OVERCOUNTS: Final = "pandal_gateway_provider_overcounts_total"
GATEWAY_BREAKER_OPENINGS: Final = "pandal_gateway_breaker_openings_total"
# Label how: hit, miss, shared, replayed; unshared: begun under a key without the others' knowing;
# lost: another has taken the key meanwhile, so that both answers are made, and charged.
GATEWAY_KNOWN_ANSWERS: Final = "pandal_gateway_known_answers_total"
GATEWAY_WAITING_REQUESTS: Final = "pandal_gateway_waiting_requests"  # for their turn
GATEWAY_ACTIVE_REQUESTS: Final = "pandal_gateway_active_requests"
GATEWAY_QUOTA_LOST: Final = "pandal_gateway_quota_store_lost"  # 1 while it does not decide
GATEWAY_QUOTA_OPEN: Final = "pandal_gateway_quota_open_settlements"  # not confirmed yet
GATEWAY_QUOTA_LOCAL: Final = "pandal_gateway_quota_local_admissions_total"  # by local shares
GATEWAY_POLICY_REFUSED: Final = "pandal_gateway_policy_refused"  # 1: the stored one is no good
GATEWAY_POLICY_LOST: Final = "pandal_gateway_policy_store_lost"  # 1: the last good one is in force
GATEWAY_SPOOLED_EVENTS: Final = "pandal_gateway_spooled_events_total"
GATEWAY_SHIPPED_EVENTS: Final = "pandal_gateway_shipped_events_total"
GATEWAY_OUTBOX_BYTES: Final = "pandal_gateway_outbox_waiting_bytes"  # not in Kafka, of any boot
GATEWAY_SHED_EVENTS: Final = "pandal_gateway_shed_events_total"  # given up: the outbox was full

# Billing
BILLING_EVENTS: Final = "pandal_billing_events_total"  # label outcome: posted, repeated, ...
BILLING_EVENT_AT: Final = "pandal_billing_event_timestamp_seconds"  # by outcome, the last one
BILLING_READ_AT: Final = "pandal_billing_read_timestamp_seconds"  # a round that met no fault
BILLING_POSTED_AT: Final = "pandal_billing_posted_timestamp_seconds"  # the last batch
BILLING_LAG: Final = "pandal_billing_lag_seconds"  # of that batch, from its newest event's end on
BILLING_CHARGED_USD: Final = "pandal_billing_charged_usd_total"  # of events with a price
BILLING_DIFFERENCES: Final = "pandal_billing_differences"  # label kind; of the last reconciliation
BILLING_RECONCILED_AT: Final = "pandal_billing_reconciled_timestamp_seconds"  # the last whole one
BILLING_UNPRICED: Final = "pandal_billing_unpriced_events"  # that waited for a price then
BILLING_DEAD_LETTERS: Final = "pandal_billing_dead_letters"  # that nobody had replayed then

# Admin API
ADMIN_REQUESTS: Final = "pandal_admin_requests_total"  # labels method, route, status
ADMIN_REFUSED_LOGINS: Final = "pandal_admin_refused_logins_total"  # a rise: somebody guesses

# Autoscaler
AUTOSCALER_LEADS: Final = "pandal_autoscaler_leads"  # 1: this process acts
AUTOSCALER_REPLICAS: Final = "pandal_autoscaler_replicas"  # labels pool, variant, phase
AUTOSCALER_WANTED: Final = "pandal_autoscaler_wanted_replicas"  # labels pool, variant
AUTOSCALER_CONFLICT: Final = "pandal_autoscaler_conflict"  # label pool; 1: another one scales it
AUTOSCALER_REASONS: Final = "pandal_autoscaler_reasons_total"  # labels pool, reason; one a tick

LATENCY_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""One set for every latency: TTFT on a GPU is tens of milliseconds, on a CPU seconds."""

ERROR_RATIO_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)

ITERATION_TOKENS_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
