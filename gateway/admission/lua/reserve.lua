-- ARGV: lease (ms), number of rules, how many of them, the last, only count what they would refuse,
-- who asks for what ('' if that is not to be noted); for each rule its name, then its limits, 0 for none: tokens and requests a minute, concurrent requests, tokens a day and a month, nano-dollars a day and a month;
-- then what is asked for: 1 if it was served already, tokens that rates are charged, tokens and
-- nano-dollars that budgets are charged, reservation id, and a number that stays the same when the
-- same is asked again.
-- Returns {0 admitted | number of the limit that refuses, its rule from 1, ms until it would not,
-- what it allows, what is left of it; for tokens and for requests a minute, of the rule with least
-- left: limit, left, ms until full; which of the last rules would refuse, in bits}.  A refusal takes
-- nothing but a turn, and nothing is taken from a rule that would refuse.
local LIMITS_PER_RULE = 8
local TOKENS_A_MINUTE, REQUESTS_A_MINUTE, CONCURRENT = 1, 2, 3
local TOKENS_A_DAY, TOKENS_A_MONTH, NANO_A_DAY, NANO_A_MONTH = 4, 5, 6, 7

local FIRST = 5
local lease_ms, num_rules, num_shadows = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local num_enforced, who = num_rules - num_shadows, ARGV[4]
local asked = FIRST - 1 + num_rules * LIMITS_PER_RULE
local is_forced, tokens, budget_tokens, nano, id, turn = ARGV[asked + 1] == '1',
  tonumber(ARGV[asked + 2]), tonumber(ARGV[asked + 3]), tonumber(ARGV[asked + 4]),
  ARGV[asked + 5], ARGV[asked + 6]

-- Reservations whose lease ran out: their gateway is gone.  The records stay, empty, for a settlement
-- that comes late after all.
local function sweep()
  local ids = redis.call('ZRANGEBYSCORE', RESERVATIONS, '-inf', NOW_MS, 'LIMIT', 0, MAX_SWEPT)
  for _, id in ipairs(ids) do
    local packed = redis.call('HGET', HOLDS, id)
    if packed then
      local record = cmsgpack.unpack(packed)
      use(record, 0, 0, false)
      record[TOKENS], record[NANO], record[IS_SWEPT] = 0, 0, 1
      for i = FIRST_RULE, #record, RULE_PARTS do
        record[i + 3], record[i + 4] = 0, math.min(0, record[i + 4])
      end
      redis.call('HSET', HOLDS, id, cmsgpack.pack(record))
      redis.call('ZADD', SWEPT, NOW_MS + RECORD_TTL_MS, id)
      redis.call('PEXPIRE', SWEPT, RECORD_TTL_MS + 1000)
    end
    redis.call('ZREM', RESERVATIONS, id)
  end
  local old_ids = redis.call('ZRANGEBYSCORE', SWEPT, '-inf', NOW_MS, 'LIMIT', 0, MAX_SWEPT)
  for _, id in ipairs(old_ids) do
    redis.call('ZREM', SWEPT, id)
    redis.call('HDEL', HOLDS, id)
  end
  if #old_ids == MAX_SWEPT then
    return NOW_MS -- there are more
  end
  local first = redis.call('ZRANGE', RESERVATIONS, 0, 0, 'WITHSCORES')
  return first[2] or NOW_MS + lease_ms -- no lease ends before
end

bucket_of(ARGV[FIRST], tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2]))
if NOW_MS >= sweep_at_ms then
  redis.call('HSET', BUCKET, 'sweep_at_ms', sweep())
end
local my_turn, drop_turn, drop_lapsed_turns, turn_of, take_turn, place, jittered
if NOW_MS < turns_until_ms then
  drop_turn, drop_lapsed_turns, turn_of, take_turn, place, jittered = line()
  drop_lapsed_turns()
  my_turn = turn_of(turn)
end

