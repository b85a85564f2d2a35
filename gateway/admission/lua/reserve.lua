-- ARGV: lease (ms), number of rules; for each rule its name, then its limits, 0 for none: tokens and
-- requests a minute, concurrent requests, tokens a day and a month, nano-dollars a day and a month;
-- then what is asked for: 1 if it was served already, tokens, nano-dollars, reservation id, and a
-- number that stays the same when the same is asked again.
-- Returns {0 admitted | number of the limit that refuses, its rule from 1, ms until it would not,
-- what it allows, what is left of it; for tokens and for requests a minute, of the rule with least
-- left: limit, left, ms until full}.  A refusal takes nothing but a turn.
local LIMITS_PER_RULE = 8
local TOKENS_A_MINUTE, REQUESTS_A_MINUTE, CONCURRENT = 1, 2, 3
local TOKENS_A_DAY, TOKENS_A_MONTH, NANO_A_DAY, NANO_A_MONTH = 4, 5, 6, 7

local lease_ms, num_rules = tonumber(ARGV[1]), tonumber(ARGV[2])
local asked = 2 + num_rules * LIMITS_PER_RULE
local is_forced, tokens, nano, id, turn = ARGV[asked + 1] == '1', tonumber(ARGV[asked + 2]),
  tonumber(ARGV[asked + 3]), ARGV[asked + 4], ARGV[asked + 5]
sweep()
local my_turn
if has_turns then
  drop_lapsed_turns()
  my_turn = turn_of(turn)
end

local refused_by, refusing_rule, wait_ms, allowed, left = 0, 0, 0, 0, 0
local function refuse(limit, rule, needs_ms, limit_allows, limit_left)
  local is_budget, was_budget = limit > CONCURRENT, refused_by > CONCURRENT
  if is_budget == was_budget and needs_ms > wait_ms or is_budget and not was_budget then
    refused_by, refusing_rule, wait_ms, allowed, left = limit, rule, needs_ms, limit_allows, limit_left
  end
end

local month -- of today; worked out only where a rule has budgets
local function check_budgets(rule, name, position)
  month = month or month_of(TODAY)
  local spent = redis.call('HMGET', BUDGET, budget_fields(name, TODAY, month))
  local day_ends_ms, month_ends_ms = (TODAY + 1) * 86400000, first_day_of(month + 1) * 86400000
  local function check(limit, limit_allows, spent_text, cost, ends_ms)
    local limit_left = limit_allows - (tonumber(spent_text) or 0)
    if limit_allows > 0 and cost > limit_left then
      refuse(limit, rule, ends_ms - NOW_MS, limit_allows, math.max(0, limit_left))
    end
  end
  check(TOKENS_A_DAY, tonumber(ARGV[position + 4]), spent[1], tokens, day_ends_ms)
  check(TOKENS_A_MONTH, tonumber(ARGV[position + 5]), spent[3], tokens, month_ends_ms)
  check(NANO_A_DAY, tonumber(ARGV[position + 6]), spent[2], nano, day_ends_ms)
  check(NANO_A_MONTH, tonumber(ARGV[position + 7]), spent[4], nano, month_ends_ms)
end

local function has_budgets(position)
  for i = position + 4, position + 7 do
    if ARGV[i] ~= '0' then
      return 1
    end
  end
  return 0
end

local function whole(level)
  return math.floor(math.max(0, level) / UNIT)
end

