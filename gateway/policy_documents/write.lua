-- KEYS: the current document (hash), its versions (hash), changes (stream).
-- ARGV: etag that it must have now ('' for none), its new etag, version, document, change, versions kept.
-- Returns 1, or 0 where it has another etag.
local current = redis.call('HGET', KEYS[1], 'etag') or ''
if current ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'etag', ARGV[2], 'version', ARGV[3], 'document', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('HDEL', KEYS[2], string.format('%d', tonumber(ARGV[3]) - tonumber(ARGV[6])))
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 100000, '*', 'change', ARGV[5])
return 1