local refused_by, refusing_rule, wait_ms, allowed, left = 0, 0, 0, 0, 0
local shadows, shadow_bit = 0, 0 -- the bit of the rule that is looked at; 0 of those that refuse
local is_shadow_refusing = false
local function refuse(limit, rule, needs_ms, limit_allows, limit_left)
  if shadow_bit > 0 then
    is_shadow_refusing = true
    return
  end
  local is_budget, was_budget = limit > CONCURRENT, refused_by > CONCURRENT
  if refused_by == 0 or is_budget == was_budget and needs_ms > wait_ms
    or is_budget and not was_budget then
    refused_by, refusing_rule, wait_ms, allowed, left = limit, rule, needs_ms, limit_allows, limit_left
  end
end

local month -- of today; worked out only where a rule has budgets
local function check_budgets(rule, name, position)
  local month_of, first_day_of = calendar()
  month = month or month_of(TODAY)
  local fields_of = budgets()
  local spent = redis.call('HMGET', BUDGET, fields_of(name, TODAY, month))
  local day_ends_ms, month_ends_ms = (TODAY + 1) * 86400000, first_day_of(month + 1) * 86400000
  local function check(limit, limit_allows, spent_text, cost, ends_ms)
    local limit_left = limit_allows - (tonumber(spent_text) or 0)
    if limit_allows > 0 and cost > limit_left then
      refuse(limit, rule, ends_ms - NOW_MS, limit_allows, math.max(0, limit_left))
    end
  end
  check(TOKENS_A_DAY, tonumber(ARGV[position + 4]), spent[1], budget_tokens, day_ends_ms)
  check(TOKENS_A_MONTH, tonumber(ARGV[position + 5]), spent[3], budget_tokens, month_ends_ms)
  check(NANO_A_DAY, tonumber(ARGV[position + 6]), spent[2], nano, day_ends_ms)
  check(NANO_A_MONTH, tonumber(ARGV[position + 7]), spent[4], nano, month_ends_ms)
end

-- A raised limit frees the difference at once; a lowered one takes it, but makes no debt.
local function moved(level, old_limit, new_limit)
  local level_now = level + (new_limit - old_limit) * UNIT
  if new_limit < old_limit and level_now < 0 then
    level_now = math.min(level, 0)
  end
  return math.max(-new_limit * UNIT, math.min(new_limit * UNIT, level_now))
end

local function whole(level)
  return math.floor(math.max(0, level) / UNIT)
end

-- What is free of a level, and when the ask would get what it costs.
local function standing(name, limit, level, cost, rate, unit)
  if place then
    return place(my_turn, name, limit, level, cost, rate, unit)
  end
  return level, (cost - level) / rate
end

