-- One tenant's keys, how long they live, and the store's clock.  A script is this text and others,
-- each after those whose names it uses.
--
-- Every call makes every function anew, so what is seldom needed is made only then: inside another.
local BUCKET, BUDGET, RESERVATIONS, HOLDS, SWEPT, SETTLED, TURNS, LINE, RECORD =
  unpack(KEYS)
local BUCKET_TTL_MS = 3600000 -- longer than any lease; a missing bucket is full and has nobody running
local RECORD_TTL_MS = 86400000 -- how late a settlement may come: longer than any lease
local MAX_RECORDED = 20000 -- entries of a tenant: fewer than an hour's, if it asks more often
local RECORDED_MS = 3600000 -- older ones go, by and by
local MAX_SWEPT = 100 -- of what has lapsed, a call

local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)
local TODAY = math.floor(NOW_MS / 86400000) -- days since 1970, UTC

local function keep()
  redis.call('PEXPIRE', BUCKET, BUCKET_TTL_MS)
  redis.call('PEXPIRE', HOLDS, RECORD_TTL_MS)
  redis.call('PEXPIRE', RESERVATIONS, RECORD_TTL_MS)
  redis.call('PEXPIRE', RECORD, RECORDED_MS)
  redis.call('XTRIM', RECORD, 'MINID', '~', NOW_MS - RECORDED_MS)
end

-- What was asked and used, and when, for replaying it under another policy: no word of any prompt.
local function note(kind, ...)
  redis.call('XADD', RECORD, 'MAXLEN', '~', MAX_RECORDED, '*', kind,
    cmsgpack.pack({tonumber(time[1]), tonumber(time[2]), ...}))
end
