-- ARGV: lease (ms), reservation ids.  Prolongs those that are still open.
for i = 2, #ARGV do
  redis.call('ZADD', RESERVATIONS, 'XX', NOW_MS + tonumber(ARGV[1]), ARGV[i])
end
redis.call('PEXPIRE', BUCKET, BUCKET_TTL_MS)
redis.call('PEXPIRE', RESERVATIONS, RECORD_TTL_MS + tonumber(ARGV[1]))
redis.call('PEXPIRE', HOLDS, RECORD_TTL_MS + tonumber(ARGV[1]))
return 0
