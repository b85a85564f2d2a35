-- Budgets: what was spent in a calendar day and month, under the period it was reserved in
local BUDGET_TTL_MS = 70 * 86400000 -- two months and a bit

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
