-- Shared by the other scripts, which are appended to this text.  All keys are one tenant's.
--
-- A level is kept in 1/60000 of its unit, so that a limit of L per minute refills exactly L per
-- millisecond: every number is an integer, and none comes near 2^53.
--
-- Every call makes every function anew, so what is seldom needed is made only then: inside another.
local BUCKET, BUDGET, RESERVATIONS, HOLDS, SWEPT, SETTLED, TURNS, LINE = unpack(KEYS)
local UNIT = 60000
local FULL_MS = 120000 -- from the deepest debt (minus one burst) to a full bucket
local BUCKET_TTL_MS = 3600000 -- longer than any lease; a missing bucket is full and has nobody running
local BUDGET_TTL_MS = 70 * 86400000 -- two months and a bit
local RECORD_TTL_MS = 86400000 -- how late a settlement may come: longer than any lease
local KEEP_PAUSE_MS = 60000 -- a time to live is set no more often
local MAX_SWEPT = 100 -- reservations a call

local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)
local TODAY = math.floor(NOW_MS / 86400000) -- days since 1970, UTC

-- Calendar months, counted from year 0: month_of(day), first_day_of(month)
-- (days_from_civil: https://howardhinnant.github.io/date_algorithms.html)

local function calendar()

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

return month_of, first_day_of
end

-- Buckets: loaded once a call, saved together

local buckets = {}

-- Of the tenant: when the first lease ends, when no turn is left, when the keys' times to live were
-- set.  Known once a bucket is.
local sweep_at_ms, turns_until_ms, kept_ms

local function keep()
  redis.call('PEXPIRE', BUCKET, BUCKET_TTL_MS)
  redis.call('PEXPIRE', HOLDS, RECORD_TTL_MS)
  redis.call('PEXPIRE', RESERVATIONS, RECORD_TTL_MS)
end

-- As of now.  The limits given count only where none are stored (new rule, eviction): then it is full.
local function bucket_of(name, tpm, rpm)
  local bucket = buckets[name]
  if bucket then
    return bucket
  end
  local f = redis.call('HMGET', BUCKET, name .. 'tokens', name .. 'requests', name .. 'at_ms',
    name .. 'tpm', name .. 'rpm', name .. 'full_ms', name .. 'running', name .. 'held_ms',
    'sweep_at_ms', 'turns_until_ms', 'kept_ms')
  sweep_at_ms, turns_until_ms, kept_ms = tonumber(f[9] or 0), tonumber(f[10] or 0), tonumber(f[11] or 0)
  local is_new = not (f[4] and f[5])
  tpm, rpm = tonumber(f[4] or tpm), tonumber(f[5] or rpm)
  local most_tokens, most_requests, at_ms = tpm * UNIT, rpm * UNIT, tonumber(f[3] or NOW_MS)
  local tokens, requests = tonumber(f[1] or most_tokens), tonumber(f[2] or most_requests)
  local full_ms, is_full = tonumber(f[6] or 0), false
  if at_ms < NOW_MS then -- a clock set back refills nothing twice
    local elapsed_ms = math.min(FULL_MS, NOW_MS - at_ms)
    tokens = math.min(most_tokens, tokens + elapsed_ms * tpm)
    requests = math.min(most_requests, requests + elapsed_ms * rpm)
    at_ms = NOW_MS
  end
  if tokens >= most_tokens then
    full_ms, is_full = at_ms, true
  end
  bucket = {
    tokens = tokens, requests = requests, at_ms = at_ms, tpm = tpm, rpm = rpm, full_ms = full_ms,
    running = tonumber(f[7] or 0), held_ms = tonumber(f[8] or 1000), is_new = is_new,
    is_full = is_full,
  }
  buckets[name] = bucket
  return bucket
end

-- A script that writes to a tenant's keys at all saves its buckets: their times to live follow here.
local function save_buckets()
  local fields = {}
  for name, b in pairs(buckets) do
    local n = #fields
    fields[n + 1], fields[n + 2] = name .. 'tokens', b.tokens
    fields[n + 3], fields[n + 4] = name .. 'requests', b.requests
    fields[n + 5], fields[n + 6] = name .. 'at_ms', b.at_ms
    if b.is_full then
      fields[n + 7], fields[n + 8] = name .. 'full_ms', b.full_ms
    end
    if b.is_new then
      n = #fields
      fields[n + 1], fields[n + 2] = name .. 'tpm', b.tpm
      fields[n + 3], fields[n + 4] = name .. 'rpm', b.rpm
    end
    if b.has_run then
      n = #fields
      fields[n + 1], fields[n + 2] = name .. 'running', b.running
      fields[n + 3], fields[n + 4] = name .. 'held_ms', b.held_ms
    end
  end
  if not fields[1] then
    return
  end
  local is_keeping = NOW_MS >= kept_ms + KEEP_PAUSE_MS
  if is_keeping then
    local n = #fields
    fields[n + 1], fields[n + 2] = 'kept_ms', NOW_MS
  end
  redis.call('HSET', BUCKET, unpack(fields))
  if is_keeping then
    keep()
  end
end

-- Budgets: what was spent in a calendar day and month, under the period it was reserved in

local function budgets()

local function fields_of(name, day, month)
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
  local day_tokens, day_nano, month_tokens, month_nano = fields_of(name, day, month)
  redis.call('HINCRBY', BUDGET, day_tokens, tokens)
  redis.call('HINCRBY', BUDGET, day_nano, nano)
  redis.call('HINCRBY', BUDGET, month_tokens, tokens)
  redis.call('HINCRBY', BUDGET, month_nano, nano)
  redis.call('PEXPIRE', BUDGET, BUDGET_TTL_MS)
end

return fields_of, spend, forget_old_periods
end

-- Records of reservations: {tokens, nano, at_ms, day, month, is_forced, is_swept}, then for each rule
-- {name, tpm, rpm, is it counted as running, tokens held of its budgets or -1 where it has none}

local TOKENS, NANO, AT_MS, DAY, MONTH, IS_FORCED, IS_SWEPT, FIRST_RULE, RULE_PARTS =
  1, 2, 3, 4, 5, 6, 7, 8, 5

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
      bucket.running, bucket.has_run = math.max(0, bucket.running - 1), true
      if not is_released then -- one that led to no request says nothing of how long requests take
        local held_ms = math.max(0, NOW_MS - record[AT_MS]) -- a clock may be set back
        bucket.held_ms = math.floor((bucket.held_ms * 7 + held_ms) / 8)
      end
    end
    if record[i + 4] >= 0 then
      local fields_of, spend = budgets()
      local day, month = record[DAY], record[MONTH]
      if redis.call('HEXISTS', BUDGET, (fields_of(name, day, month))) == 1 then
        spend(name, day, month, tokens - record[i + 4], nano - record[NANO])
      end
    end
  end
end
