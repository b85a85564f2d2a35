-- Shared by the other scripts, which are appended to this text.  All keys are one tenant's.
--
-- A level is kept in 1/60000 of its unit, so that a limit of L per minute refills exactly L per
-- millisecond: every number is an integer, and none comes near 2^53.
local BUCKET, BUDGET, RESERVATIONS, HOLDS, SWEPT, SETTLED, TURNS, LINE = unpack(KEYS)
local UNIT = 60000
local FULL_MS = 120000 -- from the deepest debt (minus one burst) to a full bucket
local BUCKET_TTL_MS = 3600000 -- longer than any lease; a missing bucket is full and has nobody running
local BUDGET_TTL_MS = 70 * 86400000 -- two months and a bit
local RECORD_TTL_MS = 86400000 -- how late a settlement may come
local MAX_SWEPT = 100 -- reservations a call

local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)
local TODAY = math.floor(NOW_MS / 86400000) -- days since 1970, UTC

-- Calendar months, counted from year 0 (days_from_civil: https://howardhinnant.github.io/date_algorithms.html)

local function month_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = math.floor(
    (doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153) + 2 -- 2: March
  return (yoe + era * 400) * 12 + month
end

local function first_day_of(month)
  local march_based = month - 2
  local year = math.floor(march_based / 12)
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * (march_based - year * 12) + 2) / 5)
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

-- Buckets: loaded once a call, saved together

local buckets = {}

local function refilled(level, limit, elapsed_ms)
  return math.min(limit * UNIT, math.max(level, -limit * UNIT) + elapsed_ms * limit)
end

-- A raised limit frees the difference at once; a lowered one takes it, but makes no debt.
local function moved(level, old_limit, new_limit)
  local level_now = level + (new_limit - old_limit) * UNIT
  if new_limit < old_limit and level_now < 0 then
    level_now = math.min(level, 0)
  end
  return math.max(-new_limit * UNIT, math.min(new_limit * UNIT, level_now))
end

-- As of now.  The limits given count only where none are stored (new rule, eviction): then it is full.
local function bucket_of(name, tpm, rpm)
  local bucket = buckets[name]
  if bucket then
    return bucket
  end
  local f = redis.call('HMGET', BUCKET, name .. 'tokens', name .. 'requests', name .. 'at_ms',
    name .. 'tpm', name .. 'rpm', name .. 'full_ms', name .. 'running', name .. 'held_ms')
  tpm, rpm = tonumber(f[4]) or tpm, tonumber(f[5]) or rpm
  local stored_ms = tonumber(f[3]) or NOW_MS
  local at_ms = math.max(NOW_MS, stored_ms) -- a clock set back refills nothing twice
  local elapsed_ms = math.min(FULL_MS, at_ms - stored_ms)
  bucket = {
    tokens = refilled(tonumber(f[1]) or tpm * UNIT, tpm, elapsed_ms),
    requests = refilled(tonumber(f[2]) or rpm * UNIT, rpm, elapsed_ms),
    at_ms = at_ms, tpm = tpm, rpm = rpm, full_ms = tonumber(f[6]) or 0,
    running = tonumber(f[7]) or 0, held_ms = tonumber(f[8]) or 1000,
  }
  if bucket.tokens >= tpm * UNIT then
    bucket.full_ms = at_ms
  end
  buckets[name] = bucket
  return bucket
end

local function save_buckets()
  local fields = {}
  for name, b in pairs(buckets) do
    local n = #fields
    fields[n + 1], fields[n + 2] = name .. 'tokens', b.tokens
    fields[n + 3], fields[n + 4] = name .. 'requests', b.requests
    fields[n + 5], fields[n + 6] = name .. 'at_ms', b.at_ms
    fields[n + 7], fields[n + 8] = name .. 'tpm', b.tpm
    fields[n + 9], fields[n + 10] = name .. 'rpm', b.rpm
    fields[n + 11], fields[n + 12] = name .. 'full_ms', b.full_ms
    fields[n + 13], fields[n + 14] = name .. 'running', b.running
    fields[n + 15], fields[n + 16] = name .. 'held_ms', b.held_ms
  end
  if #fields > 0 then
    redis.call('HSET', BUCKET, unpack(fields))
    redis.call('PEXPIRE', BUCKET, BUCKET_TTL_MS)
  end
end

