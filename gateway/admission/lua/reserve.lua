-- KEYS: bucket, reservations.  ARGV: tpm, rpm, reservation lifetime (ms), tokens, reservation id.
-- Returns {admitted, 0 none | 1 tokens | 2 requests, retry after (ms), tokens left, requests left,
-- ms until tokens are full, ms until requests are full}.  A refusal takes nothing.
local tpm, rpm, lifetime_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, id = tonumber(ARGV[4]) * UNIT, ARGV[5]
local bucket = load_bucket(KEYS[1], tpm, rpm)

local tokens_wait_ms = math.max(0, math.ceil((cost - bucket.tokens) / tpm))
local requests_wait_ms = math.max(0, math.ceil((UNIT - bucket.requests) / rpm))
local wait_ms = math.max(tokens_wait_ms, requests_wait_ms)
local limit = 0
if wait_ms > 0 then
  limit = tokens_wait_ms >= requests_wait_ms and 1 or 2
else
  bucket.tokens, bucket.requests = bucket.tokens - cost, bucket.requests - UNIT
  local now_ms = server_now_ms()
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
  redis.call('ZADD', KEYS[2], now_ms + lifetime_ms, id)
  redis.call('PEXPIRE', KEYS[2], lifetime_ms + 1000)
end
save_bucket(KEYS[1], bucket)
return {
  limit == 0 and 1 or 0, limit, wait_ms,
  math.floor(math.max(0, bucket.tokens) / UNIT), math.floor(math.max(0, bucket.requests) / UNIT),
  math.ceil((tpm * UNIT - bucket.tokens) / tpm), math.ceil((rpm * UNIT - bucket.requests) / rpm),
}
