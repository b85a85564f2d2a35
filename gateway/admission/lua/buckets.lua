-- Buckets: loaded once a call, saved together
--
-- A level is kept in 1/60000 of its unit, so that a limit of L per minute refills exactly L per
-- millisecond: every number is an integer, and none comes near 2^53.
local UNIT = 60000
local FULL_MS = 120000 -- from the deepest debt (minus one burst) to a full bucket
local KEEP_PAUSE_MS = 60000 -- a time to live is set no more often

local buckets = {}

-- Of the tenant: when the first lease ends, when no turn is left, when the keys' times to live were
-- set.  Known once a bucket is.
local sweep_at_ms, turns_until_ms, kept_ms

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