local record = {tokens, nano, NOW_MS, TODAY, 0, is_forced and 1 or 0}
local taken = {} -- the buckets to take from, once everything allows it
for rule = 1, num_rules do
  local position = 3 + (rule - 1) * LIMITS_PER_RULE
  local name, tpm, rpm = ARGV[position], tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])
  local max_running, budgeted = tonumber(ARGV[position + 3]), has_budgets(position)
  local bucket = bucket_of(name, tpm, rpm)
  if bucket.tpm ~= tpm or bucket.rpm ~= rpm then
    bucket.tokens, bucket.tpm = moved(bucket.tokens, bucket.tpm, tpm), tpm
    bucket.requests, bucket.rpm = moved(bucket.requests, bucket.rpm, rpm), rpm
  end
  if tpm > 0 then
    local free = bucket.tokens - ahead(my_turn, name, TOKENS_A_MINUTE) * UNIT
    if free < tokens * UNIT then
      refuse(TOKENS_A_MINUTE, rule, math.ceil((tokens * UNIT - free) / tpm), tpm, whole(free))
    end
  end
  if rpm > 0 then
    local free = bucket.requests - ahead(my_turn, name, REQUESTS_A_MINUTE) * UNIT
    if free < UNIT then
      refuse(REQUESTS_A_MINUTE, rule, math.ceil((UNIT - free) / rpm), rpm, whole(free))
    end
  end
  if max_running > 0 then
    local free = max_running - bucket.running - ahead(my_turn, name, CONCURRENT)
    if free < 1 then
      local needs_ms = math.ceil(bucket.held_ms * (1 - free) / max_running)
      refuse(CONCURRENT, rule, needs_ms, max_running, math.max(0, free))
    end
  end
  if budgeted == 1 then
    check_budgets(rule, name, position)
  end
  local n = #record
  record[n + 1], record[n + 2], record[n + 3] = name, tpm, rpm
  record[n + 4], record[n + 5] = max_running > 0 and 1 or 0, budgeted
  taken[rule] = bucket
end
record[MONTH] = month or 0

local is_known = is_forced
  and (redis.call('HEXISTS', HOLDS, id) == 1 or redis.call('ZSCORE', SWEPT, id) ~= false)
if is_known then
  refused_by, wait_ms = 0, 0 -- told before, when no answer came
elseif is_forced or refused_by == 0 then
  refused_by, wait_ms = 0, 0
  if my_turn then
    drop_turn(turn)
  end
  for rule, bucket in ipairs(taken) do
    bucket.tokens = math.max(-bucket.tpm * UNIT, bucket.tokens - tokens * UNIT)
    bucket.requests = math.max(-bucket.rpm * UNIT, bucket.requests - UNIT)
    local part = FIRST_RULE + (rule - 1) * RULE_PARTS
    bucket.running = bucket.running + record[part + 3]
    if record[part + 4] == 1 then
      forget_old_periods('day', record[part], TODAY, 'd')
      forget_old_periods('month', record[part], month, 'm')
      spend(record[part], TODAY, month, tokens, nano)
    end
  end
  save_record(id, record)
  redis.call('PEXPIRE', HOLDS, RECORD_TTL_MS + lease_ms)
  redis.call('ZADD', RESERVATIONS, NOW_MS + lease_ms, id)
  redis.call('PEXPIRE', RESERVATIONS, RECORD_TTL_MS + lease_ms)
end
save_buckets()

if refused_by > 0 then
  local name = ARGV[3 + (refusing_rule - 1) * LIMITS_PER_RULE]
  local keeps_turn = my_turn and my_turn.name == name and my_turn.limit == refused_by
    and my_turn.due_ms > NOW_MS
  wait_ms = keeps_turn and my_turn.due_ms - NOW_MS or jittered(wait_ms)
  if my_turn and not keeps_turn then
    drop_turn(turn)
  end
  if not keeps_turn and refused_by <= CONCURRENT and wait_ms <= MAX_TURN_MS then
    take_turn(turn, name, refused_by, refused_by == TOKENS_A_MINUTE and tokens or 1, NOW_MS + wait_ms)
  end
end

local token_rule, request_rule -- those with least left
for _, bucket in ipairs(taken) do
  if bucket.tpm > 0 and (not token_rule or bucket.tokens < token_rule.tokens) then
    token_rule = bucket
  end
  if bucket.rpm > 0 and (not request_rule or bucket.requests < request_rule.requests) then
    request_rule = bucket
  end
end
return {
  refused_by, refusing_rule, wait_ms, allowed, left,
  token_rule.tpm, whole(token_rule.tokens),
  math.ceil((token_rule.tpm * UNIT - token_rule.tokens) / token_rule.tpm),
  request_rule.rpm, whole(request_rule.requests),
  math.ceil((request_rule.rpm * UNIT - request_rule.requests) / request_rule.rpm),
}
