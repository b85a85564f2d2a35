-- Shared by reserve.lua and settle.lua, which are appended to this text.
-- A level is kept in 1/60000 of its unit, so that a limit of L per minute refills exactly L per
-- millisecond: every number is an integer, and none comes near 2^53.

local UNIT = 60000
local FULL_MS = 120000 -- from the deepest debt (minus one burst) to a full bucket

local function server_now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A raised limit frees the difference at once; a lowered one takes it, but makes no debt.
local function carry_over(level, old_limit, new_limit)
  local moved = level + (new_limit - old_limit) * UNIT
  if new_limit < old_limit and moved < 0 then
    return math.min(level, 0)
  end
  return moved
end

local function refilled(level, limit, elapsed_ms)
  return math.min(limit * UNIT, math.max(level, -limit * UNIT) + elapsed_ms * limit)
end

-- Levels as of now under the given limits.  A field that is missing (new tenant, eviction) is full.
local function load_bucket(key, tpm, rpm)
  local f = redis.call('HMGET', key, 'tokens', 'requests', 'at_ms', 'tpm', 'rpm')
  local old_tpm, old_rpm = tonumber(f[4]) or tpm, tonumber(f[5]) or rpm
  local now_ms = server_now_ms()
  local at_ms = math.max(now_ms, tonumber(f[3]) or now_ms) -- a clock set back refills nothing twice
  local elapsed_ms = math.min(FULL_MS, at_ms - (tonumber(f[3]) or at_ms))
  local tokens, requests = tonumber(f[1]) or old_tpm * UNIT, tonumber(f[2]) or old_rpm * UNIT
  return {
    tokens = refilled(carry_over(tokens, old_tpm, tpm), tpm, elapsed_ms),
    requests = refilled(carry_over(requests, old_rpm, rpm), rpm, elapsed_ms),
    at_ms = at_ms, tpm = tpm, rpm = rpm,
  }
end

local function save_bucket(key, bucket)
  redis.call('HSET', key,
    'tokens', string.format('%.0f', bucket.tokens),
    'requests', string.format('%.0f', bucket.requests),
    'at_ms', string.format('%.0f', bucket.at_ms),
    'tpm', string.format('%.0f', bucket.tpm), 'rpm', string.format('%.0f', bucket.rpm))
  redis.call('PEXPIRE', key, FULL_MS + 1000) -- by then it is full, which is what a missing key means
end