-- Budgets: what was spent in a calendar day and month, under the period it was reserved in

local function budget_fields(name, day, month)
  return name .. 'd' .. day .. 'tokens', name .. 'd' .. day .. 'nano',
    name .. 'm' .. month .. 'tokens', name .. 'm' .. month .. 'nano'
end

-- Keeps the current period and the one before it.
local function forget_old_periods(kind, name, period, suffix)
  local last = redis.call('HGET', BUDGET, name .. kind)
  if last == tostring(period) then
    return
  end
  local before = redis.call('HGET', BUDGET, name .. kind .. '-')
  if before then
    redis.call('HDEL', BUDGET, name .. suffix .. before .. 'tokens', name .. suffix .. before .. 'nano')
  end
  redis.call('HSET', BUDGET, name .. kind, period)
  if last then
    redis.call('HSET', BUDGET, name .. kind .. '-', last)
  end
end

local function spend(name, day, month, tokens, nano)
  local day_tokens, day_nano, month_tokens, month_nano = budget_fields(name, day, month)
  redis.call('HINCRBY', BUDGET, day_tokens, tokens)
  redis.call('HINCRBY', BUDGET, day_nano, nano)
  redis.call('HINCRBY', BUDGET, month_tokens, tokens)
  redis.call('HINCRBY', BUDGET, month_nano, nano)
  redis.call('PEXPIRE', BUDGET, BUDGET_TTL_MS)
end

-- Records of reservations: {tokens, nano, at_ms, day, month, is_forced}, then for each rule
-- {name, tpm, rpm, is it counted as running, has it budgets}

local TOKENS, NANO, AT_MS, DAY, MONTH, IS_FORCED, FIRST_RULE, RULE_PARTS = 1, 2, 3, 4, 5, 6, 7, 5

local function record_of(id)
  local packed = redis.call('HGET', HOLDS, id)
  return packed and cmsgpack.unpack(packed)
end

local function save_record(id, record)
  redis.call('HSET', HOLDS, id, cmsgpack.pack(record))
end

-- Replaces what the record holds by what was used.  What the bucket has already refilled entirely
-- since the reservation is not given back again.
local function use(record, tokens, nano, is_released)
  for i = FIRST_RULE, #record, RULE_PARTS do
    local name = record[i]
    local bucket = bucket_of(name, record[i + 1], record[i + 2])
    local freed = record[TOKENS] - tokens
    if freed > 0 and bucket.full_ms > record[AT_MS] then
      freed = 0
    end
    local cap = bucket.tpm * UNIT
    bucket.tokens = math.max(-cap, math.min(cap, bucket.tokens + freed * UNIT))
    if is_released then
      bucket.requests = math.min(bucket.rpm * UNIT, bucket.requests + UNIT)
    end
    if record[i + 3] == 1 then
      bucket.running = math.max(0, bucket.running - 1)
      bucket.held_ms = math.floor((bucket.held_ms * 7 + NOW_MS - record[AT_MS]) / 8)
    end
    local day, month = record[DAY], record[MONTH]
    if record[i + 4] == 1 and redis.call('HEXISTS', BUDGET, (budget_fields(name, day, month))) == 1 then
      spend(name, day, month, tokens - record[TOKENS], nano - record[NANO])
    end
  end
end

-- Reservations whose lease ran out: their gateway is gone.  The records stay, empty, for a settlement
-- that comes late after all.
local function sweep()
  local ids = redis.call('ZRANGEBYSCORE', RESERVATIONS, '-inf', NOW_MS, 'LIMIT', 0, MAX_SWEPT)
  for _, id in ipairs(ids) do
    local record = record_of(id)
    if record then
      use(record, 0, 0, false)
      record[TOKENS], record[NANO] = 0, 0
      for i = FIRST_RULE, #record, RULE_PARTS do
        record[i + 3] = 0
      end
      save_record(id, record)
      redis.call('ZADD', SWEPT, NOW_MS + RECORD_TTL_MS, id)
      redis.call('PEXPIRE', SWEPT, RECORD_TTL_MS + 1000)
    end
    redis.call('ZREM', RESERVATIONS, id)
  end
  if #ids > 0 then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', SWEPT, '-inf', NOW_MS, 'LIMIT', 0, MAX_SWEPT)) do
      redis.call('ZREM', SWEPT, id)
      redis.call('HDEL', HOLDS, id)
    end
  end
end
