-- KEYS: bucket, reservations, settled totals.
-- ARGV: tpm, rpm, then for each: reservation id, reserved tokens, actual tokens, 1 settle | 0 release.
-- Returns how many were open: a second settle of one id changes nothing.
-- A release is a reservation that led to no request: it takes back the request, too.
local freed, num_open, num_settled, num_released, actual_sum = 0, 0, 0, 0, 0
for i = 3, #ARGV, 4 do
  if redis.call('ZREM', KEYS[2], ARGV[i]) == 1 then
    local actual = tonumber(ARGV[i + 2])
    num_open = num_open + 1
    freed = freed + tonumber(ARGV[i + 1]) - actual
    if ARGV[i + 3] == '1' then
      num_settled, actual_sum = num_settled + 1, actual_sum + actual
    else
      num_released = num_released + 1
    end
  end
end
if num_open == 0 then
  return 0
end
-- The limits of the admission may be old by now: the bucket's own stand, if it has any.
local limits = redis.call('HMGET', KEYS[1], 'tpm', 'rpm')
local tpm, rpm = tonumber(limits[1] or ARGV[1]), tonumber(limits[2] or ARGV[2])
local bucket = load_bucket(KEYS[1], tpm, rpm)
bucket.tokens = math.max(-tpm * UNIT, math.min(tpm * UNIT, bucket.tokens + freed * UNIT))
bucket.requests = math.min(rpm * UNIT, bucket.requests + num_released * UNIT)
if num_settled > 0 then
  redis.call('HINCRBY', KEYS[3], 'requests', num_settled)
  redis.call('HINCRBY', KEYS[3], 'tokens', string.format('%.0f', actual_sum))
end
save_bucket(KEYS[1], bucket)
return num_open
