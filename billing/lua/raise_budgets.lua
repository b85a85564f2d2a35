-- KEYS: the tenant's budget hash.  ARGV: now (seconds), today (days since 1970), the month (years * 12 + months),
-- then for each rule its name, and what the ledger knows to be spent: tokens and nano-dollars of the
-- day, tokens and nano-dollars of the month.
-- Raises counters that are lower, lowers none: what runs, and what is not in the ledger yet, is in
-- the counter only.  Marks when that was first done.  Returns how many were raised.
local BUDGET_TTL_MS = 70 * 86400000 -- as the gateways' scripts keep it
local day, month = ARGV[2], ARGV[3]
local num_raised = 0

local function raise(field, spent)
  local counted = tonumber(redis.call('HGET', KEYS[1], field) or '0')
  if tonumber(spent) > counted then
    redis.call('HINCRBY', KEYS[1], field, string.format('%.0f', tonumber(spent) - counted))
    num_raised = num_raised + 1
  end
end

for i = 4, #ARGV, 5 do
  local name = ARGV[i]
  raise(name .. 'd' .. day .. 'tokens', ARGV[i + 1])
  raise(name .. 'd' .. day .. 'nano', ARGV[i + 2])
  raise(name .. 'm' .. month .. 'tokens', ARGV[i + 3])
  raise(name .. 'm' .. month .. 'nano', ARGV[i + 4])
end
redis.call('HSETNX', KEYS[1], 'ledger', ARGV[1])
redis.call('PEXPIRE', KEYS[1], BUDGET_TTL_MS)
return num_raised
