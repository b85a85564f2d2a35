-- One tenant's keys, how long they live, and the store's clock.  A script is this text and others,
-- each after those whose names it uses.
--
-- Every call makes every function anew, so what is seldom needed is made only then: inside another.
local BUCKET, BUDGET, RESERVATIONS, HOLDS, SWEPT, SETTLED, TURNS, LINE = unpack(KEYS)
local BUCKET_TTL_MS = 3600000 -- longer than any lease; a missing bucket is full and has nobody running
local RECORD_TTL_MS = 86400000 -- how late a settlement may come: longer than any lease
local MAX_SWEPT = 100 -- of what has lapsed, a call

local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)
local TODAY = math.floor(NOW_MS / 86400000) -- days since 1970, UTC

local function keep()
  redis.call('PEXPIRE', BUCKET, BUCKET_TTL_MS)
  redis.call('PEXPIRE', HOLDS, RECORD_TTL_MS)
  redis.call('PEXPIRE', RESERVATIONS, RECORD_TTL_MS)
end