local record = {tokens, nano, NOW_MS, TODAY, 0, is_forced and 1 or 0, 0}
local taken = {} -- the buckets to take from, once everything allows it
for rule = 1, num_rules do
  local position = FIRST + (rule - 1) * LIMITS_PER_RULE
  if rule > num_enforced then
    shadow_bit, is_shadow_refusing = 2 ^ (rule - num_enforced - 1), false
  end
  local name, tpm, rpm = ARGV[position], tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])
  local max_running = tonumber(ARGV[position + 3])
  local budgeted = ARGV[position + 4] ~= '0' or ARGV[position + 5] ~= '0'
    or ARGV[position + 6] ~= '0' or ARGV[position + 7] ~= '0'
  local bucket = bucket_of(name, tpm, rpm)
  if bucket.tpm ~= tpm or bucket.rpm ~= rpm then
    bucket.tokens, bucket.tpm = moved(bucket.tokens, bucket.tpm, tpm), tpm
    bucket.requests, bucket.rpm = moved(bucket.requests, bucket.rpm, rpm), rpm
    bucket.is_new = true
  end
  if tpm > 0 then
    local free, needs_ms = standing(name, TOKENS_A_MINUTE, bucket.tokens, tokens * UNIT, tpm, UNIT)
    if free < tokens * UNIT then
      refuse(TOKENS_A_MINUTE, rule, math.ceil(needs_ms), tpm, whole(free))
    end
  end
  if rpm > 0 then
    local free, needs_ms = standing(name, REQUESTS_A_MINUTE, bucket.requests, UNIT, rpm, UNIT)
    if free < UNIT then
      refuse(REQUESTS_A_MINUTE, rule, math.ceil(needs_ms), rpm, whole(free))
    end
  end
  if max_running > 0 then
    local rate = max_running / math.max(1, bucket.held_ms)
    local free, needs_ms = standing(name, CONCURRENT, max_running - bucket.running, 1, rate, 1)
    if free < 1 then
      needs_ms, free = math.max(1, math.ceil(needs_ms)), math.floor(math.max(0, free))
      refuse(CONCURRENT, rule, needs_ms, max_running, free)
    end
  end
  if budgeted then
    check_budgets(rule, name, position)
  end
  if shadow_bit > 0 and is_shadow_refusing then
    shadows = shadows + shadow_bit
  else
    local n = #record
    record[n + 1], record[n + 2], record[n + 3] = name, tpm, rpm
    record[n + 4], record[n + 5] = max_running > 0 and 1 or 0, budgeted and budget_tokens or -1
    taken[#taken + 1] = bucket
  end
end
record[MONTH] = month or 0

local is_known = is_forced
  and (redis.call('HEXISTS', HOLDS, id) == 1 or redis.call('ZSCORE', SWEPT, id) ~= false)
if is_known then
  refused_by, wait_ms = 0, 0 -- told before, when no answer came
  local packed = redis.call('HGET', HOLDS, id)
  local known = packed and cmsgpack.unpack(packed)
  if known and known[IS_FORCED] == 0 then -- decided here; its gateway decided as well, and says so
    known[IS_FORCED] = 1
    redis.call('HSET', HOLDS, id, cmsgpack.pack(known))
  end
elseif is_forced or refused_by == 0 then
  refused_by, wait_ms = 0, 0
  if my_turn then
    drop_turn(turn)
  end
  for rule, bucket in ipairs(taken) do
    bucket.tokens = math.max(-bucket.tpm * UNIT, bucket.tokens - tokens * UNIT)
    bucket.requests = math.max(-bucket.rpm * UNIT, bucket.requests - UNIT)
    local part = FIRST_RULE + (rule - 1) * RULE_PARTS
    if record[part + 3] == 1 then
      bucket.running, bucket.has_run = bucket.running + 1, true
    end
    if record[part + 4] >= 0 then
      local _, spend, forget_old_periods = budgets()
      forget_old_periods('day', record[part], TODAY, 'd')
      forget_old_periods('month', record[part], month, 'm')
      spend(record[part], TODAY, month, budget_tokens, nano)
    end
  end
  redis.call('HSET', HOLDS, id, cmsgpack.pack(record))
  redis.call('ZADD', RESERVATIONS, NOW_MS + lease_ms, id)
  if NOW_MS + lease_ms < sweep_at_ms then -- shorter than other gateways' leases
    redis.call('HSET', BUCKET, 'sweep_at_ms', NOW_MS + lease_ms)
  end
  if redis.call('HLEN', HOLDS) == 1 or redis.call('ZCARD', RESERVATIONS) == 1 then
    kept_ms = 0 -- a key made anew has no time to live
  end
end
if who ~= '' then
  note('reserve', who, is_forced and 1 or 0, tokens, budget_tokens, nano, id, turn, refused_by)
end
save_buckets()

if refused_by > 0 then
  local name = ARGV[FIRST + (refusing_rule - 1) * LIMITS_PER_RULE]
  local keeps_turn = my_turn and my_turn.name == name and my_turn.limit == refused_by
    and my_turn.due_ms > NOW_MS
  drop_turn, drop_lapsed_turns, turn_of, take_turn, place, jittered = line()
  local told_ms = keeps_turn and my_turn.due_ms - NOW_MS or jittered(wait_ms)
  if my_turn and not keeps_turn then
    drop_turn(turn)
  end
  if not keeps_turn and refused_by <= CONCURRENT and told_ms <= MAX_TURN_MS then
    take_turn(turn, name, refused_by, refused_by == TOKENS_A_MINUTE and tokens or 1, wait_ms, told_ms)
  end
  wait_ms = told_ms
end

local token_rule, request_rule -- those with least left
for i = 1, num_enforced do
  local bucket = taken[i]
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
  shadows,
}
