-- KEYS: bucket, reservations, settled totals.
-- ARGV: tpm, rpm, reservation id, reserved tokens, actual tokens, 1 settle | 0 release.
-- Returns 1, or 0 if the reservation is not open: a second settle of one id changes nothing.
-- A release is a reservation that led to no request: it takes back the request, too.
local reserved, actual, is_settle = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
if redis.call('ZREM', KEYS[2], ARGV[3]) == 0 then
  return 0
end
-- The limits of the admission may be old by now: the bucket's own stand, if it has any.
local limits = redis.call('HMGET', KEYS[1], 'tpm', 'rpm')
local tpm, rpm = tonumber(limits[1] or ARGV[1]), tonumber(limits[2] or ARGV[2])
local bucket = load_bucket(KEYS[1], tpm, rpm)
local level = bucket.tokens + (reserved - actual) * UNIT
bucket.tokens = math.max(-tpm * UNIT, math.min(tpm * UNIT, level))
if is_settle then
  redis.call('HINCRBY', KEYS[3], 'requests', 1)
  redis.call('HINCRBY', KEYS[3], 'tokens', string.format('%.0f', actual))
else
  bucket.requests = math.min(rpm * UNIT, bucket.requests + UNIT)
end
save_bucket(KEYS[1], bucket)
return 1
