-- Turns: where a refused ask stands in line.  It was told when to come back; until then, and for a
-- while after, nobody who comes later gets in before it.  A turn is on the limit that refused, and
-- known by what was asked: an ask that comes again too early is told the rest of the same wait.
--
-- TURNS holds them by when they are due; LINE what each wants, and by limit what all of them want.
local TURN_GRACE_MS = 2000 -- a client that counts in whole seconds comes up to one second late
local MAX_TURN_MS = 60000 -- no more than a minute's refill is promised to those who may not come
local TURNS_TTL_MS = 2 * MAX_TURN_MS + TURN_GRACE_MS
local MAX_JITTER_MS = 30000

local function line()

local function line_of(name, limit)
  return '#' .. limit .. name
end

local function drop_turn(turn)
  local packed = redis.call('HGET', LINE, turn)
  if packed then
    local wanted = cmsgpack.unpack(packed)
    redis.call('HINCRBY', LINE, line_of(wanted[1], wanted[2]), -wanted[3])
    redis.call('HDEL', LINE, turn)
  end
  redis.call('ZREM', TURNS, turn)
end

local function drop_lapsed_turns()
  local before_ms = NOW_MS - TURN_GRACE_MS
  for _, turn in ipairs(redis.call('ZRANGEBYSCORE', TURNS, '-inf', before_ms, 'LIMIT', 0, MAX_SWEPT)) do
    drop_turn(turn)
  end
end

local function turn_of(turn)
  local packed = redis.call('HGET', LINE, turn)
  if not packed then
    return nil
  end
  local wanted = cmsgpack.unpack(packed)
  return {name = wanted[1], limit = wanted[2], cost = wanted[3], due_ms = wanted[4]}
end

local function take_turn(turn, name, limit, cost, due_ms)
  redis.call('HSET', BUCKET, 'turns_until_ms', NOW_MS + TURNS_TTL_MS)
  redis.call('ZADD', TURNS, due_ms, turn)
  redis.call('HSET', LINE, turn, cmsgpack.pack({name, limit, cost, due_ms}))
  redis.call('HINCRBY', LINE, line_of(name, limit), cost)
  redis.call('PEXPIRE', TURNS, TURNS_TTL_MS)
  redis.call('PEXPIRE', LINE, TURNS_TTL_MS)
end

-- What those want who were refused by this limit before us.
local function ahead(mine, name, limit)
  local is_mine = mine and mine.name == name and mine.limit == limit
  if is_mine and mine.due_ms <= NOW_MS then
    return 0
  end
  local wanted = tonumber(redis.call('HGET', LINE, line_of(name, limit))) or 0
  return is_mine and wanted - mine.cost or wanted
end

-- Longer by up to a twentieth: those refused together shall not come back together.  A minute stays
-- a minute: OpenAI's clients do not wait for longer.
local function jittered(wait_ms)
  local most_ms = math.min(MAX_JITTER_MS, wait_ms / 20)
  if wait_ms <= MAX_TURN_MS then
    most_ms = math.min(most_ms, MAX_TURN_MS - wait_ms)
  end
  return wait_ms + math.floor(most_ms * (time[2] % 1000) / 1000)
end

return drop_turn, drop_lapsed_turns, turn_of, take_turn, ahead, jittered
end
