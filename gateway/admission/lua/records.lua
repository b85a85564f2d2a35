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
