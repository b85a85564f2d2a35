-- ARGV, for each settlement: reservation id, tokens used, tokens that count towards limits,
-- nano-dollars used, 1 settle | 0 release | 2 settle what a gateway decided and may not have told.
-- Returns how many were open: a second settlement of one id changes nothing.
-- A release is a reservation that led to no request: it takes back the request, too.
-- What was never told is counted, and known for a day from then on.
local is_recorded = redis.call('EXISTS', RECORD) == 1
local num_open, num_settled, tokens_sum = 0, 0, 0
for i = 1, #ARGV, 5 do
  local id, is_settled = ARGV[i], ARGV[i + 4] ~= '0'
  local packed = redis.call('HGET', HOLDS, id)
  local is_untold = not packed and ARGV[i + 4] == '2' and not redis.call('ZSCORE', SWEPT, id)
  if packed or is_untold then
    num_open = num_open + 1
    if is_settled then
      num_settled, tokens_sum = num_settled + 1, tokens_sum + tonumber(ARGV[i + 1])
    end
  end
  if is_untold then
    redis.call('ZADD', SWEPT, NOW_MS + RECORD_TTL_MS, id)
    redis.call('PEXPIRE', SWEPT, RECORD_TTL_MS + 1000)
  end
  if packed then
    local record = cmsgpack.unpack(packed)
    use(record, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), not is_settled)
    redis.call('ZREM', RESERVATIONS, id)
    redis.call('HDEL', HOLDS, id)
    if record[IS_FORCED] == 1 or ARGV[i + 4] == '2' then -- may be told again by whoever missed the answer
      redis.call('ZADD', SWEPT, NOW_MS + RECORD_TTL_MS, id)
      redis.call('PEXPIRE', SWEPT, RECORD_TTL_MS + 1000)
    elseif record[IS_SWEPT] == 1 then
      redis.call('ZREM', SWEPT, id)
    end
    if is_recorded then
      note('settle', id, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), is_settled and 1 or 0)
    end
  end
end
if num_settled > 0 then
  if redis.call('HINCRBY', SETTLED, 'requests', num_settled) == num_settled then
    redis.call('HSET', SETTLED, 'since_ms', NOW_MS) -- the first ever, or since the store lost them
  end
  redis.call('HINCRBY', SETTLED, 'tokens', tokens_sum)
end
save_buckets()
return num_open
