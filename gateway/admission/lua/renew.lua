-- ARGV: lease (ms), reservation ids.  Prolongs those that are still open.
for i = 2, #ARGV do
  redis.call('ZADD', RESERVATIONS, 'XX', NOW_MS + tonumber(ARGV[1]), ARGV[i])
end
keep()
return 0
